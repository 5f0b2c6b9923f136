"""The throughput of one dispatcher, and the cost of HTTP beside a worker that uses the database directly.

    ./dev bench http [--quick] [--jobs N] [--concurrency N] [--times N] [--no-direct] [--json]

One PostgreSQL, one dispatcher process and one load generator with an API key share the cores; the library's own worker
drains the same number of jobs in turn with them. The table shows the share of a core that each process used, which
shows the bottleneck. docs/reference/bench.md describes the rows.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.comparison import installation, measurements, servers
from bench.comparison.measurements import Side, Sizes
from bench.comparison.peers import TENURE
from bench.comparison.process import Running, Stuck
from bench.depth_sections.section import Table, ratio
from bench.depth_sections.section import shown as figure
from bench.http_load.load import TASKS

_SOURCE = installation.ROOT / "src"
_PATIENCE_S = 30.0
#: Batches come from few clients: more would only wait.
_FEW = 4
_WHO = ("generator", "dispatcher or worker", "PostgreSQL")
_DIRECT = "direct worker"
_DIRECT_IDLE = "direct worker, idle"


@dataclass
class Row:
    """What was found of one load, one entry a repetition."""

    jobs: int
    clients: int
    per_s: list[float] = field(default_factory=list)
    calls: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: What each process used, of one core and in microseconds of processor time a job.
    shares: dict[str, list[float]] = field(default_factory=dict)
    spent: dict[str, list[float]] = field(default_factory=dict)

    def note(self, who: str, processor_s: float, seconds: float) -> None:
        """Note the processor time of a process in so many seconds."""
        self.shares.setdefault(who, []).append(processor_s / seconds)
        self.spent.setdefault(who, []).append(1e6 * processor_s / self.jobs)

    def rate(self) -> float | None:
        """The median of jobs a second; None for what has no rate."""
        return statistics.median(self.per_s) if self.per_s else None

    def spread(self, call: str) -> tuple[float, float] | None:
        """The medians of a call's half and 99th part, in milliseconds."""
        if call not in self.calls:
            return None
        half, tail = (statistics.median(part) for part in zip(*self.calls[call], strict=True))
        return half, tail


class Bench:
    """A dispatcher and a load generator on one PostgreSQL, and the rows so far."""

    def __init__(self, postgres: servers.Postgres, dispatcher: Running, generator: Running, python: list[str]) -> None:
        self._postgres = postgres
        self._dispatcher, self._generator = dispatcher, generator
        self.direct = Side(TENURE, postgres, [*python, *installation.command(TENURE)[1:]])
        self.rows: dict[str, Row] = {}

    def load(self, name: str, question: str, jobs: int, clients: int, *, has_rate: bool = True) -> None:
        """Let the generator do this, and note what came of it and who used how much of a core."""
        tell(f"  {name} …")
        before = self._clocks()
        answer = self._generator.ask(question, 60 + jobs / 20)
        after, found = self._clocks(), json.loads(answer[1])
        row = self.rows.setdefault(name, Row(jobs, clients))
        if has_rate:
            row.per_s.append(jobs / found["seconds"])
        for call, (_, half, tail) in found["calls"].items():
            row.calls.setdefault(call, []).append((half, tail))
        for who, then in before.items():
            row.note(who, after[who] - then, found["seconds"])

    def prepare(self, jobs: int, contract: str = "standard") -> None:
        """Make jobs that the next load takes."""
        self._generator.ask(f"enqueue {jobs} {_FEW} 500 {contract}", 60 + jobs / 20)

    def _clocks(self) -> dict[str, float]:
        """Seconds of processor time so far; nothing where /proc does not say."""
        clocks = {
            "generator": self._generator.processor(),
            "dispatcher": self._dispatcher.processor(),
            "PostgreSQL": self._postgres.processor(),
        }
        return {who: seconds for who, seconds in clocks.items() if seconds is not None}

    def drain_directly(self, jobs: int) -> None:
        """The library's worker, in a database of its own."""
        tell(f"  {_DIRECT} …")
        done = measurements.drain(self.direct, jobs)
        row = self.rows.setdefault(_DIRECT, Row(jobs, 1))
        row.per_s.append(done.drain_per_s)
        for who, seconds in (("worker", done.client_s), ("PostgreSQL", done.server_s)):
            if seconds is not None:
                row.note(who, seconds, done.jobs / done.drain_per_s)

    def wait_directly(self, jobs: int) -> None:
        """The same worker, idle: from the call that enqueues to the handler's first line."""
        tell(f"  {_DIRECT_IDLE} …")
        found = measurements.idle(self.direct, jobs, 0.02)
        tail = statistics.quantiles(found, n=100, method="inclusive")[98]
        self.rows.setdefault(_DIRECT_IDLE, Row(jobs, 1)).calls.setdefault("wait", []).append(
            (statistics.median(found), tail)
        )


