"""The processor time of one job by part, and the memory of a worker over many jobs.

    ./dev bench budget [--jobs 1000000]

Measures processor time per job, which varies less on a busy machine than seconds: of each verb through the store, of
the worker's own code over a source without cost, and of a real drain by process and thread. The drain also shows the
worker's memory: no-op jobs with fence, log, heartbeats and upkeep on, one process, 1,000 slots.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import uvloop

import tenure
from bench.depth_sections.section import Table
from bench.kernel import clocks
from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.embedded import Cluster
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.outcome import Moved
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.worker import Worker
from tests.holder_calls import calls

_BATCH = 1_000
_NOW = datetime.now(UTC)


def application(address: str) -> tenure.App:
    """The application with its one task, which does nothing."""
    app = tenure.App(address)

    @app.task
    async def touch(n: int) -> None: ...

    return app


async def verbs(dsn: str, jobs: int = 60_000) -> Table:
    """Each verb in batches of 1,000 on one connection: microseconds a job of ours, and of the server process."""
    rows = []
    async with Store.open(dsn, connections=1, wake=False) as store:
        async with store._engine._calls.pool.connection() as connection:
            server = connection.info.backend_pid
        spent: dict[str, list[float]] = {}
        for turn in range(2):  # the first warms up
            held: list[list[Held]] = []
            for verb in ("enqueue", "claim", "succeed"):
                before = clocks(server)
                for n in range(jobs // _BATCH):
                    if verb == "enqueue":
                        await store.enqueue_many([NewJob("touch", {"n": k}) for k in range(_BATCH)])
                    elif verb == "claim":
                        taken = await store.claim(worker="w", limit=_BATCH, claim_key=uuid4())
                        held.append([job.held for job in taken])
                    else:
                        await store.report("succeed", calls(held[n], results=[None] * _BATCH))
                spent[verb] = [1e6 * (after - then) / jobs for after, then in zip(clocks(server), before, strict=True)]
            if turn == 0:
                async with store._engine._calls.pool.connection() as connection:
                    await connection.execute("vacuum tenure.job")
        rows = [[verb, *(f"{one:.1f}" for one in both)] for verb, both in spent.items()]
    return Table("Through the store, microseconds of processor time a job:", ["verb", "client", "server"], rows)


class Nothing:
    """A source whose jobs cost next to nothing, so that what is left is the worker's own part."""

    leases_run_on = False

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._given = 0

    async def contracts(self) -> dict[str, Contract]:
        """The one contract of these jobs."""
        return {"standard": BUILT_IN["standard"]}

    async def due(self, contracts: Sequence[str], worker: LiveWorker) -> list[str]:
        """Something, as long as there is any."""
        return ["standard"] if self._given < self._jobs else []

    async def catch_up_flows(self, until: datetime | None) -> None:
        """There are no flows."""

    async def claim(
        self, contract: str, worker: LiveWorker, *, limit: int, claim_key: UUID, is_repeat: bool = False
    ) -> list[Job]:
        """So many new jobs."""
        first, self._given = self._given, min(self._jobs, self._given + limit)
        return [_job(n, worker.name, claim_key) for n in range(first, self._given)]

    async def report(self, verb: str, calls: Sequence[HolderCall]) -> list[Moved]:
        """All is well."""
        return [_moved(one.held) for one in calls]

    async def see(self, worker: LiveWorker, *, is_new: bool) -> None:
        """Nobody looks."""

    async def leave(self, worker: LiveWorker) -> None:
        """Nobody looks."""

    async def withdraw(self, worker: LiveWorker) -> None:
        """Nothing is stored."""

    async def close(self) -> None:
        """Nothing to close."""


def _job(n: int, worker: str, key: UUID) -> Job:
    return Job(
        n + 1, "standard", "1", "running", "active", "default", "touch", "default", 5, 1, 0, 1, 5, '{"n": 1}', worker,
        _NOW + timedelta(seconds=30), _NOW, _NOW, _NOW, _NOW, None, None, None, None, None, None, None, None, None,
        None, None, key, "",
    )  # fmt: skip


def _moved(held: Held) -> Moved:
    return Moved(held.id, "succeed", "running", "succeeded", "done", 1, 1, _NOW)


