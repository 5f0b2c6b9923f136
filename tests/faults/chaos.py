"""Chaos: faults of every kind at once on workers that run jobs under all contracts, until each hit often enough."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tenure.app import App
from tenure.errors import CannotConnect, ConnectionLost, Refused
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tenure.task import Call, Task
from tests.faults import program
from tests.faults.clock import FAKETIME, faked, remove_traces, set_ahead
from tests.faults.database_network import DatabaseNetwork
from tests.faults.fleet import LONG_LEASES, Fleet, one_at_work
from tests.faults.kills import again
from tests.harness import Harness
from tests.races.sessions import CONTRACTS
from tests.worker.working import until

_TASKS: list[Task[[float], Any]] = [
    program.on_the_loop, program.in_a_thread, program.unlucky_at_first, program.with_an_effect, program.hopeless,
]  # fmt: skip
_WEIGHTS = [6, 4, 4, 4, 1]
_LIVE_AT_MOST = 30

_BACKENDS = """
select count(pg_terminate_backend(pid)) from (
    select pid from pg_stat_activity
    where application_name like 'tenure%%' and datname = current_database() order by random() limit %s
) as backend
"""
_HELD_BY = "select id, claims from tenure.job where lease_owner = %s and role in ('leased', 'active')"
_STILL_HELD = """
select count(*) from tenure.job join unnest(%s::bigint[], %s::int[]) as held (id, claims) using (id, claims)
where role in ('leased', 'active')
"""
_STALE = "select count(*) from tenure.refusal where kind = 'stale' and job_id = any(%s)"
_RUNNING = """
select id, claims from tenure.job where contract = 'reliability' and state = 'running' and claims < max_attempts
order by random() limit 1
"""


@dataclass
class Chaos:
    """The workers, the jobs that they get, and one function for each kind of fault."""

    app: App
    store: Store
    db: Harness
    fleet: Fleet
    network: DatabaseNetwork
    chance: random.Random
    directory: Path
    #: Whether leases run out by themselves; else the test lets those of lost workers be over.
    waits: bool
    ids: list[int] = field(default_factory=list)
    #: How often each kind of fault hit something.
    did: Counter[str] = field(default_factory=Counter)
    _pids: list[int] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)
    _offsets: dict[str, Path] = field(default_factory=dict)
    _over: bool = False

    def begin(self) -> str:
        """Start a worker; its clock is up to an hour wrong. Its name."""
        offset = self.directory / f"offset-{uuid4().hex[:8]}"
        if FAKETIME:
            set_ahead(offset, self._some_offset())
        name = self.fleet.begin(**(faked(offset) if FAKETIME else {}))
        self._offsets[name] = offset
        self._pids.append(self.fleet.workers[name].pid)
        return name

    def clean(self) -> None:
        """Remove what killed workers with moved clocks left behind."""
        for pid in self._pids:
            remove_traces(pid)

    async def run(self, seconds: float, least: int, jobs: int) -> None:
        """Make jobs and faults for this long, until each fault hit `least` times and there were so many jobs."""
        begun = time.monotonic()
        faults = [self.kill, self.freeze, self.reset_connections, self.end_backends, self.ask_for_the_way_back]
        if FAKETIME:
            faults.append(self.move_clock)
        feeding = asyncio.create_task(self._feed(jobs))
        hitting = [asyncio.create_task(self._repeat(fault, begun + seconds, least)) for fault in faults]
        try:
            # The first of them that fails, fails the test.
            all_hit: asyncio.Future[Any] = asyncio.gather(*hitting)
            await asyncio.wait([feeding, all_hit], return_when=asyncio.FIRST_COMPLETED)
            self._over = True
            await asyncio.gather(all_hit, feeding)
        finally:
            for task in (feeding, *hitting):
                task.cancel()

    async def _repeat(self, fault: Callable[[], Awaitable[None]], until_s: float, least: int) -> None:
        hits = 0
        while hits < least or time.monotonic() < until_s:
            await asyncio.sleep(self.chance.uniform(0, 5 if self.waits else 1))
            before = self.did[fault.__name__]
            await fault()
            hits += self.did[fault.__name__] - before

    async def _feed(self, jobs: int) -> None:
        while not self._over or len(self.ids) < jobs:
            if self.db.value("select count(*) from tenure.job") < _LIVE_AT_MOST:
                made = await again(self.app.enqueue_many, list(self._calls(10)))
                assert isinstance(made, list)
                self.ids += made
            await asyncio.sleep(0.1)

    def _calls(self, count: int) -> Iterator[Call[object]]:
        others = [name for name in CONTRACTS if name != "reliability"]
        for _ in range(count):
            contract = "reliability" if self.chance.random() < 0.5 else self.chance.choice(others)
            (task,) = self.chance.choices(_TASKS, _WEIGHTS)
            call = task.options(contract=contract, key=uuid4().hex)
            yield call.call(round(self.chance.uniform(0.01, 0.4), 3))

    async def _victim(self) -> str:
        """A worker that runs a handler, which no other fault ends or freezes from now on."""
        name = await one_at_work(self.db, self.fleet, self.chance, self._away)
        self._away.add(name)
        return name

    async def kill(self) -> None:
        """Kill -9 a worker that runs a handler, and start another; on a slow machine that takes longer than a job."""
        name = await self._victim()
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        self.fleet.kill(name)
        new = self.begin()
        self.did["kill"] += 1
        if not self.waits:
            self.fleet.bury(self.db)
        await until(lambda: " works on " in self.fleet.said(new), 120)

    async def freeze(self) -> None:
        """Freeze a worker that runs a handler: past its leases, so that its late calls are refused, or for a while."""
        name = await self._victim()
        self.fleet.freeze(name)
        held = self.db.sql(_HELD_BY, name)
        ids, claims = [row["id"] for row in held], [row["claims"] for row in held]
        if self.waits and self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.uniform(0, 10))
            self.fleet.thaw(name)
            self.did["frozen for a while"] += 1
        else:
            self.db.expire(*ids)
            await until(lambda: self.db.value(_STILL_HELD, ids, claims) == 0, 120)
            self.fleet.thaw(name)
            # A worker that finds its leases over by its own clock ends its handlers, and makes no late call.
            self.did["freeze"] += await self._comes(lambda: self.db.value(_STALE, ids) > 0, 10)
        self._away.discard(name)

    async def _comes(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait so long for it; whether it came true."""
        with suppress(AssertionError):
            await until(true, seconds)
        return true()

    async def reset_connections(self) -> None:
        """Reset some of the workers' connections to the database."""
        opened = self.network.opened
        hit = self.network.reset(self.chance.uniform(0.1, 1.0), self.chance)
        if hit:
            await until(lambda: self.network.opened > opened, 60)
            self.did["reset_connections"] += 1

    async def end_backends(self) -> None:
        """Let the server end some sessions of workers and of the application."""
        self.did["end_backends"] += self.db.value(_BACKENDS, self.chance.randint(1, 6)) > 0

    async def move_clock(self) -> None:
        """Let the clock of a worker jump by up to an hour, ahead or back."""
        name = self.chance.choice(sorted(self.fleet.workers))
        set_ahead(self._offsets[name], self._some_offset())
        self.did["move_clock"] += 1

    def _some_offset(self) -> int:
        return self.chance.choice((-1, 1)) * self.chance.randint(120, 3_600)

    async def ask_for_the_way_back(self) -> None:
        """Request earlier states for a running job; every such request is refused."""
        for row in self.db.sql(_RUNNING):
            for target in ("assigned", "queued"):
                with suppress(Refused, ConnectionLost, CannotConnect):  # or its backend was ended
                    answer = await self.store.transition(row["id"], target, actor="chaos")
                    # A job that came to this state by itself is not moved.
                    assert not isinstance(answer, Moved), f"a request moved job {row['id']} from running to {target}"
            self.did["ask_for_the_way_back"] += self.db.value(_STILL_HELD, [row["id"]], [row["claims"]])


@contextmanager
def chaos(
    app: App, store: Store, db: Harness, directory: Path, *, seed: int, workers: int, waits: bool
) -> Iterator[Chaos]:
    """Workers behind a network, ready for faults; nothing of them is left afterwards."""
    leases = dict(LONG_LEASES)
    if waits:
        leases |= {name: "5000" for name in LONG_LEASES if name.endswith("LEASE_MS")}
        leases |= {"TENURE_RELIABILITY_LEASE_MS": "30000", "TENURE_RELIABILITY_HEARTBEAT_MS": "10000"}
    options = ("--concurrency", "6")
    with DatabaseNetwork(db.dsn) as network, ExitStack() as at_last:
        fleet = Fleet(network.dsn, directory, *options, TENURE_TEST_WITNESSES=db.dsn, **leases)
        made = Chaos(app, store, db, fleet, network, random.Random(seed), directory, waits)
        at_last.callback(made.clean)
        at_last.enter_context(fleet)
        for _ in range(workers):
            made.begin()
        yield made
