"""Long polls: claims of the same jobs are grouped, batched, and woken together when jobs arrive.

A claim group is a contract with the same queues, types, tenant and options. Claims that arrive while a statement is
under way form the next batch. A claim that waits for a job is woken by a wake-up, or by a check that its group makes
once a second for all of its claims: a thousand idle workers cost the database one small query per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple
from uuid import uuid4

from tenure.client.batching import Batcher
from tenure.errors import Refused, TenureError
from tenure.jobs.claim_cursor import ClaimCursor, is_full
from tenure.jobs.job import Job
from tenure.jobs.job_type import JobType
from tenure.jobs.validation import parse_uuid
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store

#: A group with waiting claims checks for due jobs this often, in seconds: wake-ups may be lost.
_POLL_S = 1.0
#: A group with a type or tenant filter wakes at most once in this many seconds: most wake-ups are for others.
_MIN_WAKE_S = 0.1
#: A claim that waited this many seconds for its batch, because the database is slow, is checked for its client.
_CHECK_CLIENT_S = 0.5
#: The largest number of claims, and of jobs, in one statement: its cost grows with claims times jobs.
_CLAIMS_PER_STATEMENT, _JOBS_PER_STATEMENT = 100, 1_000
#: The largest number of groups before empty ones are dropped. Ever new queue names must not fill the memory.
_MAX_GROUPS = 1_000
#: The number of wake-ups that are kept for clients that poll for them.
_MAX_WAKEUPS = 10_000


class ClaimFilter(NamedTuple):
    """Which jobs a group claims."""

    contract: str
    queues: tuple[str, ...]
    types: tuple[str, ...] | None = None
    tenant: str | None = None
    #: The type settings of the workers' code; None: the stored ones.
    options: tuple[JobType, ...] | None = None


class _PendingClaim(NamedTuple):
    """A claim that waits for its batch; `is_over` tells whether its client has gone, or the dispatcher stops."""

    claimer: Claimer
    since: float
    is_over: Callable[[], Awaitable[bool]]


class ClaimGroup:
    """Claims of the same jobs."""

    def __init__(self, store: Store, claim_filter: ClaimFilter) -> None:
        self.filter = claim_filter
        self._store = store
        self._cursor = ClaimCursor()
        # One statement at a time: it moves the cursor, and the claims that arrive meanwhile form the next batch.
        self._batcher: Batcher[_PendingClaim, list[Job]] = Batcher(self._claim_present, at_once=1)
        self._wakeup = asyncio.Event()
        self._claims = self._waiting = 0
        self._polling: asyncio.Task[None] | None = None
        self._woken_at = 0.0
        self._wakes_later = False

    @property
    def is_empty(self) -> bool:
        """Whether the group has no claims."""
        return not self._claims

    async def flush(self) -> None:
        """Wait until all claims under way are answered."""
        await self._batcher.flush()

    def wake(self) -> None:
        """There may be jobs: let all waiting claims try again."""
        delay = self._woken_at + _MIN_WAKE_S - time.monotonic()
        if delay <= 0 or (self.filter.types is None and self.filter.tenant is None):
            self.wake_now()
        elif not self._wakes_later:
            self._wakes_later = True
            asyncio.get_running_loop().call_later(delay, self.wake_now)

    def wake_now(self) -> None:
        """Let all waiting claims try again, also right after the last time."""
        self._woken_at, self._wakes_later = time.monotonic(), False
        self._wakeup.set()
        self._wakeup = asyncio.Event()

    def reset_cursor(self) -> None:
        """A check from the beginning found due jobs: the next claim begins there."""
        self._cursor.restart()

    async def claim(self, claimer: Claimer, wait_s: float, is_over: Callable[[], Awaitable[bool]]) -> list[Job]:
        """Claim jobs; when there are none, wait for some until the time is over or the claim is cancelled."""
        until, first = time.monotonic() + wait_s, True
        self._claims += 1
        try:
            while True:
                wakeup = self._wakeup  # before the claim: what arrives from now on sets it
                left = until - time.monotonic()
                # In between it is enough to look what another call with the same key has claimed meanwhile.
                once = replace(claimer, repeats=first or left <= 0)
                jobs = await self._batcher.ask(_PendingClaim(once, time.monotonic(), is_over))
                if jobs or left <= 0 or await is_over():
                    return jobs
                first = False
                await self._wait(wakeup, left)
                if await is_over():
                    return []
        finally:
            self._claims -= 1

    async def _wait(self, wakeup: asyncio.Event, seconds: float) -> None:
        self._waiting += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await wakeup.wait()
        finally:
            self._waiting -= 1

    async def _poll(self) -> None:
        """Check for due jobs once a second, for all waiting claims; ends with the last of them."""
        try:
            while True:
                await asyncio.sleep(_POLL_S)
                if not self._waiting:
                    return
                with contextlib.suppress(TenureError):  # the claims get the error when they try again
                    contract, queues, types, tenant, _ = self.filter
                    if await self._store.due([contract], queues, types=types, tenant=tenant):
                        self.reset_cursor()
                        self.wake()
        finally:
            self._polling = None

    async def _claim_present(self, pending: Sequence[_PendingClaim]) -> list[list[Job] | TenureError]:
        """The jobs of each claim. A claim that waited long gets none if its client has gone."""
        answers: list[list[Job] | TenureError] = [[] for _ in pending]
        present: list[int] = []
        for n, claim in enumerate(pending):
            try:
                if time.monotonic() - claim.since < _CHECK_CLIENT_S or not await claim.is_over():
                    present.append(n)
            except TenureError as refused:
                answers[n] = refused
        for n, answer in zip(present, await self._claim([pending[n].claimer for n in present]), strict=True):
            answers[n] = answer
        return answers

    async def _claim(self, claimers: Sequence[Claimer]) -> list[list[Job] | TenureError]:
        """The jobs of each claim; an error of one statement goes only to the claims of that statement."""
        answers: dict[int, list[Job] | TenureError] = {}
        is_empty = False
        statements = deque(group_claims(claimers, _CLAIMS_PER_STATEMENT))
        while statements:
            members = statements.popleft()
            if is_empty and not any(claimers[n].repeats for n in members):
                answers |= {n: [] for n in members}  # the statement before found fewer jobs than it wanted
                continue
            try:
                shares: Sequence[list[Job] | Refused] = await self._store.claim_for_many(
                    self.filter.contract, self.filter.queues, [claimers[n] for n in members], types=self.filter.types,
                    tenant=self.filter.tenant, cursor=self._cursor, declared=self.filter.options,
                )  # fmt: skip
            except TenureError as error:
                answers |= dict.fromkeys(members, error)
                continue
            answers |= zip(members, shares, strict=True)
            jobs = [job for share in shares if isinstance(share, list) for job in share]
            is_empty = not is_full(jobs, sum(claimers[n].limit for n in members))
            if jobs and not is_empty and (left := [n for n in members if answers[n] == []]):
                statements.append(left)  # the other claims' jobs were so large that theirs did not fit
        return [answers[n] for n in range(len(claimers))]


def group_claims(claimers: Sequence[Claimer], largest: int) -> list[list[int]]:
    """Claims that share a statement: no key twice (a repeat waits for the first), and within the limits."""
    groups: list[tuple[list[int], set[object], int]] = []
    for n, claimer in enumerate(claimers):
        key = n if claimer.key is None else parse_uuid(claimer.key)
        for place, (members, keys, jobs) in enumerate(groups):
            if key not in keys and len(members) < largest and jobs + claimer.limit <= _JOBS_PER_STATEMENT:
                members.append(n)
                keys.add(key)
                groups[place] = (members, keys, jobs + claimer.limit)
                break
        else:
            groups.append(([n], {key}, claimer.limit))
    return [members for members, _, _ in groups]


class WakeupRouter:
    """Passes wake-ups on to the claim groups that they concern, and keeps them for remote workers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[ClaimFilter, ClaimGroup] = {}
        self._boot = uuid4().hex[:12]
        self._wakeups: deque[tuple[str, str]] = deque(maxlen=_MAX_WAKEUPS)
        self._count = 0
        self._arrival = asyncio.Event()
        self.is_closed = False

    def group(self, claim_filter: ClaimFilter) -> ClaimGroup:
        """The group of the claims with this filter."""
        found = self._groups.get(claim_filter)
        if found is None:
            if len(self._groups) >= _MAX_GROUPS:
                self._groups = {known: group for known, group in self._groups.items() if not group.is_empty}
            found = self._groups[claim_filter] = ClaimGroup(self._store, claim_filter)
        return found

    def publish(self, contract: str, queue: str) -> None:
        """A wake-up: there may be jobs of this contract and queue; an empty name means any."""
        self._wakeups.append((contract, queue))
        self._count += 1
        self._arrival.set()
        self._arrival = asyncio.Event()
        for wanted, group in list(self._groups.items()):
            if contract in ("", wanted.contract) and (not queue or queue in wanted.queues):
                group.wake()

    def reset_cursors(self, contracts: Iterable[str]) -> None:
        """A check found due jobs of these contracts: their next claims begin at the beginning."""
        due = set(contracts)
        for wanted, group in self._groups.items():
            if wanted.contract in due:
                group.reset_cursor()

    async def flush(self) -> None:
        """Wait until all claims under way are answered."""
        for group in list(self._groups.values()):
            await group.flush()

    def close(self) -> None:
        """End all waits, now and from now on."""
        self.is_closed = True
        self.publish("", "")
        for group in list(self._groups.values()):
            group.wake_now()  # also those that would wake later

    @property
    def cursor(self) -> str:
        """The place after the last wake-up so far."""
        return f"{self._boot}.{self._count}"

    async def read(self, cursor: str | None, wait_s: float) -> list[tuple[str, str]]:
        """The wake-ups after a cursor; for a cursor of another dispatcher, or too old, one that means any job."""
        boot, _, count = (cursor or "").partition(".")
        position = int(count) if count.isdecimal() and len(count) < 19 else -1
        if boot != self._boot or not self._count - len(self._wakeups) <= position <= self._count:
            return [("", "")]
        until = time.monotonic() + wait_s
        while position == self._count and not self.is_closed and (left := until - time.monotonic()) > 0:
            arrival = self._arrival
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await arrival.wait()
        new = self._count - position
        return list(dict.fromkeys(islice(reversed(self._wakeups), new)))[::-1]
