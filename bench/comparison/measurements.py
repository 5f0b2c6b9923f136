"""The measurements, with the same code for every peer: enqueue and drain, an idle queue, sustained load.

Each starts with an empty database. A job counts as finished when its end is committed: the driver counts the remaining
jobs in the peer's own tables, so it does not matter when a worker reports the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from bench.comparison import installation
from bench.comparison.peers import Peer
from bench.comparison.process import Running, Stuck
from bench.comparison.servers import Server

#: Nothing moved for so long: the peer hangs.
PATIENCE_S = 30.0
_WARM_UP = 10


@dataclass(frozen=True)
class Sizes:
    """How much of each is measured."""

    #: Of the number of jobs that `peers.py` names for a peer; or a number of its own for all of them.
    share: float = 1.0
    jobs: int | None = None
    idle: int = 300
    gap_s: float = 0.02
    sustained_s: float = 30.0
    slice_s: float = 5.0

    def jobs_for(self, peer: Peer) -> int:
        """In whole hundreds, as workers count."""
        return max(100, round((self.jobs or peer.jobs * self.share) / 100) * 100)


@dataclass
class Drained:
    """What enqueuing and draining so many jobs took; processor time is that of the draining."""

    jobs: int
    enqueue_per_s: float
    drain_per_s: float
    wal_bytes: float | None
    client_s: float | None
    server_s: float | None
    peak_mb: float | None


@dataclass
class Side:
    """A peer, ready to be measured on its server."""

    peer: Peer
    server: Server
    command: list[str]
    #: What was found, one entry a repetition.
    drained: list[Drained] = field(default_factory=list)
    latencies: list[list[float]] = field(default_factory=list)
    sustained: list[list[float]] = field(default_factory=list)
    #: The long run, where there was one.
    lasting: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def start(self, role: str, address: str, *rest: str) -> Running:
        """Start the adapter in one of its roles."""
        return Running([*self.command, role, address, *rest], installation.environment(self.peer))

    def fresh(self) -> str:
        """An empty database with the peer's schema; its address."""
        address = self.server.fresh(self.peer.name)
        with self.start("setup", address) as process:
            process.done(PATIENCE_S * 2)
        return address

    @contextmanager
    def producing(self, address: str) -> Iterator[Running]:
        """A process that creates jobs on request."""
        with self.start("producer", address) as producer:
            while producer.line(PATIENCE_S) != ["ready"]:
                pass
            yield producer

    def unfinished(self) -> int:
        """Jobs whose end is not committed."""
        return self.server.unfinished(self.peer.name, self.peer.unfinished)


def drain(side: Side, jobs: int) -> Drained:
    """Enqueue so many jobs, then start a worker: from its first handler until the last end is committed."""
    address = side.fresh()
    wal = side.server.wal()
    with side.producing(address) as producer:
        seconds = float(producer.ask(f"many {jobs}", 60 + jobs / 100)[2])
    if (waiting := side.unfinished()) != jobs:
        raise Stuck(f"{waiting} jobs wait where {jobs} were made")
    server = side.server.processor()
    with side.start("worker", address) as worker:
        worker.wait_for_begun(1, PATIENCE_S)
        client = worker.processor()
        worker.wait_for_begun(jobs, PATIENCE_S)
        _until_committed(side)
        spent = time.monotonic() - worker.first
        worker.listen()
        if worker.begun != jobs:
            raise Stuck(f"{worker.begun} handlers began for {jobs} jobs")
        after = side.server.wal()
        return Drained(
            jobs=jobs,
            enqueue_per_s=jobs / seconds,
            drain_per_s=jobs / spent,
            wal_bytes=None if wal is None or after is None else (after - wal) / jobs,
            client_s=_difference(client, worker.processor()),
            server_s=_difference(server, side.server.processor()),
            peak_mb=worker.peak_mb(),
        )


def idle(side: Side, jobs: int, gap_s: float) -> list[float]:
    """Milliseconds from enqueue to the handler's first line, one job at a time on an idle queue."""
    address = side.fresh()
    found = []
    with side.start("worker", address, "each") as worker, side.producing(address) as producer:
        for n in range(_WARM_UP + jobs):
            enqueued_at = float(producer.ask(f"one {n}", PATIENCE_S)[2])
            while (words := worker.line(PATIENCE_S))[:2] != ["at", str(n)]:
                pass
            if n >= _WARM_UP:
                found.append(1_000 * (float(words[2]) - enqueued_at))
            time.sleep(gap_s)
    return found


def sustain(side: Side, seconds: float, slice_s: float, backlog: int) -> list[float]:
    """Jobs finished a second in each slice, while about so many wait all the time; from an empty database."""
    address = side.fresh()
    lot = math.ceil(backlog / 2 / 100) * 100
    with side.start("worker", address) as worker, side.producing(address) as producer:
        made = 0
        marks: list[tuple[float, int]] = []
        while len(marks) <= round(seconds / slice_s):
            worker.listen()
            if worker.first and not marks:
                marks.append((worker.first, 0))
            if marks and time.monotonic() >= marks[0][0] + len(marks) * slice_s:
                # Nothing is being made at this moment, so that what was made is known exactly.
                left = side.unfinished()
                marks.append((time.monotonic(), made - left))
            elif made - worker.begun < backlog:
                producer.ask(f"many {lot}", PATIENCE_S + lot / 100)
                made += lot
            elif time.monotonic() - worker.last_progress > PATIENCE_S:
                raise Stuck(f"{worker.begun} of {made} jobs began, and no more for {PATIENCE_S:.0f} s")
            else:
                time.sleep(0.005)
    return [(end - begin) / (then - since) for (since, begin), (then, end) in pairwise(marks)]


def _until_committed(side: Side) -> None:
    """Wait until nothing is left; refuses with Stuck when what is left stays."""
    left, changed = side.unfinished(), time.monotonic()
    while left:
        time.sleep(0.005)
        now = side.unfinished()
        if now != left:
            left, changed = now, time.monotonic()
        elif time.monotonic() - changed > PATIENCE_S:
            raise Stuck(f"{left} jobs are not finished, and nothing moved for {PATIENCE_S:.0f} s")


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
