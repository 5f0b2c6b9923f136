"""How values are written: times, durations and failures for people; times, ids and refusals for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from tenure.errors import TenureError

#: The logger of failed attempts: one record each.
FAILURE_LOGGER: Final = "tenure.worker.failures"
#: (unit, its milliseconds, the smallest count that uses it): 36 h, but 2 days.
_UNITS: Final = (("days", 86_400_000, 2), ("h", 3_600_000, 1), ("min", 60_000, 1), ("s", 1_000, 1))


def describe_failure(error: Any) -> str:
    """Return a failure in one line: its type, its code if any, its message."""
    if not isinstance(error, Mapping):
        return "no error was recorded"
    code = f" [{error['code']}]" if error.get("code") else ""
    return to_one_line(f"{error.get('type') or 'Error'}{code}: {error.get('message') or 'no message'}")


def to_one_line(text: str, longest: int = 300) -> str:
    """Return a foreign text in one line without characters that a terminal could interpret."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(line.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def traceback_lines(error: Any) -> list[str]:
    """Return the lines of a failure's traceback; empty if none is stored."""
    stack = error.get("stack") if isinstance(error, Mapping) else None
    lines = stack.expandtabs(4).rstrip().splitlines() if isinstance(stack, str) else []
    # Characters that a terminal could interpret become blanks.
    return ["".join(sign if sign.isprintable() else " " for sign in line).rstrip() for line in lines]


def format_time(moment: datetime, now: datetime) -> str:
    """Return a time and its distance from now: `2026-11-15 12:03:07 UTC (3 min ago)`."""
    away = (moment - now) / timedelta(milliseconds=1)
    if -1000 < away <= 0:
        far = "just now"
    else:
        far = f"in {format_duration(away)}" if away > 0 else f"{format_duration(-away)} ago"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({far})"


def count_attempts(attempts: int) -> str:
    """Return `1 attempt`, `2 attempts`."""
    return f"{attempts} {'attempt' if attempts == 1 else 'attempts'}"


def count_of(number: int, noun: str) -> str:
    """A number and its noun, which is plural for all numbers but one."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def elapsed(first: datetime, second: datetime) -> str:
    """Return the time from one moment to another as text."""
    return format_duration(max(0.0, (second - first) / timedelta(milliseconds=1)))


def format_duration(ms: float) -> str:
    """Return a duration in its largest fitting unit."""
    for unit, size, least in _UNITS:
        if ms >= least * size:
            return f"{ms / size:.3g} {unit}" if ms < 1000 * size else f"{ms / size:,.0f} {unit}"
    return f"{ms:.0f} ms"


def dump_json(value: Any) -> str:
    """Return JSON for programs: times as ISO 8601 in UTC, tokens as strings."""
    return json.dumps(value, default=_value)


def format_iso(at: datetime) -> str:
    """Return a time as ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_iso(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no JSON for a {type(value).__name__}")


def ids_to_text(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the same fields with these ids as strings."""
    return {key: str(value) if key in names and value is not None else value for key, value in fields.items()}


def code_and_message(error: TenureError) -> tuple[str, str]:
    """Return a refusal's code (the contract's own before the class's) and its message without that code."""
    code = str(getattr(error, "reason_code", error.code))
    return code, str(error).removeprefix(f"{code}: ")