def tell(line: str) -> None:
    """Stdout is for results."""
    sys.stderr.write(f"{line}\n")


@contextmanager
def running(postgres: servers.Postgres, name: str = "tenure_http", source: Path = _SOURCE) -> Iterator[Bench]:
    """Start a dispatcher with these sources on a fresh database, and a generator that has a key for it."""
    address = postgres.fresh(name)
    python = ["env", f"PYTHONPATH={source}", sys.executable]
    to_database = ["--database-url", address]
    _output([*python, "-m", "tenure", "migrate", *to_database])
    scopes = ["--scope", "enqueue", "--scope", "work"]
    key = _output([*python, "-m", "tenure", "keys", "create", "bench", *scopes, *to_database])
    environment = installation.environment(TENURE)
    serve = [*python, "-m", "tenure", "serve", "--port", "0", "--log-level", "warning", *to_database]
    # The dispatcher prints its address on stderr.
    with Running(["sh", "-c", 'exec "$@" 2>&1', "sh", *serve], environment) as dispatcher:
        url = _address(dispatcher)
        generate = [sys.executable, "-m", "bench.http_load.load", url]
        with Running(generate, {**environment, "TENURE_BENCH_KEY": key}) as generator:
            while generator.line(_PATIENCE_S) != ["ready"]:
                pass
            yield Bench(postgres, dispatcher, generator, python)


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _address(dispatcher: Running) -> str:
    """The address that the dispatcher prints; refuses with its last output when it prints none."""
    last_output: list[str] = []
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            output = dispatcher.line(_PATIENCE_S)
        except Stuck as error:
            raise Stuck(f"{error}: {' '.join(last_output)}") from None
        last_output = output or last_output
        for word in output:
            if word.startswith("http://"):
                return word
    raise Stuck(f"the dispatcher never printed where it listens: {' '.join(last_output)}")


def steps(jobs: int, clients: int, idle: int, *, direct: bool) -> Iterator[Callable[[Bench], None]]:
    """The rows of one repetition, in order."""

    def one_by_one(bench: Bench) -> None:
        bench.prepare(jobs)
        bench.load("one by one", f"single {jobs} {clients}", jobs, clients)

    def tasks(bench: Bench) -> None:
        bench.prepare(jobs, TASKS)
        bench.load("document 001", f"tasks {jobs} {clients}", jobs, clients)

    yield from (one_by_one, tasks)
    for batch in (100, 500):
        enqueue, work = f"enqueue {jobs} {_FEW} {batch} standard", f"batches {jobs} {_FEW} {batch}"
        yield partial(Bench.load, name=f"enqueue, batches of {batch}", question=enqueue, jobs=jobs, clients=_FEW)
        yield partial(Bench.load, name=f"batches of {batch}", question=work, jobs=jobs, clients=_FEW)
    if direct:
        yield partial(Bench.drain_directly, jobs=jobs)
    yield partial(Bench.load, name="idle", question=f"idle {idle}", jobs=idle, clients=2, has_rate=False)
    if direct:
        yield partial(Bench.wait_directly, jobs=idle)


