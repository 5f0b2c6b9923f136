"""How people are told of times, spans and failures: in one line, and in words that mean the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

#: (unit, its milliseconds, from how many on it is used): people say 36 hours, and then 2 days.
_UNITS: Final = (("days", 86_400_000, 2), ("h", 3_600_000, 1), ("min", 60_000, 1), ("s", 1_000, 1))


def failure(error: Any) -> str:
    """A failure in one line: its type, its code where it has one, its message."""
    if not isinstance(error, Mapping):
        return "no error was recorded"
    code = f" [{error['code']}]" if error.get("code") else ""
    return plain(f"{error.get('type') or 'Error'}{code}: {error.get('message') or 'no message'}")


def plain(text: str, longest: int = 300) -> str:
    """Text that others wrote, in one line that no terminal takes for a command."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(line.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def when(moment: datetime, now: datetime) -> str:
    """A moment, and how far it is from now: `2026-11-15 12:03:07 UTC (3 min ago)`."""
    away = (moment - now) / timedelta(milliseconds=1)
    far = "just now" if -1000 < away <= 0 else f"{span(-away)} ago" if away < 0 else f"in {span(away)}"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({far})"


def span(ms: float) -> str:
    """A length of time in its largest fitting unit."""
    for unit, size, least in _UNITS:
        if ms >= least * size:
            return f"{ms / size:.3g} {unit}" if ms < 1000 * size else f"{ms / size:,.0f} {unit}"
    return f"{ms:.0f} ms"
