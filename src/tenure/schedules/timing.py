"""The fire times of a schedule: by a cron expression in a time zone, or every N seconds.

Intervals are counted from 1970-01-01 00:00 UTC. So every process has the same times, a restart moves none, and a
changed interval that is changed back has the old times again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.schedules.cron import check_cron, check_zone, cron_times

MAX_EVERY_S: Final = 366 * 86_400
MAX_JITTER_S: Final = 86_400.0
#: Spans before a moment in which its latest cron times are looked for, the shortest first.
_SPANS: Final = (timedelta(hours=2), timedelta(days=5), timedelta(days=200), timedelta.max)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400}


@dataclass(frozen=True, slots=True)
class Timing:
    """Either `cron` in the zone `tz`, or `every_s`; and by how much each fire is delayed at most."""

    cron: str | None = None
    every_s: int | None = None
    tz: str = "UTC"
    jitter_s: float = 0.0

    def __str__(self) -> str:
        """For people: `*/5 * * * * (Europe/Berlin)` or `every 300 s`."""
        return f"every {self.every_s} s" if self.cron is None else f"{self.cron} ({self.tz})"

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield the fire times after a moment, in UTC, rising; without jitter."""
        if self.cron is not None:
            yield from cron_times(self.cron, self.tz, after)
            return
        assert self.every_s is not None
        number = (after - _EPOCH) // timedelta(seconds=self.every_s)
        while True:
            number += 1
            try:
                yield _EPOCH + timedelta(seconds=self.every_s * number)
            except OverflowError:
                return

    def latest(self, since: datetime, until: datetime, count: int) -> list[datetime]:
        """Return the latest fire times within (since, until], at most `count` of them, rising."""
        spans = _SPANS if self.every_s is None else (timedelta(seconds=self.every_s * count),)
        found: list[datetime] = []
        for span in spans:
            begin = since if until - since <= span else until - span
            found = list(_until(self.times(begin), until))
            if len(found) >= count or begin == since:
                break
        return found[-count:]

    def due_at(self, key: str, at: datetime) -> datetime:
        """Return when a fire time is due: later by its jitter, and always before the next fire time.

        The jitter is a hash of the key and the fire time, so every process computes the same.
        """
        if not self.jitter_s:
            return at
        following = next(self.times(at), None)
        room = self.jitter_s if following is None else min(self.jitter_s, (following - at).total_seconds())
        digest = hashlib.sha256(f"{key}\n{at.astimezone(UTC).isoformat()}".encode()).digest()
        return at + timedelta(milliseconds=int(1_000 * room * int.from_bytes(digest[:6]) / 2**48))

    def upcoming(self, after: datetime, count: int) -> list[datetime]:
        """Return the next fire times after a moment."""
        return list(islice(self.times(after), count))


def _until(times: Iterator[datetime], until: datetime) -> Iterator[datetime]:
    for at in times:
        if at > until:
            return
        yield at


def timing(
    cron: str | None = None,
    *,
    seconds: int | None = None,
    minutes: int | None = None,
    hours: int | None = None,
    days: int | None = None,
    tz: str = "UTC",
    jitter: float = 0.0,
) -> Timing:
    """Return a checked timing; refuses what is wrong or never fires."""
    spans = {"seconds": seconds, "minutes": minutes, "hours": hours, "days": days}
    given = {name: value for name, value in spans.items() if value is not None}
    if (cron is None) == (not given):
        both = ", and not both" if given else ""
        raise BadInput(
            f'a schedule needs either a cron expression, as in "*/5 * * * *", or an interval, as in minutes=5{both}'
        )
    _check_jitter(jitter)
    if cron is not None:
        return Timing(check_cron(cron), None, check_zone(tz), float(jitter))
    if tz != "UTC":
        raise BadInput(f"an interval has no time zone; it is {tz!r}. Next: leave tz out, or use a cron expression")
    for name, value in given.items():
        validation.check_integer(name, value, 0, MAX_EVERY_S)
    every_s = sum(value * _UNITS[name] for name, value in given.items())
    if not 1 <= every_s <= MAX_EVERY_S:
        raise BadInput(f"the interval of a schedule is {every_s} s; it must be within 1 s and 366 days")
    if jitter > every_s:
        raise BadInput(f"the jitter of {jitter:g} s is longer than the interval of {every_s} s. Next: give less")
    return Timing(None, every_s, "UTC", float(jitter))


def _check_jitter(jitter: object) -> None:
    if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= MAX_JITTER_S:
        raise BadInput(f"jitter must be a number of seconds within 0 and {MAX_JITTER_S:.0f}, not {jitter!r}")
