"""Detects jumps of the database's clock by comparing it with this process's monotonic clock.

A clock that jumps ahead by more than a lease expires every lease at once, also those of living holders. Living and dead
holders look the same until the living ones had the time to send a heartbeat, so reaping waits for that long.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

#: A jump back expires no lease, it prolongs them. From this many seconds on it is reported.
_BACK_S = 1.0


class Jump(NamedTuple):
    """The size of a jump in seconds (negative: back), and the database's time after it."""

    seconds: float
    at: datetime


class _Reading(NamedTuple):
    """The database's time, read between two moments of the monotonic clock."""

    at: datetime
    before: float
    after: float


class ClockWatch:
    """Compares each reading of the database's clock with the reading before."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        #: The number of jumps so far.
        self.jumps = 0
        self._last_jump: float | None = None
        self._reading: _Reading | None = None

    def read(self, at: datetime, before: float, lease_s: float) -> Jump | None:
        """Record the database's time, requested at monotonic time `before`; returns a jump since the last reading."""
        now = _Reading(at, before, self.monotonic())
        then, self._reading = self._reading, now
        if then is None:
            return None
        passed = (now.at - then.at).total_seconds()
        # A reading takes time: a difference that this time can explain is no jump.
        ahead, back = passed - (now.after - then.before), passed - (now.before - then.after)
        if ahead <= lease_s and back >= -_BACK_S:
            return None
        self.jumps += 1
        self._last_jump = now.after
        return Jump(ahead if ahead > lease_s else back, at)

    def jumped_within(self, seconds: float) -> bool:
        """Whether the clock jumped in the last seconds, by the monotonic clock."""
        return self._last_jump is not None and self.monotonic() - self._last_jump < seconds
