"""Lines: those who claim the same jobs stand in one, and are served together.

A line is a contract's jobs of the same queues, types and tenant. Claims that come while one is under way are the next
one. Who waits for a job is woken by the bell, or by a look that the line takes once in a while for all who stand in it:
a thousand idle workers cost the database one small question a second.
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

from tenure.coalesce import Coalescer
from tenure.errors import Refused, TenureError
from tenure.intake import token
from tenure.job import Job
from tenure.marks import Marks, is_full
from tenure.postgres.claiming import Claimer
from tenure.postgres.store import Store

#: How often a line in which somebody waits looks for jobs that nobody told of.
_LOOK_S = 1.0
#: A line with a filter is rung no oftener: most wake-ups are for others.
_RING_S = 0.1
#: Who stood in a line for so long, while the database was slow, is asked whether they are still there.
_PATIENT_S = 0.5
#: So many callers, and so many jobs, go in one claim: dealing out costs callers times jobs.
_CALLERS, _JOBS = 100, 1_000
#: So many lines are kept; whoever asks for ever new queues must not fill the memory.
_LINES = 1_000
#: So many wake-ups are remembered for those who ask what they missed.
_REMEMBERED = 10_000


class Which(NamedTuple):
    """What a line is for."""

    contract: str
    queues: tuple[str, ...]
    types: tuple[str, ...] | None = None
    tenant: str | None = None


class _Asked(NamedTuple):
    """A claim that waits for its turn: since when, and what tells whether anybody still waits for it."""

    claimer: Claimer
    at: float
    is_over: Callable[[], Awaitable[bool]]


class Line:
    """Claims of the same jobs."""

    def __init__(self, store: Store, which: Which) -> None:
        self.which = which
        self._store = store
        self._marks = Marks()
        # One at a time: the marks are one caller's, and what waits meanwhile goes together.
        self._claims: Coalescer[_Asked, list[Job]] = Coalescer(self._serve, at_once=1)
        self._rung = asyncio.Event()
        self._inside = self._waiting = 0
        self._looking: asyncio.Task[None] | None = None
        self._rung_at = 0.0
        self._rings_later = False

    @property
    def is_empty(self) -> bool:
        """Whether nobody stands here."""
        return not self._inside

    async def rest(self) -> None:
        """Wait until all who asked are answered."""
        await self._claims.rest()

    def ring(self) -> None:
        """There may be jobs: let all who wait ask again."""
        soon = self._rung_at + _RING_S - time.monotonic()
        if soon <= 0 or (self.which.types is None and self.which.tenant is None):
            self._ring()
        elif not self._rings_later:
            self._rings_later = True
            asyncio.get_running_loop().call_later(soon, self._ring)

    def found(self) -> None:
        """Somebody who looked from the beginning says that something is due: the next claim begins there."""
        self._marks.anew()

    def _ring(self) -> None:
        self._rung_at, self._rings_later = time.monotonic(), False
        self._rung.set()
        self._rung = asyncio.Event()

    async def claim(self, claimer: Claimer, wait_s: float, is_over: Callable[[], Awaitable[bool]]) -> list[Job]:
        """Take jobs; where there are none, wait for some as long as was asked and it is not over."""
        until, first = time.monotonic() + wait_s, True
        self._inside += 1
        try:
            while True:
                rung = self._rung  # before asking: what comes from now on rings it
                left = until - time.monotonic()
                # In between it is enough to look what another call with the same key has won meanwhile.
                asked = _Asked(replace(claimer, repeats=first or left <= 0), time.monotonic(), is_over)
                jobs = await self._claims.ask(asked)
                if jobs or left <= 0 or await is_over():
                    return jobs
                first = False
                await self._wait(rung, left)
                if await is_over():
                    return []
        finally:
            self._inside -= 1

    async def _wait(self, rung: asyncio.Event, seconds: float) -> None:
        self._waiting += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await rung.wait()
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        """Look for jobs from time to time, for all who wait; the last of them ends it."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                if not self._waiting:
                    return
                with contextlib.suppress(TenureError):  # who waits hears of it when they ask
                    which = self.which
                    if await self._store.due([which.contract], which.queues, tenant=which.tenant):
                        self.found()
                        self.ring()
        finally:
            self._looking = None

    async def _serve(self, asked: Sequence[_Asked]) -> list[list[Job] | TenureError]:
        """What each of these gets; who had to stand here for long may have left, and gets nothing."""
        answers: list[list[Job] | TenureError] = [[] for _ in asked]
        there: list[int] = []
        for n, one in enumerate(asked):
            try:
                if time.monotonic() - one.at < _PATIENT_S or not await one.is_over():
                    there.append(n)
            except TenureError as refused:
                answers[n] = refused
        for n, answer in zip(there, await self._claim([asked[n].claimer for n in there]), strict=True):
            answers[n] = answer
        return answers

    async def _claim(self, claimers: Sequence[Claimer]) -> list[list[Job] | TenureError]:
        """What each of these gets; what goes wrong with one turn is told to those who were in it alone."""
        answers: dict[int, list[Job] | TenureError] = {}
        is_empty = False
        turns = deque(_turns(claimers))
        while turns:
            turn = turns.popleft()
            if is_empty and not any(claimers[n].repeats for n in turn):
                answers |= {n: [] for n in turn}  # the turn before them did not get what it wanted
                continue
            try:
                dealt: Sequence[list[Job] | Refused] = await self._store.claim_together(
                    self.which.contract, self.which.queues, [claimers[n] for n in turn],
                    types=self.which.types, tenant=self.which.tenant, marks=self._marks,
                )  # fmt: skip
            except TenureError as error:
                answers |= dict.fromkeys(turn, error)
                continue
            answers |= zip(turn, dealt, strict=True)
            won = [job for part in dealt if isinstance(part, list) for job in part]
            is_empty = not is_full(won, sum(claimers[n].limit for n in turn))
            if won and not is_empty and (left := [n for n in turn if answers[n] == []]):
                turns.append(left)  # the jobs of those before them were so large that theirs did not go along
        return [answers[n] for n in range(len(claimers))]