def idle_jobs(jobs: int) -> int:
    """The number of jobs that are made one at a time, beside so many in the other rows."""
    return max(5, min(200, jobs // 50))


def as_rows(rows: dict[str, Row]) -> list[dict[str, Any]]:
    """What was found, for programs; None for what a row does not have."""
    found = []
    for name, row in rows.items():
        one: dict[str, Any] = {"name": name, "jobs": row.jobs, "clients": row.clients, "jobs_per_s": row.rate()}
        for call in ("enqueue", "claim", "finish", "wait"):
            one[f"{call}_p50_ms"], one[f"{call}_p99_ms"] = row.spread(call) or (None, None)
        one["cores"] = {who: statistics.median(shares) for who, shares in row.shares.items()}
        one["processor_us"] = {who: statistics.median(spent) for who, spent in row.spent.items()}
        found.append(one)
    return found


def tables(rows: dict[str, Row]) -> list[Table]:
    """What was found, for people."""
    direct = (rows[_DIRECT].rate() if _DIRECT in rows else None) or 0.0

    def calls(row: Row, *names: str) -> list[str]:
        spreads = [row.spread(name) for name in names]
        return [part for both in spreads for part in (map(figure, both) if both else ("–", "–"))]

    def cores(row: Row) -> list[str]:
        return ["–" if share is None else f"{share:.2f}" for share in _by_process(row.shares)]

    work = [
        [name, str(row.clients), figure(rate), ratio(rate, direct), *calls(row, "claim", "finish"), *cores(row)]
        for name, row in rows.items()
        if (rate := row.rate()) is not None and "enqueue" not in row.calls
    ]
    making = [
        [name, str(row.clients), figure(rate), *calls(row, "enqueue"), *cores(row)]
        for name, row in rows.items()
        if (rate := row.rate()) is not None and "enqueue" in row.calls
    ]
    spent = [
        [name, *("–" if one is None else f"{one:,.0f}" for one in _by_process(row.spent))]
        for name, row in rows.items()
        if row.spent
    ]
    waiting = [[name, *calls(row, "wait")] for name, row in rows.items() if "wait" in row.calls]
    used = [f"cores: {_WHO[0]}", *_WHO[1:]]
    claims = ["claim p50 ms", "p99", "finish p50 ms", "p99"]
    return [
        Table("Claim and finish:", ["", "clients", "jobs/s", "of the direct worker", *claims, *used], work),
        Table("Enqueue:", ["", "clients", "jobs/s", "p50 ms", "p99", *used], making),
        Table("Microseconds of processor time a job, which a busy machine blurs less:", ["", *_WHO], spent),
        Table("From the call that enqueues to the job in hand, nothing else to do:", ["", "p50 ms", "p99"], waiting),
    ]


def _by_process(notes: dict[str, list[float]]) -> list[float | None]:
    """The medians of the three processes; the direct worker stands where the dispatcher does."""
    names = "generator", "dispatcher" if "dispatcher" in notes else "worker", "PostgreSQL"
    return [statistics.median(notes[name]) if name in notes else None for name in names]


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    jobs = Sizes(jobs=options.jobs or (2_000 if options.quick else 10_000)).jobs_for(TENURE)
    times = 1 if options.quick else options.times
    with servers.postgres(None) as postgres, running(postgres) as bench:
        for turn in range(times):
            tell(f"repetition {turn + 1} of {times}")
            for step in steps(jobs, options.concurrency, idle_jobs(jobs), direct=options.direct):
                step(bench)
        machine = f"{servers.machine()}, {postgres.called}"
    if options.json:
        print(json.dumps(as_rows(bench.rows)))
        return
    print(f"# Over HTTP, beside the direct worker\n\n{machine}, all processes on the same cores; {jobs:,} jobs a row,")
    print(f"medians of {times} interleaved repetitions." if times > 1 else "one repetition.")
    for table in tables(bench.rows):
        table.show()


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., object] = parser.add_argument
    add("--quick", action="store_true", help="fewer jobs, once: half a minute")
    add("--jobs", type=int, metavar="N", help="of each row, in whole hundreds; 10,000 by default")
    add("--concurrency", type=int, default=64, metavar="N", help="clients that claim one by one; 64 by default")
    add("--times", type=int, default=3, metavar="N", help="interleaved repetitions; 3 by default")
    add("--no-direct", dest="direct", action="store_false", help="leave out the direct worker")
    add("--json", action="store_true", help="stdout is only the list of rows")
    options = parser.parse_args()
    if min(options.jobs or 1, options.concurrency, options.times) < 1:
        parser.error("at least one of each")
    # A shell starts what it puts into the background deaf to SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends through every `finally`
    try:
        run(options)
    except Stuck as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
