"""Did it get slower? This tree beside an earlier revision of it, in turn, in one run.

    ./dev bench beside REVISION [--times 3]

Each round runs the same measurements with the sources of one revision and then of the other, each on an embedded
PostgreSQL of its own. The table shows medians and their ratio (this tree to the revision; below 1 is faster). Lives are
measured as processor time of client and server together, which a busy machine blurs less than seconds.
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
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


def measured(source: Path) -> dict[str, float]:
    """One round with these sources, in a process of its own."""
    command = [sys.executable, "-m", "bench.beside", "--round"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=_ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def sources_of(revision: str, into: Path) -> Path:
    """The sources as they were at a revision."""
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=_ROOT, check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as opened:
        opened.extractall(into, filter="data")
    return into / "src"


async def one_round() -> dict[str, float]:
    """The figures of the sources on the path."""
    import psycopg
    from psycopg.conninfo import make_conninfo

    from bench import holding, kernel
    from tenure.embedded import Cluster
    from tenure.postgres.migrate import migrate
    from tenure.postgres.store import Store

    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory), settings=kernel.SETTINGS) as cluster:

        def make(name: str) -> str:
            with psycopg.connect(cluster.dsn, autocommit=True) as connection:
                connection.execute(f"create database {name}".encode())
            migrate(dsn := make_conninfo(cluster.dsn, dbname=name))
            return dsn

        figures: dict[str, float] = {}
        life = make("life")
        async with Store.open(life, connections=1) as store:
            side = kernel.Ours(store)
            await kernel.lives(side, 1, 20)
            with psycopg.connect(life, autocommit=True) as connection:
                server = kernel.one(connection, "select pid from pg_stat_activity where application_name = 'tenure'")
            for batch, jobs in ((1, 300), (100, 5_000), (500, 10_000)):
                await kernel.lives(side, batch, jobs // 2)
                for stage, seconds in (await _processor(side, batch, jobs, server)).items():
                    figures[f"{stage}, batch {batch}, µs a job"] = seconds / jobs * 1e6
        figures["WAL bytes a life"] = await kernel.wal_per_life(make("wal"))
        rest: dict[str, Any] = await holding.all_of(make, quick=True)
        for verb in ("heartbeat_us", "fail_us", "reap_us"):
            for contract, value in rest[verb].items():
                figures[f"{verb.removesuffix('_us')}, {contract}, µs a job"] = value
        for who, value in rest["claimers_per_s"].items():
            figures[f"claim by {who}, µs a job"] = 1e6 / value
    return figures


async def _processor(side: Any, batch: int, jobs: int, server: int) -> dict[str, float]:
    """Seconds of processor time, client and server together, of each stage of so many lives."""
    spent = {"enqueue": 0.0, "claim": 0.0, "succeed": 0.0}
    for _ in range(0, jobs, batch):
        before = sum(_clocks(server))
        await side.enqueue(batch)
        enqueued = sum(_clocks(server))
        held = await side.claim(batch)
        claimed = sum(_clocks(server))
        await side.finish(held)
        spent["enqueue"] += enqueued - before
        spent["claim"] += claimed - enqueued
        spent["succeed"] += sum(_clocks(server)) - claimed
    return spent


def _clocks(server: int) -> tuple[float, float]:
    from bench import kernel

    return kernel.clocks(server)


def main() -> None:
    """Measure both in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD", help="what to compare this tree with")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--round", action="store_true", help="one round of the sources on the path, as JSON")
    options = parser.parse_args()
    if options.round:
        print(json.dumps(asyncio.run(one_round())))
        return
    with tempfile.TemporaryDirectory() as directory:
        before = sources_of(options.revision, Path(directory))
        rounds: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
        for turn in range(options.times):
            print(f"round {turn + 1} of {options.times} …", file=sys.stderr)
            for name, source in (("before", before), ("now", _ROOT / "src")):
                rounds[name].append(measured(source))
    print(f"| figure | {options.revision} | this tree | ratio |\n|---|---|---|---|")
    for figure in rounds["now"][0]:
        was, now = (statistics.median(one[figure] for one in rounds[name]) for name in ("before", "now"))
        print(f"| {figure} | {was:,.1f} | {now:,.1f} | {now / was:.2f} |")


if __name__ == "__main__":
    main()
