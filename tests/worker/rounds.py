"""What a worker's loops have come past: its looks for jobs, the beats of its heart, and the time limits of handlers.

A test moves the clock of the heart, and lets the time limits pass.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import pytest

from tenure.client.direct import DirectClient
from tenure.jobs.live_worker import LiveWorker
from tenure.worker import heartbeat, running_job
from tests.harness import Harness
from tests.worker.working import LEASE_S, until

#: A little more than half of a lease: a beat is due, and the database renews.
HALF_S = LEASE_S / 2 + 1
_LEFT = """
select coalesce(extract(epoch from min(lease_expires_at) - clock_timestamp()), 0) from tenure.job where id = any(%s)
"""
_PASS = "update tenure.job set lease_expires_at = lease_expires_at - %s * interval '1 second' where id = any(%s)"


class Polls:
    """Counts the looks of workers in this process that have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = 0
        due = DirectClient.due

        async def counted(local: DirectClient, contracts: Sequence[str], worker: LiveWorker) -> list[str]:
            found = await due(local, contracts, worker)
            self.ended += 1
            return found

        monkeypatch.setattr(DirectClient, "due", counted)

    async def another(self) -> None:
        """Wait until a worker has looked, done what it then had to do, and looked again."""
        # One may be under way already, which does not count.
        seen = self.ended
        await until(lambda: self.ended >= seen + 3)


class Pulse:
    """What hearts take for the time. Nobody beats before a test moves it; then each job beats once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        #: How many hearts there are, and the rounds that each of them has ended.
        self.hearts, self.ended = 1, Counter[int]()
        monkeypatch.setattr(heartbeat, "time", self)
        monkeypatch.setattr(heartbeat, "asyncio", self)

    def monotonic(self) -> float:
        """The time, for a heart."""
        return self.now

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """How long a beat may take."""
        return asyncio.timeout(seconds)

    async def sleep(self, seconds: float) -> None:
        """The rest of a heart between two rounds."""
        self.ended[threading.get_ident()] += 1
        await asyncio.sleep(seconds)

    def passes(self, seconds: float) -> None:
        """Let so much time pass for hearts."""
        self.now = max(self.now, time.monotonic()) + seconds

    def another(self) -> Callable[[], bool]:
        """Whether every heart has begun a round from now on, and ended it."""
        before = self.ended.copy()
        return lambda: (
            len(self.ended) >= self.hearts and all(self.ended[each] >= before[each] + 2 for each in list(self.ended))
        )

    async def half_a_lease(self, db: Harness, ids: Sequence[int]) -> None:
        """Let half a lease of these jobs pass, for their holders and in the database, until they are renewed."""
        for done in self._half_a_lease(db, ids):
            await until(done)

    def half_a_lease_blocked(self, db: Harness, ids: Sequence[int]) -> None:
        """The same without letting anything else of this thread go on."""
        for done in self._half_a_lease(db, ids):
            limit = time.monotonic() + 60
            while not done():
                assert time.monotonic() < limit, "nobody renewed the leases"
                time.sleep(0.01)

    def _half_a_lease(self, db: Harness, ids: Sequence[int]) -> Iterator[Callable[[], bool]]:
        """Let it pass; what is to be waited for, one after the other."""
        yield self.another()  # a beat that is under way would be answered by the old row, and planned by the new clock
        db.sql(_PASS, HALF_S, list(ids))
        self.passes(HALF_S)
        yield lambda: bool(db.value(_LEFT, list(ids)) > LEASE_S * 0.75)
        yield self.another()  # whoever renewed has heard so


class Limits:
    """The time limits of handlers in this process: they pass when a test says so, and not by themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed = 0.0
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], None]]] = []
        monkeypatch.setattr(running_job, "asyncio", self)

    def get_running_loop(self) -> Self:
        """The loop, for a job that sets its timer."""
        return self

    def call_later(self, seconds: float, late: Callable[[], None]) -> asyncio.TimerHandle:
        """Set the timer of a handler, which may have begun some turns of the loop ago."""
        timer = asyncio.get_running_loop().call_later(0 if seconds <= self._passed else 3_600, late)
        self._timers.append((seconds, timer, late))
        return timer

    def passes(self, seconds: float) -> None:
        """Let limits of up to so many seconds pass, for the handlers that have begun and from now on."""
        self._passed = seconds
        for limit, timer, late in self._timers:
            if limit <= seconds and not timer.cancelled():
                timer.cancel()
                late()
