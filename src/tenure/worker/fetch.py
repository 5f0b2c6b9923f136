"""Fetch: claim for the free slots, only what is started at once, and ask for more as slots free up.

A poll asks with one statement which contracts have something due, so an idle worker writes nothing; a wake-up names its
contract. Contracts take turns, so that a busy one does not starve the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID, uuid4

from tenure.contract import Contract
from tenure.errors import ConnectionLost, StaleLease, TenureError
from tenure.job import Job
from tenure.marks import is_full
from tenure.patience import Patience
from tenure.worker.slots import Slots
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

#: How long a nearly full worker waits for more free slots before it claims for those that it has.
_GATHER_S = 0.002
#: A claim of so many jobs or fewer costs the database nearly the same.
_WORTH_HALVING = 100
#: No more at a time than one request to a dispatcher takes; of so many, more at a time cost a job no less.
_LARGEST = 1_000
#: Polls may take this share of the time, while that leaves no longer pause than so many seconds.
_POLLING, _LONGEST_PAUSE_S = 0.1, 10.0
#: How often the worker looks for jobs of tasks that it does not know, where it does not claim them.
_STRANGERS_S = 60.0


class Fetch:
    """Claims jobs and gives them to `begin`, with the time at which they were asked for."""

    def __init__(
        self,
        source: JobSource,
        contracts: Mapping[str, Contract],
        queues: Sequence[str],
        slots: Slots,
        *,
        worker: str,
        poll_s: float,
        known: Sequence[str],
        begin: Callable[[list[Job], float], None],
    ) -> None:
        self._source = source
        self._contracts = contracts
        self._queues = queues
        self._slots = slots
        self._worker = worker
        self._poll_s = poll_s
        self._known = known
        self._begin = begin
        #: The contracts that may have something due, in the order in which they are asked.
        self._hot: dict[str, None] = {}
        self._next_poll = self._next_strangers = 0.0
        #: contract → a claim whose answer was lost, its key and its time: asked again, what it won is not lost.
        self._unanswered: dict[str, tuple[UUID, float]] = {}
        self._looks_again = False
        self.stopping = False

    def look(self, contract: str) -> None:
        """There may be jobs of this contract, or of any: ask before those that polls found."""
        self._hot = dict.fromkeys([contract] if contract in self._contracts else self._contracts) | self._hot
        self._slots.changed.set()

    def look_again(self) -> None:
        """Poll as soon as nothing else is known to be due."""
        self._looks_again = True
        self._slots.changed.set()

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Claim until told to stop, or until it is idle and nothing is due."""
        patience = Patience()
        while not self.stopping:
            if time.monotonic() >= self._next_poll or (self._looks_again and not self._hot):
                self._looks_again = False
                await self._poll()
            if self._slots.free <= 0 or not self._hot:
                if not self._hot and is_idle():
                    return
                await self._rest()
                continue
            if self._slots.free < self._slots.concurrency // 4:
                await asyncio.sleep(_GATHER_S)  # short jobs end together: let some of them, and claim for all
            contract = next(iter(self._hot))
            del self._hot[contract]
            try:
                await self._claim(contract)
                patience.reset()
            except Exception as error:
                told = _log.warning if isinstance(error, TenureError) else _log.exception
                told("%s cannot claim, and tries again: %s", self._worker, error)
                # What a claim has perhaps won is ours for no longer than its lease: ask for that first.
                again = {contract: None}
                self._hot = again | self._hot if contract in self._unanswered else self._hot | again
                await patience.wait()

    async def _poll(self) -> None:
        """Ask from time to time which contracts have something due, never in step with other workers.

        Where asking has become dear (somebody's open transaction keeps the dead entries of the index), less often.
        """
        now = time.monotonic()
        pause = self._poll_s * (0.75 + time.monotonic_ns() // 1_000 % 500 / 1_000)
        self._next_poll = now + pause
        try:
            self._hot |= dict.fromkeys(await self._source.due(list(self._contracts), self._queues))
            self._next_poll = now + max(pause, min((time.monotonic() - now) / _POLLING, _LONGEST_PAUSE_S))
            if now >= self._next_strangers:
                self._next_strangers = now + _STRANGERS_S
                await self._look_for_strangers()
        except Exception as error:
            _log.debug("%s cannot look for jobs: %s", self._worker, error)

    async def _rest(self) -> None:
        """Wait for a free slot, a wake-up, or the time to look again."""
        self._slots.changed.clear()
        if self.stopping or (self._looks_again and not self._hot):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._next_poll - time.monotonic())):
                await self._slots.changed.wait()

    async def _claim(self, contract: str) -> None:
        # Of many slots half at a time: while these are begun and told of, the database looks for the others.
        free = min(self._slots.free, max(_WORTH_HALVING, -(-self._slots.concurrency // 2)), _LARGEST)
        key, asked = self._unanswered.pop(contract, (uuid4(), time.monotonic()))
        try:
            jobs = await self._source.claim(
                contract, self._queues, worker=self._worker, limit=free, claim_key=key, types=self._types(contract)
            )
        except ConnectionLost:
            self._unanswered[contract] = (key, asked)
            raise
        except StaleLease:  # the answer was lost, and meanwhile the jobs were too
            return
        if jobs:
            self._slots.counts["claimed"] += len(jobs)
            self._slots.take(len(jobs))
            self._begin(jobs, asked)
        if is_full(jobs, free):
            self._hot[contract] = None  # behind the others

    def _types(self, contract: str) -> Sequence[str] | None:
        """The tasks to claim: all, where one that is not known here can be handed back at no cost; else those known."""
        return None if self._contracts[contract].path("hand_back") is not None else self._known

    async def _look_for_strangers(self) -> None:
        """Say which jobs wait for a worker that knows their task; the database ends them after an hour of that."""
        unclaimed = [name for name in self._contracts if self._types(name) is not None]
        for job_id, kind in await self._source.strangers(unclaimed, self._queues, self._known, worker=self._worker):
            say_stranger(job_id, kind)


def say_stranger(job_id: int, kind: str) -> None:
    """The alarm for a job whose task this worker does not know."""
    _log.error(
        "job %d is of task %r, which this worker does not know; it waits for one that does, an hour at most. "
        "Next: deploy a worker that has the task, or tenure jobs cancel %d",
        job_id, kind, job_id,
    )  # fmt: skip
