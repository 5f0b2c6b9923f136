"""The cost of a claim while a transaction keeps an old snapshot, so that vacuum can remove no dead row.

Two databases of one server, each with a worker, upkeep, vacuum and the same steady load; in one of them a transaction
stays open. A snapshot keeps dead rows only in its own database, so the other database shows the state of the machine.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

import psycopg

import tenure
from bench.depth_sections.section import PAYLOAD, Lines, Make, Section, Table, one_value, ratio, shown

_SLICES = 10
_SLOTS = 200


class Timed:
    """A worker's source of jobs, which notes what claims cost."""

    def __init__(self, source: Any, notes: list[tuple[float, float, int]]) -> None:
        self._source, self._notes = source, notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        """Claim; when it found jobs, note when, how long it took, and how many."""
        begun = time.perf_counter()
        jobs = await self._source.claim(*arguments, **options)
        if jobs:
            self._notes.append((begun, time.perf_counter() - begun, len(jobs)))
        return jobs


class Load:
    """A database with a worker and a steady stream of jobs."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.claims: list[tuple[float, float, int]] = []
        self.enqueues: list[tuple[float, float, int]] = []

    async def run(self, pace: int, seconds: float) -> None:
        """Ten batches a second of a tenth of the pace, until the time is over and all is done."""
        async with tenure.App(self.dsn) as app:

            @app.task(name="mail.send")
            async def send(to: str, subject: str, n: int) -> None: ...

            worker = app.worker(concurrency=_SLOTS)
            opened = worker._open_source

            async def timed() -> Any:
                return Timed(await opened(), self.claims)

            worker._open_source = timed
            running = asyncio.create_task(worker.run())
            ends = time.perf_counter() + seconds
            due, made = time.perf_counter(), 0
            while due < ends:
                begun = time.perf_counter()
                await app.enqueue_many(send.call(**PAYLOAD) for _ in range(pace // 10))  # type: ignore[arg-type]
                self.enqueues.append((begun, time.perf_counter() - begun, pace // 10))
                made += pace // 10
                due += 0.1
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            for _ in range(300):
                if worker.counts["succeeded"] >= made:
                    break
                await asyncio.sleep(0.1)
            worker.stop()
            await running
        if worker.counts["succeeded"] < made:
            print(f"  only {worker.counts['succeeded']:,} of {made:,} jobs were done in time", file=sys.stderr)


def _slices(notes: list[tuple[float, float, int]], begun: float, seconds: float) -> list[float]:
    """The median microseconds a job of each slice of the time; of the one before where a slice has none."""
    found: list[float] = []
    for n in range(_SLICES):
        low, high = begun + n * seconds / _SLICES, begun + (n + 1) * seconds / _SLICES
        costs = [spent / jobs * 1e6 for at, spent, jobs in notes if low <= at < high]
        found.append(statistics.median(costs) if costs else found[-1])
    return found


async def pinned(make: Make, minutes: float, pace: int) -> Section:
    """The cost of claims over the time, with and without an old snapshot."""
    seconds = minutes * 60
    loads = {"pinned": Load(make("pinned")), "free": Load(make("free"))}
    print(f"measuring for {minutes:g} minutes with a pinned snapshot …", file=sys.stderr)
    begun = time.perf_counter()
    with psycopg.connect(loads["pinned"].dsn) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from tenure.job").fetchone()
        await asyncio.gather(*(load.run(pace, seconds) for load in loads.values()))
        dead = {name: _dead(load.dsn) for name, load in loads.items()}
    found = {
        (name, verb): _slices(notes, begun, seconds)
        for name, load in loads.items()
        for verb, notes in (("claim", load.claims), ("enqueue", load.enqueues))
    }
    rows = [
        [
            name,
            verb,
            *map(shown, line),
            ratio(line[-1], line[0]),
            ratio(line[-1], found["free", verb][-1]),
            f"{dead[name]:,}",
        ]
        for (name, verb), line in found.items()
    ]
    marks = [f"{(n + 1) * minutes / _SLICES:g} min" for n in range(_SLICES)]
    title = f"Microseconds a job over the time; {pace:,} jobs a second in each database, with upkeep"
    header = ["database", "verb", *marks, "last / first", "last / free", "dead rows at the end"]
    lines = {name: found[name, "claim"] for name in loads}
    return Section(
        [Table(title, header, rows)],
        [Lines("Claims while a snapshot is pinned", "microseconds a job", marks, dict(lines))],
    )


def _dead(dsn: str) -> int:
    return int(one_value(dsn, "select pg_stat_get_dead_tuples('tenure.job'::regclass)"))
