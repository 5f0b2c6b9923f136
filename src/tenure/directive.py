"""What a handler may return instead of a result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run this job again after so long; costs no attempt, where the contract lets a job be put off."""

    seconds: float | timedelta

    @property
    def milliseconds(self) -> int:
        """The span as the engine takes it."""
        seconds = self.seconds.total_seconds() if isinstance(self.seconds, timedelta) else self.seconds
        return max(0, round(seconds * 1_000))


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this job as cancelled, with the reason on record."""

    reason: str | None = None
