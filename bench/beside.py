"""Is this tree slower than an earlier revision? Measures both in turn, in one run.

    ./dev bench beside REVISION [--times 3] [--jobs 2000] [--only kernel|idle|http]

A round has three parts, each on an embedded PostgreSQL of its own:

    kernel   `bench.beside --round`: processor time of client and server for enqueue, claim, succeed; WAL; other verbs.
             Each revision runs its own `bench/` with its own `src/`, so a benchmark that follows a rename still
             measures the old code with the old names. Each round starts with the other revision.
    idle     `bench.idle_beside`: from an enqueue on an idle queue to the handler's first line, job by job in turn;
             processor time of worker and producer.
    http     the rows of `bench http`: processor time of dispatcher, worker and PostgreSQL, time a job, call latency.
             The dispatchers of both revisions stand beside each other, each with a database of its own, and the load
             generator of this tree drives them in turn, row by row: a busy moment of the machine affects both.

The table shows the medians of both, and the median of the ratios of the rounds (this tree to the revision; below 1 is
faster). A ratio above 1.15 is a finding. Processor time varies less on a busy machine than elapsed time. A figure that
only one revision has is listed without a ratio. Exit code: 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench import idle_beside

_ROOT = Path(__file__).resolve().parents[1]
#: A ratio above this is a finding.
FINDING = 1.15
PARTS = ("kernel", "idle", "http")
#: Clients that claim one by one; and jobs of an idle round.
_CLIENTS = 64
_IDLE_JOBS = 150
_CALLS = ("enqueue", "claim", "finish", "wait")

Figures = dict[str, float]


def extract(revision: str, directory: Path) -> Path:
    """Write `src`, `bench` and `tests` (benchmarks import some) of a revision into a directory; returns it."""
    archive = subprocess.run(
        ["git", "archive", revision, "src", "bench", "tests"], cwd=_ROOT, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as opened:
        opened.extractall(directory, filter="data")
    return directory


def run_kernel(tree: Path) -> Figures:
    """Run one round of the kernel with the benchmarks and the sources of this tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-m", "bench.beside", "--round"]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def run_http(trees: Mapping[str, Path], times: int, jobs: int) -> dict[str, list[Figures]]:
    """Run the rounds of http with the sources of each tree, row by row in turn."""
    from bench import http
    from bench.comparison import servers

    rounds: dict[str, list[Figures]] = {name: [] for name in trees}
    with servers.postgres(None) as postgres, ExitStack() as stack:
        benches = {
            name: stack.enter_context(http.running(postgres, f"tenure_{name}", tree / "src"))
            for name, tree in trees.items()
        }
        for number in range(times):
            for turn, step in enumerate(http.steps(jobs, _CLIENTS, http.idle_jobs(jobs), direct=True)):
                for name in sorted(trees, reverse=bool((number + turn) % 2)):
                    step(benches[name])
            for name, bench in benches.items():
                rounds[name].append(http_figures(http.as_rows(bench.rows)))
                bench.rows.clear()
    return rounds


def http_figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """The rows of `bench http --json` as figures of which less is better."""
    figures: Figures = {}
    for row in rows:
        name = f"http, {row['name']}"
        if rate := row["jobs_per_s"]:
            figures[f"{name}, µs a job"] = 1e6 / rate
        for process, microseconds in row["processor_us"].items():
            if process != "generator":
                figures[f"{name}, {process} processor µs a job"] = microseconds
        for call in _CALLS:
            if (milliseconds := row[f"{call}_p50_ms"]) is not None:
                figures[f"{name}, {call} p50 ms"] = milliseconds
    return figures


class Compared(NamedTuple):
    """A figure: its medians, and the median of the ratios of the rounds; None where a revision does not have it."""

    name: str
    before: float | None
    now: float | None
    ratio: float | None

    @property
    def is_finding(self) -> bool:
        """Whether this tree is slower by more than 15 %."""
        return self.ratio is not None and self.ratio > FINDING


def compare(before: Sequence[Figures], now: Sequence[Figures]) -> list[Compared]:
    """Each figure of these rounds, which were run in pairs."""
    names = dict.fromkeys(name for figures in (*now, *before) for name in figures)

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    return [
        Compared(
            name,
            median([figures[name] for figures in before if name in figures]),
            median([figures[name] for figures in now if name in figures]),
            median(
                [new[name] / old[name] for old, new in zip(before, now, strict=True) if old.get(name) and name in new]
            ),
        )
        for name in names
    ]


