"""Tenure beside its peers: the same no-op jobs, one PostgreSQL, one worker process each, in one run.

    ./dev bench [--quick] [--all] [--only NAME]… [--json] [--chart FILE.svg]

Each peer runs in its own environment with its best known configuration. Repetitions are interleaved, so that a busy
moment of the machine affects all peers. Compare only within one run. docs/reference/bench.md describes the columns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tenure
from bench.comparison import chart, installation, limit, measurements, report, servers
from bench.comparison.measurements import Side, Sizes
from bench.comparison.more_peers import MORE
from bench.comparison.peers import SIX, TENURE, Peer
from bench.comparison.process import Stuck

_OURS = dataclasses.replace(TENURE, version=tenure.__version__)
_FULL = Sizes()
_QUICK = Sizes(share=0.3, idle=100, sustained_s=5)
_LASTING_S = 300.0
#: A peer may wait for more than this only when it drains more than this in a second.
_LEAST_BACKLOG = 1_000


def tell(line: str) -> None:
    """Stdout is for results."""
    sys.stderr.write(f"{line}\n")


def ready(peers: list[Peer], stack: ExitStack, postgres: servers.Postgres) -> tuple[list[Side], list[str]]:
    """Install what is missing and start what is needed; reports why a peer cannot be measured here."""
    sides, missing = [], []
    redis: servers.Redis | None = None
    for peer in peers:
        try:
            command = installation.command(peer)
            if peer.store == "redis" and redis is None:
                redis = stack.enter_context(servers.redis())
        except installation.Missing as error:
            missing.append(f"{peer.name}: {error}")
            continue
        server: servers.Server = postgres
        if peer.store == "redis":
            assert redis is not None
            server = redis
        sides.append(Side(peer, server, command))
    return sides, missing


@contextmanager
def noted(side: Side, what: str) -> Iterator[None]:
    """A peer that hangs or breaks is reported, and the run goes on."""
    tell(f"  {side.peer.name}: {what} …")
    try:
        yield
    except Exception as error:  # whatever a stranger does, the others shall still be measured
        why = str(error) if isinstance(error, Stuck) else f"{type(error).__name__}: {error}"
        side.notes.append(f"{side.peer.name}, {what}: {why}")
        tell(f"    {why}")


def repeat(sides: list[Side], sizes: Sizes, times: int) -> None:
    """Measure everybody in turn, several times, each time beginning with another."""
    for turn in range(times):
        tell(f"repetition {turn + 1} of {times}")
        first = turn % len(sides)
        for side in (*sides[first:], *sides[:first]):
            with noted(side, "enqueue and drain"):
                side.drained.append(measurements.drain(side, sizes.jobs_for(side.peer)))
            with noted(side, "idle"):
                side.latencies.append(measurements.idle(side, sizes.idle, sizes.gap_s))
            with noted(side, "sustained"):
                found = measurements.sustain(side, sizes.sustained_s, sizes.slice_s, _backlog(side))
                side.sustained.append(found)


def last(sides: list[Side], sizes: Sizes) -> None:
    """Five minutes of sustained load for us and the fastest peer."""
    ours = [side for side in sides if side.peer.name == "tenure"]
    others = sorted((side for side in sides if side not in ours and side.drained), key=_drained, reverse=True)
    for side in ours + others[:1]:
        with noted(side, f"sustained for {_LASTING_S:.0f} s"):
            side.lasting = measurements.sustain(side, _LASTING_S, sizes.slice_s, _backlog(side))


def _drained(side: Side) -> float:
    return max((one.drain_per_s for one in side.drained), default=0.0)


def _backlog(side: Side) -> int:
    """About a second of its own draining: enough to be busy, little enough to be no depth."""
    return max(_LEAST_BACKLOG, round(_drained(side)))


def report_lines(
    sides: list[Side], missing: list[str], sizes: Sizes, machine: str, floor: dict[str, float] | str | None
) -> Iterator[str]:
    """Everything that was found, in Markdown."""
    kept = ", ".join(f"{name} {value}" for name, value in servers.SETTINGS.items())
    command = " ".join(["./dev bench", *sys.argv[1:]])
    yield f"# Tenure beside its peers\n\n{machine}, client and server on the same cores. PostgreSQL with {kept}."
    yield f"Printed by `{command}`. Medians of {_times(sides)}; what the columns mean: docs/reference/bench.md."
    yield "## Speed\n\n" + report.speeds(sides)
    yield "## Sustained load, jobs finished a second\n\n" + report.sustained(sides, sizes.slice_s)
    if any(side.lasting for side in sides):
        yield "### Five minutes\n\n" + report.lasting(sides, sizes.slice_s)
    yield "## What each does\n\n" + report.deeds(sides)
    if isinstance(floor, dict):
        lines = [(f"{value:,.0f}" for value in floor.values())]
        yield "## The limit: pgbench alone, batches of 1,000, three log rows a job\n\n" + report.table(floor, lines)
    elif floor:
        yield f"## The limit\n\n{floor}"
    notes = [f"- not measured: {line}" for line in missing]
    notes += [f"- failed: {line}" for side in sides for line in side.notes]
    if notes:
        yield "## Notes\n\n" + "\n".join(notes)


def _times(sides: list[Side]) -> str:
    times = max((len(side.drained) for side in sides), default=0)
    return f"{times} interleaved repetitions, with their range" if times > 1 else "one repetition"


def run(options: argparse.Namespace, peers: list[Peer]) -> int:
    """Measure and print."""
    sizes = _QUICK if options.quick else _FULL
    if options.jobs:
        sizes = dataclasses.replace(sizes, jobs=options.jobs, idle=min(sizes.idle, options.jobs))
    if options.sustained:
        sizes = dataclasses.replace(sizes, sustained_s=options.sustained, slice_s=min(sizes.slice_s, options.sustained))
    binaries = Path(options.postgres_bin) if options.postgres_bin else None
    floor: dict[str, float] | str | None = None
    with ExitStack() as stack:
        postgres = stack.enter_context(servers.postgres(binaries))
        sides, missing = ready(peers, stack, postgres)
        for line in missing:
            tell(f"not measured: {line}")
        repeat(sides, sizes, 1 if options.quick else options.repetitions)
        if not options.quick and not options.sustained:
            last(sides, sizes)
        if not options.json and not options.only:
            tell("the limit")
            try:
                floor = limit.measure(postgres, binaries, 100 if options.quick else 400)
            except installation.Missing as error:
                floor = f"Not measured: {error}."
        engines = ", ".join(dict.fromkeys(side.server.called for side in sides))
    machine = f"{servers.machine()}, {engines}"
    rows = [report.row(side) for side in sides]
    if options.json:
        print(json.dumps(rows))
    else:
        print("\n\n".join(report_lines(sides, missing, sizes, machine, floor)))
    if options.chart:
        Path(options.chart).write_text(chart.svg(rows, f"No-op jobs, one worker process each: {machine}."))
    return int(any(side.notes for side in sides))


def main() -> int:
    """Read the command line."""
    known: dict[str, Peer] = {peer.name: peer for peer in (_OURS, *SIX, *MORE)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., object] = parser.add_argument
    add("--quick", action="store_true", help="smaller counts, once, 5 s of sustained load: at most five minutes")
    add("--all", action="store_true", help=f"also {', '.join(peer.name for peer in MORE)}")
    add("--only", action="append", choices=list(known), metavar="NAME", help="only this one (may be repeated)")
    add("--json", action="store_true", help="stdout is only the list of rows")
    add("--chart", metavar="FILE.svg", help="write the bar chart, e.g. docs/pictures/peers.svg")
    add("--repetitions", type=int, default=3, metavar="N", help="interleaved; 3 by default")
    add("--jobs", type=int, metavar="N", help="so many jobs for everybody, in place of a few seconds' worth")
    add("--sustained", type=float, metavar="SECONDS", help="of sustained load, in place of 30; no five-minute run then")
    add("--postgres-bin", metavar="DIRECTORY", help="another PostgreSQL's programs, in place of the embedded one's")
    options = parser.parse_args()
    if options.only:
        peers = [known[name] for name in dict.fromkeys(options.only)]
    else:
        peers = [_OURS, *SIX, *(MORE if options.all else ())]
    # A shell starts what it puts into the background deaf to SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends through every `finally`
    try:
        return run(options, peers)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
