"""Cron expressions in a time zone. The only module that imports cronsim.

Five fields (minute, hour, day of month, month, day of week), or a name such as `@daily`. At clock changes the rules are
those of Debian's cron: a time that the clock jumps over fires when the gap ends, a time that comes twice fires once;
expressions whose minute or hour begins with `*` simply follow the wall clock and fire in each hour that passes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from tenure.errors import BadInput

#: Names, and the five fields that they stand for.
NAMES: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = ("minute", "hour", "day of month", "month", "day of week")
_RANGES: Final = ("0-59", "0-23", "1-31", "1-12 or JAN-DEC", "0-7 or SUN-SAT")
#: Every field but the one under test; February has no day 31, so each of them is valid beside any other.
_ANY: Final = "*"
#: A zone of IANA's database; ZoneInfo would also read other files.
_ZONE: Final = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")
#: Some moment, to try an expression on.
_MOMENT: Final = datetime(2024, 1, 1, tzinfo=UTC)
#: An expression may give this many times that are past already (in the second pass of a repeated hour).
_MAX_COINCIDING: Final = 10_000
#: No clock changes twice within this time.
_SPAN: Final = timedelta(days=1)
_SECOND: Final = timedelta(seconds=1)


def check_cron(text: object) -> str:
    """Return an expression as it is stored; refuses one that is wrong, with the field and the reason."""
    if not isinstance(text, str) or not text.strip() or len(text) > 200:
        raise BadInput(f'a cron expression is a text like "*/5 * * * *" or "@daily", not {text!r}')
    given = " ".join(text.split())
    if given.startswith("@"):
        if given.lower() not in NAMES:
            raise BadInput(f"cron name {given!r} is unknown. Next: use one of {', '.join(NAMES)}")
        return given.lower()
    fields = given.split(" ")
    if len(fields) != len(_FIELDS):
        raise BadInput(
            f"cron expression {given!r} has {len(fields)} fields; it needs 5: {', '.join(_FIELDS)}. "
            "Next: for an interval in seconds, use every(seconds=…)"
        )
    from cronsim import CronSim, CronSimError  # only where there are schedules

    for number, (field, name, allowed) in enumerate(zip(fields, _FIELDS, _RANGES, strict=True)):
        alone = [_ANY] * len(_FIELDS)
        alone[number] = field
        try:
            CronSim(" ".join(alone), _MOMENT)
        except (CronSimError, AssertionError, ValueError, TypeError):
            raise BadInput(
                f"cron expression {given!r}: {field!r} is no {name}; it must be within {allowed}, with *, lists (1,2), "
                "ranges (1-5) and steps (*/5)"
            ) from None
    try:
        next(CronSim(given, _MOMENT))
    except (CronSimError, StopIteration):
        raise BadInput(
            f"cron expression {given!r} never fires: no such day exists. Next: correct the day of month or the month"
        ) from None
    return given


def check_zone(name: object) -> str:
    """Return the name of a time zone; refuses an unknown one, with similar names."""
    if isinstance(name, str) and _ZONE.fullmatch(name):
        try:
            ZoneInfo(name)
        except (KeyError, OSError, ValueError):
            pass
        else:
            return name
    similar = get_close_matches(str(name), sorted(available_timezones()), 3, 0.6)
    hint = f"did you mean {' or '.join(similar)}?" if similar else 'use a name such as "Europe/Berlin" or "UTC"'
    raise BadInput(f"time zone {name!r} is not in the IANA database. Next: {hint}")


def cron_times(text: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times after a moment at which an expression fires, in UTC, rising."""
    expression = NAMES.get(text, text)
    minute, hour, *_ = expression.split(" ")
    follows_clock = minute.startswith(_ANY) or hour.startswith(_ANY)
    times = _times_by_clock if follows_clock else _fixed_times
    yield from times(expression, ZoneInfo(zone), after.astimezone(UTC))


def _fixed_times(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """The times of an expression with a fixed minute and hour."""
    from cronsim import CronSim

    last, coinciding = after, 0
    for at in CronSim(expression, after.astimezone(zone)):
        moment = at.astimezone(UTC)
        # In the second pass of a repeated hour cronsim gives the times of the first pass.
        if moment <= last:
            coinciding += 1
            if coinciding > _MAX_COINCIDING:
                return
            continue
        last, coinciding = moment, 0
        yield moment


def _times_by_clock(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Every moment at which the wall clock shows a time that matches.

    cronsim leaves some out where a clock changes by half an hour, because it adds whole hours. So it gets wall-clock
    times without a zone, for one span after the other in which the clock does not change.
    """
    from cronsim import CronSim

    begin = after.replace(microsecond=0) + _SECOND
    while True:
        offset = _offset(zone, begin)
        end = begin + _SPAN
        if changes := _offset(zone, end) != offset:
            end = _first_change(zone, begin, offset)
        for at in CronSim(expression, (begin + offset - _SECOND).replace(tzinfo=None)):
            moment = at.replace(tzinfo=UTC) - offset
            if moment >= end:
                break
            yield moment
        else:
            return
        # Until shortly before that moment no time matches, whatever the clock does in between.
        begin = end if changes else max(end, moment - 2 * _SPAN)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _first_change(zone: ZoneInfo, begin: datetime, offset: timedelta) -> datetime:
    """When the clock of a zone leaves this offset, within a span."""
    seconds = range(int(_SPAN.total_seconds()))
    return begin + bisect_left(seconds, True, key=lambda n: _offset(zone, begin + n * _SECOND) != offset) * _SECOND
