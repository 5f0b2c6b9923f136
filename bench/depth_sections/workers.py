"""Jobs per second of workers: one by one on own connections, as slots of one process, in several processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import uvloop

import tenure
from bench.depth_sections.fill import grow
from bench.depth_sections.section import Lines, Make, Section, Table, one_value, ratio
from tenure.postgres.store import Store

_WORKERS = (1, 4, 16, 64)
_PROCESSES = (1, 2, 4)
_QUEUE = "default"
_WARM = 12


async def one_by_one(dsn: str, workers: int, seconds: float) -> float:
    """Jobs a second by workers that each claim one, finish it, and claim the next, on connections of their own."""
    async with Store.open(dsn, connections=workers, wake=False) as store:
        await store.queues.resume(_QUEUE, actor="bench")
        await asyncio.gather(*(store.jobs([1]) for _ in range(workers)))  # everybody is connected

        async def work(until: float, most: int = 1_000_000) -> int:
            count = 0
            while count < most and time.perf_counter() < until and (jobs := await store.claim(worker="alone")):
                await store.succeed(jobs[0].held)
                count += 1
            return count

        # Every connection prepares its statements, and plans them anew for a while.
        await asyncio.gather(*(work(time.perf_counter() + 60, _WARM) for _ in range(workers)))
        begun = time.perf_counter()
        counts = await asyncio.gather(*(work(begun + seconds) for _ in range(workers)))
        return sum(counts) / (time.perf_counter() - begun)


async def in_processes(dsn: str, workers: int, processes: int, seconds: float) -> float:
    """Jobs a second, until committed, by real worker processes, each with so many slots; they begin together."""
    async with Store.open(dsn, connections=1) as store:
        await store.queues.pause(_QUEUE, actor="bench")
        with _running(dsn, workers, processes):
            await store.queues.resume(_QUEUE, actor="bench")
            await asyncio.sleep(0.5)  # statements are prepared
            before, begun = _finished(dsn), time.perf_counter()
            await asyncio.sleep(seconds)
            drained = _finished(dsn) - before
            spent = time.perf_counter() - begun
            await store.queues.pause(_QUEUE, actor="bench")
    assert one_value(dsn, "select exists (select from tenure.job where role = 'ready')"), (
        "they ran out of jobs: fill more"
    )
    assert not one_value(dsn, "select exists (select from tenure.dead_letter)"), "jobs failed"
    return drained / spent


def _finished(dsn: str) -> int:
    return int(one_value(dsn, "select count(*) from tenure.job_done"))


@contextmanager
def _running(dsn: str, slots: int, processes: int) -> Iterator[None]:
    """Worker processes that are ready to claim."""
    command = [sys.executable, "-m", "bench.depth_sections.workers", dsn, str(slots)]
    root = Path(__file__).parents[2]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(processes)]
    try:
        for process in begun:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a worker did not begin"
        yield
    finally:
        for process in begun:
            process.send_signal(signal.SIGTERM)
        for process in begun:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


async def workers(make: Make, quick: bool) -> Section:
    """The same number of workers in several arrangements."""
    dsn, seconds = make("working"), 1.0 if quick else 3.0
    rows = []
    lines: dict[str, list[float]] = {"one by one": []}
    for slots in _WORKERS:
        print(f"measuring {slots} workers …", file=sys.stderr)
        grow(dsn, ready=20_000)
        alone = await one_by_one(dsn, slots, seconds)
        lines["one by one"].append(alone)
        cells = [f"{alone:,.0f}"]
        for processes in _PROCESSES:
            if quick and processes > 1 and slots < _WORKERS[-1]:
                cells.append("")
                continue
            grow(dsn, ready=round(70_000 * (seconds + 1.5)) if slots > 1 else 30_000)
            rate = await in_processes(dsn, slots, processes, seconds)
            _empty(dsn)
            lines.setdefault(_label(processes), []).append(rate)
            cells.append(f"{rate:,.0f} ({ratio(rate, alone)})")
        rows.append([str(slots), *cells])
    title = "No-op jobs claimed and finished a second (times one by one); slots are for each process"
    header = ["workers", "one by one, own connections", *(f"slots in {_label(count)}" for count in _PROCESSES)]
    return Section(
        [Table(title, header, rows)],
        [Lines("Claimed and finished, by workers", "jobs a second", list(map(str, _WORKERS)), _whole(lines))],
    )


def _whole(lines: dict[str, list[float]]) -> dict[str, Sequence[float]]:
    """The lines that were measured at every place."""
    return {name: line for name, line in lines.items() if len(line) == len(_WORKERS)}


def _label(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _empty(dsn: str) -> None:
    """Take what is left away, so that the next one does not begin with another's rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate tenure.job")


def _work(dsn: str, slots: int) -> None:
    """A worker process; says when it can be given jobs."""
    app = tenure.App(dsn)

    @app.task(name="noop")
    async def noop(n: int) -> None: ...

    worker = app.worker(concurrency=slots)

    async def main() -> None:
        running = asyncio.create_task(worker.run())
        while not (worker._service._ready.is_set() or running.done()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # it listens
        print("ready", flush=True)
        await running

    uvloop.run(main())


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