async def kernel_round() -> Figures:
    """The kernel figures of the sources on the path."""
    import psycopg
    from psycopg.conninfo import make_conninfo

    from bench import kernel, lease_costs
    from tenure.embedded import Cluster
    from tenure.postgres.migrate import migrate
    from tenure.postgres.store import Store

    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory), settings=kernel.SETTINGS) as cluster:

        def make(name: str) -> str:
            with psycopg.connect(cluster.dsn, autocommit=True) as connection:
                connection.execute(f"create database {name}".encode())
            migrate(dsn := make_conninfo(cluster.dsn, dbname=name))
            return dsn

        figures: Figures = {}
        life = make("life")
        async with Store.open(life, connections=1) as store:
            side = kernel.Ours(store)
            await kernel.lives(side, 1, 20)
            with psycopg.connect(life, autocommit=True) as connection:
                server = kernel.one(connection, "select pid from pg_stat_activity where application_name = 'tenure'")
            for batch, jobs in ((1, 300), (100, 5_000), (500, 10_000)):
                await kernel.lives(side, batch, jobs // 2)
                for stage, seconds in (await _processor_time(side, batch, jobs, server)).items():
                    figures[f"{stage}, batch {batch}, µs a job"] = seconds / jobs * 1e6
        figures["WAL bytes a life"] = await kernel.wal_per_life(make("wal"))
        rest: dict[str, Any] = await lease_costs.all_of(make, quick=True)
        for verb in ("heartbeat_us", "fail_us", "reap_us"):
            for contract, value in rest[verb].items():
                figures[f"{verb.removesuffix('_us')}, {contract}, µs a job"] = value
        for claimers, value in rest["claimers_per_s"].items():
            figures[f"claim by {claimers}, µs a job"] = 1e6 / value
    return figures


async def _processor_time(side: Any, batch: int, jobs: int, server: int) -> dict[str, float]:
    """Seconds of processor time, of client and server together, for each stage of these jobs."""
    from bench import kernel

    def clock() -> float:
        return sum(kernel.clocks(server))

    spent = {"enqueue": 0.0, "claim": 0.0, "succeed": 0.0}
    for _ in range(0, jobs, batch):
        started = clock()
        await side.enqueue(batch)
        enqueued = clock()
        held = await side.claim(batch)
        claimed = clock()
        await side.finish(held)
        spent["enqueue"] += enqueued - started
        spent["claim"] += claimed - enqueued
        spent["succeed"] += clock() - claimed
    return spent


def main() -> int:
    """Measure both in turn and print the table; returns 1 when there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD", help="the revision to compare this tree with")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="rounds; default 3")
    parser.add_argument("--jobs", type=int, default=2_000, metavar="N", help="jobs of each http row; default 2,000")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    parser.add_argument("--round", action="store_true", help="one kernel round of the sources on the path, as JSON")
    options = parser.parse_args()
    if min(options.times, options.jobs) < 1:
        parser.error("--times and --jobs must be at least 1")
    if options.round:
        print(json.dumps(asyncio.run(kernel_round())))
        return 0
    parts = [options.only] if options.only else PARTS
    with tempfile.TemporaryDirectory(prefix="tenure-beside-") as directory:
        trees = {"before": extract(options.revision, Path(directory)), "now": _ROOT}
        compared: list[Compared] = []
        if "kernel" in parts:
            rounds: dict[str, list[Figures]] = {name: [] for name in trees}
            for number in range(options.times):
                sys.stderr.write(f"round {number + 1} of {options.times} …\n")
                for name in sorted(trees, reverse=bool(number % 2)):
                    rounds[name].append(run_kernel(trees[name]))
            compared += compare(**rounds)
        if "idle" in parts:
            compared += compare(**idle_beside.run_idle(trees, options.times, min(options.jobs, _IDLE_JOBS)))
        if "http" in parts:
            compared += compare(**run_http(trees, options.times, options.jobs))
    print(f"| figure | {options.revision} | this tree | ratio | finding |\n|---|---|---|---|---|")
    for one in compared:
        medians = ("–" if median is None else f"{median:,.1f}" for median in (one.before, one.now))
        ratio = "–" if one.ratio is None else f"{one.ratio:.2f}"
        print(f"| {one.name} | {' | '.join(medians)} | {ratio} | {'slower' if one.is_finding else ''} |")
    return int(any(one.is_finding for one in compared))


if __name__ == "__main__":
    sys.exit(main())
