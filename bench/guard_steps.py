"""The verbs of the kernel, one after the other, on a used table, with the counted work of each.

Part of `./dev bench guard`; `statement_counts.py` describes the counting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

import tenure
from bench.kernel import FILL, one
from bench.statement_counts import SETTINGS, Log, Second, Work, counted, watched
from bench.verify import fill
from tenure.embedded import Cluster
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.holder_calls import calls

T = TypeVar("T")
Figures = dict[str, Any]

ROWS = 20_000
LIVES = 500
_PAYLOAD = {"to": "somebody@example.org", "subject": "hello", "n": 7}
_FAILURE = Failure("the other side said no", type="TransientError", code="NO", retryable=True)
_ROLES = """
select array_agg((role, n)::text order by role) from (select role, count(*) as n from {} group by role) as one
"""


@contextmanager
def server(directory: Path, programs: Path | None = None) -> Iterator[Course]:
    """A server of its own with a filled database, ready for a course."""
    with Cluster(directory, binaries=programs, settings=SETTINGS) as cluster:
        migrate(_database(cluster.dsn, "fresh"))
        filled = _database(cluster.dsn, "filled", "fresh")
        fill(filled, ROWS)
        with psycopg.connect(filled, autocommit=True) as connection:
            connection.execute(FILL.format(priority=5, due="now()", count=ROWS).encode())
            connection.execute("vacuum analyze")
        yield Course(cluster.dsn, cluster.directory / "log")


def _database(server: str, name: str, template: str = "template1") -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name} template {template}".encode())
    return make_conninfo(server, dbname=name)


@dataclass
class Seen:
    """What was counted: work by step, and by query what its plans are made of."""

    work: dict[str, Figures] = field(default_factory=dict)
    plans: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, jobs: int, work: Work) -> None:
        """Note what a step did."""
        self.work[name] = {
            "jobs": jobs, "statements": work.statements.total(), "rows": round(work.rows / jobs, 2),
            "entries": round(work.entries / jobs, 2), "pages": round(work.pages / jobs, 2),
            "wal_bytes": round(work.wal / jobs),
        }  # fmt: skip
        for query, plan in work.plans.items():
            self.plans[query] = sorted(plan.union(self.plans.get(query, ())))


class Course:
    """The verbs in turn, on two copies of a database."""

    def __init__(self, server: str, log: Path) -> None:
        self._server, self._log = server, Log(log)
        self.seen, self._copies = Seen(), 0

    @property
    def version(self) -> int:
        """The server's major version."""
        with psycopg.connect(self._server) as connection:
            return int(one(connection, "show server_version_num")) // 10_000

    async def run(self, prepare: LiteralString | None = None, *, briefly: bool = False) -> Seen:
        """Every verb on fresh copies, to which something may be done before; briefly: jobs made, claimed, finished."""
        self.seen = Seen()
        async with self._pair("filled") as store:
            if prepare is not None:
                self.both(prepare)
            await self._movers(store)
            if not briefly:
                await self._keepers(store)
                await self._three_hops(store)
                await self._readers(store)
        if not briefly:
            await self._life()
            async with self._pair("fresh") as store:
                await self._drained(store)
        return self.seen

    @asynccontextmanager
    async def _pair(self, template: str) -> AsyncIterator[Store]:
        """Two copies of a database, and a store on the first one; refuses when the second one did not follow."""
        self._copies += 1
        # A database is not dropped before the end: that would be a checkpoint, after which more is written.
        names = (f"{which}_{self._copies}" for which in ("first", "second"))
        self._first, second = (_database(self._server, name, template) for name in names)
        self._second = Second(second)
        try:
            # No wake-ups: nobody waits for those, and they would be counted with whoever happens to run.
            async with Store.open(watched(self._first), connections=1, wake=False) as store:
                yield store
            self._are_equal(second)
        finally:
            self._second.close()

    def both(self, query: LiteralString) -> None:
        """Do something to both databases that is not counted."""
        with psycopg.connect(self._first, autocommit=True) as connection:
            connection.execute(query)
        self._second.run(query)

    async def _step(self, name: str | None, jobs: int, call: Callable[[], Awaitable[T]]) -> T:
        """Run a verb on the first database, follow on the second, and keep what was counted there; with a name."""
        self._log.skip()
        answer = await call()
        work = self._second.follow(self._log.read())
        if name is not None:
            self.seen.add(name, jobs, work)
        return answer

    async def _movers(self, store: Store) -> None:
        """Jobs are made, claimed and finished, one and many."""
        await self._step(None, 1, lambda: self._one_life(store))  # the registry is loaded, catalogs are known
        for count in (1, 100, 1_000):
            new = [NewJob("noop", _PAYLOAD, queue="other") for _ in range(count)]
            await self._step(f"enqueue {count}", count, lambda new=new: store.enqueue_many(new))  # type: ignore[misc]
        for count in (1, 100, 500):
            jobs = await self._claimed(store, f"claim {count}", count)
            held, results = [job.held for job in jobs], [{"ok": True}] * count
            await self._step(
                f"succeed {count}", count,
                lambda held=held, results=results: store.report("succeed", calls(held, results=results)),  # type: ignore[misc]
            )  # fmt: skip

    async def _keepers(self, store: Store) -> None:
        """What becomes of jobs that are held."""
        held = [job.held for job in await self._claimed(store, None, 100)]
        await self._step("heartbeat 100", 100, lambda: store.report("heartbeat", calls(held)))
        await self._step("fail 100", 100, lambda: store.report("fail", calls(held, failures=[_FAILURE] * 100)))
        await self._claimed(store, None, 100)
        await self._step("reap nothing", 1, lambda: store.reap("standard"))
        self.both("update tenure.job set lease_expires_at = now() - interval '1 minute' where role = 'active'")
        assert len(await self._step("reap 100", 100, lambda: store.reap("standard"))) == 100

    async def _drained(self, store: Store) -> None:
        """On a table that was empty when upkeep vacuumed it, which the planner takes for empty from then on."""
        for step in ("", "drained, "):

            def name(verb: str, step: str = step) -> str | None:
                return f"{step}{verb} 500" if step else None

            new = [NewJob("noop", _PAYLOAD) for _ in range(500)]
            await self._step(name("enqueue"), 500, lambda new=new: store.enqueue_many(new))  # type: ignore[misc]
            held = [job.held for job in await self._claimed(store, name("claim"), 500)]
            await self._step(name("heartbeat"), 500, lambda held=held: store.report("heartbeat", calls(held)))  # type: ignore[misc]
            await self._step(name("succeed"), 500, lambda held=held: store.report("succeed", calls(held)))  # type: ignore[misc]
            self.both("vacuum (index_cleanup on, truncate false) tenure.job")
            # What others wait for meanwhile, and nobody should read.
            await self._step(None, 1, lambda: store.enqueue_many([NewJob("noop", queue="other")] * 2_000))

    async def _one_life(self, store: Store) -> None:
        for contract in ("standard", "reliability"):
            await store.enqueue(NewJob("noop", _PAYLOAD, contract, queue="warm"))
            (job,) = await store.claim(contract, ["warm"], worker="guard")
            await store.start(job.held)
            await store.heartbeat(job.held)
            await store.succeed(job.held)
            await store.reap(contract)
        await store.watch.find_pending()

    async def _claimed(self, store: Store, name: str | None, count: int, contract: str = "standard") -> list[Job]:
        jobs = await self._step(name, count, lambda: store.claim(contract, worker="guard", limit=count))
        assert len(jobs) == count, f"{len(jobs)} of {count} claimed"
        return jobs

    async def _three_hops(self, store: Store) -> None:
        """`reliability`: assigned, then running, and a log with indexes of its own."""
        new = [NewJob("noop", _PAYLOAD, "reliability") for _ in range(100)]
        await self._step("reliability, enqueue 100", 100, lambda: store.enqueue_many(new))
        jobs = await self._claimed(store, "reliability, claim 100", 100, "reliability")
        held = [job.held for job in jobs]
        await self._step("reliability, start 100", 100, lambda: store.report("start", calls(held)))
        await self._step("reliability, heartbeat 100", 100, lambda: store.report("heartbeat", calls(held)))
        await self._step("reliability, succeed 100", 100, lambda: store.report("succeed", calls(held)))

    async def _readers(self, store: Store) -> None:
        """What workers, upkeep and people ask, again and again; figures for each question."""
        await self._step("due", 1, lambda: store.due(["standard"], ["default"]))
        await self._step("pressing", 1, store.watch.find_pending)
        await self._step("queues", 1, store.queues.list)
        await self._step("list, first page", 1, lambda: store.find(limit=50))
        page = await self._step("list, of a type and state", 1, lambda: store.find(type="mail.send", state="succeeded"))
        await self._step("list, without a match", 1, lambda: store.find(type="nobody.knows"))
        await self._step("look at one job", 1, lambda: store.details(page.jobs[0].id))

    def _are_equal(self, second: str) -> None:
        """Refuse to count when the second database did not follow."""
        for table in ("tenure.job", "tenure.job_done"):
            found = []
            for dsn in (self._first, second):
                with psycopg.connect(dsn) as connection:
                    found.append(one(connection, _ROLES.format(table)))
            assert found[0] == found[1], f"the second database did not follow: {table} {found}"

    async def _life(self) -> None:
        """The life of jobs through the application and its worker; the best of three, since batches depend on moods."""
        found: list[Figures] = []
        for _ in range(3):
            app = tenure.App(watched(self._first))

            @app.task(queue="life")
            async def noop(n: int) -> None: ...

            self._log.skip()
            before = self._lsn()
            async with app:
                await app.enqueue_many(noop.call(n) for n in range(LIVES))
                worker = app.worker(concurrency=100, upkeep=False, wakeups=False)
                running = asyncio.create_task(worker.run())
                while worker.counts["succeeded"] < LIVES:
                    assert not running.done(), "the worker ended early"
                    await asyncio.sleep(0.01)
                worker.stop()
                await running
            work = counted(self._log.read())
            wal = (self._lsn() - before) / LIVES
            statements = work.statements.total()
            found.append({"jobs": LIVES, "statements": statements, "commits": work.commits, "wal_bytes": round(wal)})
        self.seen.work[f"life of {LIVES}"] = min(found, key=lambda one: (one["statements"], one["wal_bytes"]))

    def _lsn(self) -> int:
        with psycopg.connect(self._server) as connection:
            return int(one(connection, "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"))