def _turns(claimers: Sequence[Claimer]) -> list[list[int]]:
    """Claims that go together: no key twice (a repeat waits for what it repeats), and no more than one batch takes."""
    turns: list[tuple[list[int], set[object], int]] = []
    for n, claimer in enumerate(claimers):
        key = n if claimer.key is None else token(claimer.key)
        for place, (members, keys, wanted) in enumerate(turns):
            if key not in keys and len(members) < _CALLERS and wanted + claimer.limit <= _JOBS:
                members.append(n)
                turns[place] = (members, keys | {key}, wanted + claimer.limit)
                break
        else:
            turns.append(([n], {key}, claimer.limit))
    return [members for members, _, _ in turns]


class Bell:
    """Hears wake-ups: wakes the lines that they concern, and remembers them for remote workers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[Which, Line] = {}
        self._boot = uuid4().hex[:12]
        self._heard: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED)
        self._count = 0
        self._rung = asyncio.Event()
        self.is_over = False

    def line(self, which: Which) -> Line:
        """The line of those who claim this."""
        found = self._lines.get(which)
        if found is None:
            if len(self._lines) >= _LINES:
                self._lines = {known: line for known, line in self._lines.items() if not line.is_empty}
            found = self._lines[which] = Line(self._store, which)
        return found

    def heard(self, contract: str, queue: str) -> None:
        """A wake-up: there may be jobs of this contract and queue, where an empty name stands for any."""
        self._heard.append((contract, queue))
        self._count += 1
        self._rung.set()
        self._rung = asyncio.Event()
        for which, line in list(self._lines.items()):
            if contract in ("", which.contract) and (not queue or queue in which.queues):
                line.ring()

    def found(self, contracts: Iterable[str]) -> None:
        """Somebody looked, and these contracts have something due: claims of theirs begin at the beginning."""
        named = set(contracts)
        for which, line in self._lines.items():
            if which.contract in named:
                line.found()

    async def rest(self) -> None:
        """Wait until all who asked are answered."""
        for line in list(self._lines.values()):
            await line.rest()

    def close(self) -> None:
        """Let all who wait go, now and from now on."""
        self.is_over = True
        self.heard("", "")
        for line in list(self._lines.values()):
            line._ring()  # also those that would be rung later

    @property
    def cursor(self) -> str:
        """Where the wake-ups end that were heard so far."""
        return f"{self._boot}.{self._count}"

    async def since(self, cursor: str | None, wait_s: float) -> list[tuple[str, str]]:
        """What was heard since; who was elsewhere, or away for too long, hears that it may be anything."""
        boot, _, count = (cursor or "").partition(".")
        seen = int(count) if count.isdecimal() and len(count) < 19 else -1
        if boot != self._boot or not self._count - len(self._heard) <= seen <= self._count:
            return [("", "")]
        until = time.monotonic() + wait_s
        while seen == self._count and not self.is_over and (left := until - time.monotonic()) > 0:
            rung = self._rung
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await rung.wait()
        new = self._count - seen
        return list(dict.fromkeys(islice(reversed(self._heard), new)))[::-1]
