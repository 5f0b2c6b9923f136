"""The database's clock, held against this process's own: leases are only as good as the clock that ends them.

A clock that jumps ahead by more than a lease ends every lease at once, of living holders too. Nobody can tell them from
dead ones before they have had the time to beat again, so reaping waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

#: A step back ends no lease, it makes them longer: from here on it is worth saying.
_BACK_SEC = 1.0


class Jump(NamedTuple):
    """How far the database's clock went off in seconds, ahead or (negative) back, and what it showed then."""

    seconds: float
    at: datetime


class _Reading(NamedTuple):
    """What the database's clock showed at some moment between two of ours."""

    at: datetime
    before: float
    after: float


class Clock:
    """Compares each reading with the one before it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        #: How often the database's clock jumped.
        self.jumps = 0
        self._last_jump: float | None = None
        self._reading: _Reading | None = None

    def read(self, at: datetime, asked: float, lease_sec: float) -> Jump | None:
        """Note what the database's clock shows, asked for at this moment of ours; a jump if there was one since."""
        now = _Reading(at, asked, self.monotonic())
        then, self._reading = self._reading, now
        if then is None:
            return None
        shown = (now.at - then.at).total_seconds()
        # Answers take time: what may be explained by that is no jump.
        ahead, back = shown - (now.after - then.before), shown - (now.before - then.after)
        if ahead <= lease_sec and back >= -_BACK_SEC:
            return None
        self.jumps += 1
        self._last_jump = now.after
        return Jump(ahead if ahead > lease_sec else back, at)

    def jumped_within(self, seconds: float) -> bool:
        """Whether a jump was seen in so many seconds of this process's own clock."""
        return self._last_jump is not None and self.monotonic() - self._last_jump < seconds