async def alone(jobs: int = 200_000) -> float:
    """The worker's own microseconds a job: begin, call, gather for the finish, let go."""
    source: Any = Nothing(jobs)

    async def opened() -> Any:
        return source

    worker = Worker(application("postgresql://").tasks, opened, concurrency=_BATCH)
    begun = time.thread_time()
    await worker.run(until_idle=True)
    spent = time.thread_time() - begun
    begun = time.thread_time()  # what the source itself cost
    for first in range(0, jobs, _BATCH):
        for job in [_job(n, "w", uuid4()) for n in range(first, first + _BATCH)]:
            _moved(job.held)
    return 1e6 * (spent - (time.thread_time() - begun)) / jobs


def processes(postmaster: int) -> dict[str, float]:
    """Seconds of processor time so far: of our threads, and of the server's processes, by what they do."""
    spent: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        name = "client: main loop" if task.name == str(os.getpid()) else "client: heartbeats, upkeep and listener"
        spent[name] = spent.get(name, 0.0) + _seconds(task)
    for process in Path("/proc").iterdir():
        try:
            if (
                process.name.isdigit()
                and int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == postmaster
            ):
                title = (process / "cmdline").read_text().split("\0")[0].removeprefix("postgres: ")
                name = "server: sessions" if "[local]" in title else f"server: {title.strip() or 'another process'}"
                spent[name] = spent.get(name, 0.0) + _seconds(process)
        except OSError:
            continue  # it has ended
    return spent


def _seconds(process: Path) -> float:
    return int((process / "schedstat").read_text().split()[0]) / 1e9


def resident() -> float:
    """Our memory now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def drain(dsn: str, postmaster: int, jobs: int) -> tuple[Table, Table]:
    """A real worker over so many jobs: who spends how much, and how much memory it has on the way."""
    async with application(dsn) as app:
        touch = app.tasks["touch"]
        await app.enqueue_many(touch.call(n) for n in range(jobs))
    worker = application(dsn).worker(concurrency=_BATCH)
    running = asyncio.create_task(worker.run(until_idle=True))
    marks = [jobs * part // 10 for part in (0, 1, 2, 4, 6, 8, 9)]
    seen: list[tuple[int, float, float]] = []
    before: dict[str, float] = {}
    for mark in marks:
        while worker.counts["succeeded"] < max(mark, 1):  # noqa: ASYNC110 (a worker tells nobody how far it is)
            await asyncio.sleep(0.005)
        if not before:
            before, first = processes(postmaster), worker.counts["succeeded"]
        seen.append((worker.counts["succeeded"], time.monotonic(), resident()))
    after, last = processes(postmaster), worker.counts["succeeded"]
    await running
    spent = {name: 1e6 * (after[name] - before.get(name, 0.0)) / (last - first) for name in after}
    budget = [[name, f"{one:.1f}"] for name, one in sorted(spent.items(), key=lambda each: -each[1]) if one >= 0.1]
    budget.append(["all", f"{sum(spent.values()):.1f}"])
    growth = [
        [f"{done:,}", f"{(done - was) / (now - then):,.0f}", f"{memory:.1f}"]
        for (was, then, _), (done, now, memory) in itertools.pairwise(seen)
    ]
    return (
        Table(f"A drain of {jobs:,} no-op jobs, microseconds of processor time a job:", ["who", "µs"], budget),
        Table("The same worker on its way:", ["jobs done", "jobs/s since the line before", "memory MB"], growth),
    )


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix="tenure-budget-") as directory, Cluster(Path(directory)) as cluster:
        migrate(cluster.dsn)
        with psycopg.connect(cluster.dsn, autocommit=True) as connection:
            connection.execute("alter system set max_wal_size = '8GB'")
            connection.execute("select pg_reload_conf()")
            ((data,),) = connection.execute("show data_directory").fetchall()
        postmaster = int((Path(data) / "postmaster.pid").read_text().splitlines()[0])
        uvloop.run(verbs(cluster.dsn)).show()
        print(
            f"\nThe worker's own part, over a source that costs nothing: {uvloop.run(alone()):.1f} microseconds a job."
        )
        for table in uvloop.run(drain(cluster.dsn, postmaster, jobs)):
            table.show()


if __name__ == "__main__":
    main()
