"""Clients that work until the database goes away, go on when it is back, and remember what they were told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tenure.errors import ConnectionLost, Refused, StaleLease
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.postgres.store import Store
from tests.holder_calls import calls

#: A call that can be made again, and is then the same call.
Call = Callable[[Store], Awaitable[None]]

_LIVE_AT_MOST = 40


@dataclass
class History:
    """What the clients asked for and were told: calls by (verb, invoke | ok | unknown), and the answers."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    made: set[int] = field(default_factory=set)
    keys: dict[str, int] = field(default_factory=dict)
    succeeded: set[int] = field(default_factory=set)
    failed: set[tuple[int, int]] = field(default_factory=set)

    def unknown(self) -> int:
        """How many calls were never answered."""
        return sum(count for (_, told), count in self.calls.items() if told == "unknown")

    def answered(self) -> set[str]:
        """The verbs of which a call was answered."""
        return {verb for verb, told in self.calls if told == "ok"}


class Client:
    """One client of one contract, led by a seed; a call that was cut off is repeated with its own keys."""

    def __init__(self, contract: str, history: History, chance: random.Random) -> None:
        self.contract = contract
        self.history = history
        self._chance = chance
        self._pending: tuple[str, Call] | None = None
        self._live = 0

    async def work(self, store: Store, enough: asyncio.Event) -> None:
        """Go on until the database goes away, or it is enough."""
        while not enough.is_set():
            verb, call = self._pending or self._next()
            self._pending = (verb, call)
            self.history.calls[verb, "invoke"] += 1
            try:
                await call(store)
            except ConnectionLost:
                self.history.calls[verb, "unknown"] += 1
                if verb == "enqueue":
                    self._pending = None  # without a key it cannot be told whether it happened
                return
            self.history.calls[verb, "ok"] += 1
            if self._pending == (verb, call):
                self._pending = None

    def _next(self) -> tuple[str, Call]:
        if self._live < _LIVE_AT_MOST and self._chance.random() < 0.5:
            return self._enqueue() if self._chance.random() < 0.3 else self._enqueue_keyed()
        return self._claim()

    def _enqueue(self) -> tuple[str, Call]:
        jobs = [NewJob("t", contract=self.contract) for _ in range(self._chance.randint(1, 5))]

        async def call(store: Store) -> None:
            self._count(await store.enqueue_many(jobs), jobs)

        return "enqueue", call

    def _enqueue_keyed(self) -> tuple[str, Call]:
        jobs = [NewJob("t", contract=self.contract, key=uuid4().hex) for _ in range(self._chance.randint(1, 5))]

        async def call(store: Store) -> None:
            self._count(await store.enqueue_many(jobs), jobs)

        return "enqueue_keyed", call

    def _count(self, answers: list[Enqueued | Refused], jobs: list[NewJob]) -> None:
        for answer, job in zip(answers, jobs, strict=True):
            assert isinstance(answer, Enqueued), answer
            self.history.made.add(answer.job_id)
            self._live += 1
            if job.key is not None:
                self.history.keys[job.key] = answer.job_id

    def _claim(self) -> tuple[str, Call]:
        key, limit = uuid4(), self._chance.randint(1, 5)

        async def call(store: Store) -> None:
            try:
                jobs = await store.claim(self.contract, worker=self.contract, limit=limit, claim_key=key)
            except StaleLease:  # the claim that was cut off had won, but its jobs are gone
                return
            await store.report("start", calls([job.held for job in jobs]))
            if jobs:
                self._pending = self._finish(jobs)

        return "claim", call

    def _finish(self, jobs: list[Job]) -> tuple[str, Call]:
        held = [job.held for job in jobs]
        lot = self._chance.random()
        if lot < 0.6:

            async def succeed(store: Store) -> None:
                outcomes = await store.report("succeed", calls(held, results=[{"n": one.id} for one in held]))
                self.history.succeeded |= {each.job_id for each in outcomes if isinstance(each, Moved)}
                self._live -= len(held)

            return "succeed", succeed
        failures = [Failure("no luck", type="TransientError", retryable=lot < 0.9)] * len(held)

        async def fail(store: Store) -> None:
            outcomes = await store.report("fail", calls(held, failures=failures))
            self.history.failed |= {(each.job_id, each.claims) for each in outcomes if isinstance(each, Moved)}

        return "fail", fail


async def drain(store: Store, contract: str, hurry: Callable[[], Any]) -> None:
    """End every job of a contract, as upkeep and a last worker would; `hurry` lets every wait be over."""
    for _ in range(1000):
        hurry()
        moved: list[Any] = [*await store.reap(contract), *await store.promote(contract), *await store.settle(contract)]
        hurry()
        jobs = await store.claim(contract, worker="last", limit=500)
        await store.report("start", calls([job.held for job in jobs]))
        await store.report("succeed", calls([job.held for job in jobs]))
        if not jobs and not moved:
            return
    raise AssertionError(f"{contract} never came to an end")
