"""How long from enqueue to the handler's first line on an idle queue? Tenure beside PgQueuer and Procrastinate.

    ./dev bench latency [--jobs 300] [--gap 0.02] [--rounds 3] [--only NAME] [--json]

One PostgreSQL, a database for each; a worker process and an enqueuing process for each, with the settings of their own
documents; one job at a time, with a pause in between. The rounds are interleaved, so that a busy moment of the machine
hits all of them. Both clocks are the machine's monotonic one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tenure.embedded import Cluster

HERE = Path(__file__).parent
#: Each peer in an environment of its own, with these versions.
PEERS = {
    "tenure": [],
    "pgqueuer": ["pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"],
    "procrastinate": ["procrastinate==3.10.0", "psycopg[binary]==3.3.8"],
}


def interpreter(name: str, place: Path) -> str:
    """The Python that has this peer; installed at its first use."""
    if not PEERS[name]:
        return sys.executable
    made = place / name
    if not (made / "ready").exists():
        print(f"installing {' '.join(PEERS[name])} …", file=sys.stderr)
        venv.create(made, with_pip=True, clear=True)
        subprocess.run([made / "bin" / "pip", "install", "--quiet", *PEERS[name]], check=True)
        (made / "ready").touch()
    return str(made / "bin" / "python")


@contextmanager
def worker(command: list[str], dsn: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process that says when jobs begin."""
    process = subprocess.Popen(
        [*command, "worker", dsn], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def measured(command: list[str], dsn: str, jobs: int, gap: float) -> list[float]:
    """Milliseconds from enqueue to start, of jobs on an idle queue."""
    with worker(command, dsn) as process:
        time.sleep(3)  # until it listens
        asked = subprocess.run(
            [*command, "enqueue", dsn, str(jobs), str(gap)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert process.stdout is not None
        began = dict(line.split() for line in (process.stdout.readline() for _ in range(jobs)))
    return [1_000 * (float(began[n]) - float(at)) for n, at in (line.split() for line in asked.stdout.splitlines())]


def main() -> None:
    """Measure, and print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--jobs", type=int, default=300)
    asked.add_argument("--gap", type=float, default=0.02)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--only", action="append", choices=list(PEERS))
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    names = given.only or list(PEERS)
    environments = HERE.parent / ".bench"
    commands = {name: [interpreter(name, environments), str(HERE / "adapters" / f"{name}_idle.py")] for name in names}
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="tenure-latency-") as directory, Cluster(Path(directory)) as cluster:
        addresses = {name: _database(cluster.dsn, name) for name in names}
        for name in names:
            subprocess.run([*commands[name], "setup", addresses[name]], check=True)
        for _ in range(given.rounds):
            for name in names:
                found[name].append(measured(commands[name], addresses[name], given.jobs, given.gap))
    rows = [{"name": name, **_figures(rounds)} for name, rounds in found.items()]
    if given.json:
        print(json.dumps(rows))
        return
    print("| | p50 ms (rounds) | p99 ms (rounds) |\n|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['p50_ms']} ({row['p50s']}) | {row['p99_ms']} ({row['p99s']}) |")


def _database(server: str, name: str) -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    parts = conninfo_to_dict(server)
    return f"postgresql://{parts['user']}@/{name}?host={parts['host']}&port={parts['port']}"


def _figures(rounds: list[list[float]]) -> dict[str, object]:
    halves = [statistics.median(one) for one in rounds]
    tails = [statistics.quantiles(one, n=100)[98] for one in rounds]
    return {
        "p50_ms": round(statistics.median(halves), 2), "p99_ms": round(statistics.median(tails), 2),
        "p50s": ", ".join(f"{one:.2f}" for one in halves), "p99s": ", ".join(f"{one:.2f}" for one in tails),
    }  # fmt: skip


if __name__ == "__main__":
    main()
