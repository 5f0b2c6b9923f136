"""What a worker's loops have come past: its looks for jobs, and the beats of its heart, whose clock a test moves."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tenure.local import Local
from tenure.worker import heart
from tests.harness import Harness
from tests.worker.working import LEASE_S, until

#: A little more than half of a lease: a beat is due, and the database renews.
HALF_S = LEASE_S / 2 + 1
_LEFT = "select extract(epoch from min(lease_expires_at) - clock_timestamp()) from tenure.job where id = any(%s)"
_PASS = "update tenure.job set lease_expires_at = lease_expires_at - %s * interval '1 second' where id = any(%s)"


class Polls:
    """Counts the looks of workers in this process that have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = 0
        due = Local.due

        async def counted(local: Local, contracts: Sequence[str], queues: Sequence[str]) -> list[str]:
            found = await due(local, contracts, queues)
            self.ended += 1
            return found

        monkeypatch.setattr(Local, "due", counted)

    async def another(self) -> None:
        """Wait until a worker has looked, done what it then had to do, and looked again."""
        # One may be under way already, which does not count.
        seen = self.ended
        await until(lambda: self.ended >= seen + 3)


class Pulse:
    """What hearts take for the time. Nobody beats before a test moves it; then each job beats once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.looks = time.monotonic(), 0
        monkeypatch.setattr(heart, "time", self)

    def monotonic(self) -> float:
        """The time, for a heart."""
        self.looks += 1
        return self.now

    def passes(self, seconds: float) -> None:
        """Let so much time pass for hearts."""
        self.now = max(self.now, time.monotonic()) + seconds

    def half_a_lease(self, db: Harness, ids: Sequence[int]) -> None:
        """Let half a lease of these jobs pass, for their holders and in the database."""
        db.sql(_PASS, HALF_S, list(ids))
        self.passes(HALF_S)


def is_renewed(db: Harness, ids: Sequence[int]) -> bool:
    """Whether nearly whole leases are left of all these jobs."""
    left = db.value(_LEFT, list(ids))
    return left is not None and bool(left > LEASE_S * 0.75)


def block_until_renewed(db: Harness, ids: Sequence[int]) -> None:
    """Wait for the same without letting anything else of this thread go on."""
    limit = time.monotonic() + 60
    while not is_renewed(db, ids):
        assert time.monotonic() < limit, "nobody renewed the leases"
        time.sleep(0.01)
