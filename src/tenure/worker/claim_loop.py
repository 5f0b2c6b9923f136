"""The claim loop: claims jobs for the free slots, only as many as start at once, and claims more as slots free up.

A worker claims only types that it knows. A poll asks with one statement which contracts have such jobs due, so an idle
worker writes nothing. A wake-up names its contract. Of the contracts that may have due jobs the loop claims from the
one that was claimed from least recently, for its share of the free slots: a busy contract does not starve the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from uuid import UUID, uuid4

from tenure.client.job_source import JobSource
from tenure.client.retry import RetryDelay
from tenure.errors import ConnectionLost, StaleLease, TenureError
from tenure.jobs.claim_cursor import is_full
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Job
from tenure.worker.shared_parts import SharedParts

_log = logging.getLogger("tenure.worker")

#: How long a nearly full worker waits for more free slots before it claims, in seconds.
_GATHER_S = 0.002
#: Claims of up to this many jobs cost the database nearly the same.
_WORTH_HALVING = 100
#: A dispatcher takes no larger claim in one request; larger ones would cost no less per job.
_LARGEST = 1_000
#: Polls may take this share of the time, as long as the pause between two is at most this many seconds.
_POLL_SHARE, _LONGEST_PAUSE_S = 0.1, 10.0
#: How often a worker that ends when it is idle looks whether others have gone on with flows, in seconds.
_FLOWS_PAUSE_S = 0.05


class ClaimLoop:
    """Claims jobs and gives them to `start_jobs`, with the monotonic time at which the claim was sent."""

    def __init__(self, parts: SharedParts, poll_s: float, start_jobs: Callable[[list[Job], float], None]) -> None:
        self._source, self._worker, self._slots = parts.source, parts.worker, parts.slots
        self._contracts = parts.contracts if parts.tasks else {}
        self._poll_s = poll_s
        self._start_jobs = start_jobs
        #: The contracts that may have due jobs; and all contracts, the one claimed from least recently first.
        self._may_be_due: set[str] = set()
        self._turns = dict.fromkeys(self._contracts)
        self._next_poll = 0.0
        #: contract → key and time of a claim whose answer was lost. It is repeated: the same key gets the same jobs.
        self._unanswered: dict[str, tuple[UUID, float]] = {}
        #: Claims under way, key → contract and limit. The caller that takes one out owns the jobs that it wins.
        self._under_way: dict[UUID, tuple[str, int]] = {}
        self._polls_soon = False
        self.stopping = False

    def wake_up(self, contract: str) -> None:
        """Claim soon from this contract; poll soon where the name is not one of this worker's contracts."""
        if contract in self._contracts:
            self._may_be_due.add(contract)
            self._slots.changed.set()
        else:
            self.poll_soon()

    def poll_soon(self) -> None:
        """Poll as soon as no contract is known to have due jobs."""
        self._polls_soon = True
        self._slots.changed.set()

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Claim until `stopping` is set, or until `is_idle` and nothing is due."""
        delay = RetryDelay()
        while not self.stopping:
            if time.monotonic() >= self._next_poll or (self._polls_soon and not self._may_be_due):
                self._polls_soon = False
                await self._poll()
            if self._slots.free <= 0 or not self._may_be_due:
                # A job that ended during the poll may have made another one, which the poll did not see.
                if self._may_be_due or self._polls_soon or not is_idle():
                    await self._wait()
                elif await self._nothing_follows():
                    return
                continue
            if self._slots.free < self._slots.concurrency // 4:
                await asyncio.sleep(_GATHER_S)  # short jobs end together: one claim for the slots of all of them
            contract, share = self._next_contract()
            try:
                await self._claim(contract, share)
                delay.reset()
            except Exception as error:
                log = _log.warning if isinstance(error, TenureError) else _log.exception
                log("%s cannot claim jobs of contract %s, retrying: %s", self._worker.name, contract, error)
                self._may_be_due.add(contract)
                await delay.wait()

    def _next_contract(self) -> tuple[str, int]:
        """The contract to claim from next, and its share of the free slots.

        A contract with an unanswered claim goes first: the jobs that it may have won are leased already.
        """
        contract = next(name for name in [*self._unanswered, *self._turns] if name in self._may_be_due)
        share = -(-self._slots.free // len(self._may_be_due))
        self._may_be_due.discard(contract)
        del self._turns[contract]
        self._turns[contract] = None  # behind the others
        return contract, share

    async def _poll(self) -> None:
        """Ask which contracts have due jobs. The next poll comes after `poll_s` ± 25 %: workers do not poll together.

        It comes later where polls have become slow, for example because an open transaction keeps dead index entries.
        """
        now = time.monotonic()
        pause = self._poll_s * (0.75 + time.monotonic_ns() // 1_000 % 500 / 1_000)
        self._next_poll = now + pause
        try:
            self._may_be_due.update(await self._source.due(list(self._contracts), self._worker))
            self._next_poll = now + max(pause, min((time.monotonic() - now) / _POLL_SHARE, _LONGEST_PAUSE_S))
        except Exception as error:
            _log.debug("%s cannot poll for due jobs, retrying: %s", self._worker.name, error)

    async def _nothing_follows(self) -> bool:
        """Wait until the next nodes of flows are started whose jobs have ended, then poll; whether nothing is due.

        A report leaves a flow to the process that goes on with it at that moment, often upkeep beside this worker.
        """
        try:
            until = await self._source.catch_up_flows(None)
            while until is not None and not self.stopping:
                await asyncio.sleep(_FLOWS_PAUSE_S)
                until = await self._source.catch_up_flows(until)
        except Exception as error:
            _log.warning("%s cannot go on with flows before it ends: %s", self._worker.name, error)
        await self._poll()
        return not self._may_be_due and not self._polls_soon

    async def _wait(self) -> None:
        """Wait for a free slot, a wake-up or the time of the next poll."""
        self._slots.changed.clear()
        if self.stopping or (self._polls_soon and not self._may_be_due):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._next_poll - time.monotonic())):
                await self._slots.changed.wait()

    async def _claim(self, contract: str, share: int) -> None:
        # Of many slots half at a time: the database looks for the second half while the first half runs.
        limit = min(share, max(_WORTH_HALVING, -(-self._slots.concurrency // 2)), _LARGEST)
        is_repeat = contract in self._unanswered
        key, claimed_at = self._unanswered.pop(contract, (uuid4(), time.monotonic()))
        self._under_way[key] = (contract, limit)
        try:
            jobs = await self._source.claim(contract, self._worker, limit=limit, claim_key=key, is_repeat=is_repeat)
        except ConnectionLost:
            self._unanswered[contract] = (key, claimed_at)
            raise
        except StaleLease:  # the first answer was lost, and meanwhile the leases of its jobs too
            return
        finally:
            is_owner = self._under_way.pop(key, None) is not None
        if jobs and is_owner:
            self._slots.counts["claimed"] += len(jobs)
            self._slots.take(len(jobs))
            self._start_jobs(jobs, claimed_at)
        elif jobs:  # the watchdog repeated this claim while the loop was blocked; it did not get these jobs
            await self._source.report("hand_back", [HolderCall(job.held) for job in jobs])
        if is_full(jobs, limit):
            self._may_be_due.add(contract)

    def leases_under_way(self) -> list[float]:
        """For each claim under way, the lease of its contract in seconds; from any thread."""
        return [self._contracts[name].lease.default_ms / 1_000 for name, _ in list(self._under_way.values())]

    async def take_over(self, source: JobSource) -> list[Job]:
        """Repeat the claims under way and take their jobs, from another thread: the same keys get the same jobs."""
        jobs: list[Job] = []
        for key in list(self._under_way):
            if (claim := self._under_way.pop(key, None)) is not None:
                with contextlib.suppress(TenureError):  # it won nothing, or the leases end by themselves
                    contract, limit = claim
                    jobs += await source.claim(contract, self._worker, limit=limit, claim_key=key)
        return jobs
