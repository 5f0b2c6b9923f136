"""The idle part of `bench beside`: from the enqueue to the handler's first line, in two trees job by job in turn.

A worker and a producer of each tree run all the time, each tree with a database of its own in one PostgreSQL. Only one
job is under way at any moment, so a busy moment of the machine affects both trees alike.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.comparison import servers
from bench.comparison.process import Running

_PATIENCE_S = 60.0
#: Jobs of each tree before the first that counts; and seconds between two jobs.
_WARM_UP, _GAP_S = 30, 0.02

Figures = dict[str, float]


@dataclass
class _Side:
    """A tree with its worker and its producer, and the milliseconds of each job."""

    worker: Running
    producer: Running
    latencies: list[float] = field(default_factory=list)

    def one(self, number: int) -> None:
        """Enqueue one job and wait for its first line."""
        enqueued_at = float(self.producer.ask(f"one {number}", _PATIENCE_S)[2])
        while (words := self.worker.line(_PATIENCE_S))[:2] != ["at", str(number)]:
            pass
        self.latencies.append(1_000 * (float(words[2]) - enqueued_at))

    def figures(self, spent: tuple[float, float]) -> Figures:
        """What the jobs since the last call took, and forget them."""
        ordered, self.latencies = sorted(self.latencies), []
        jobs = len(ordered)
        return {
            "idle, p10 ms": ordered[jobs // 10],
            "idle, p50 ms": ordered[jobs // 2],
            "idle, p99 ms": ordered[min(jobs - 1, jobs * 99 // 100)],
            "idle, worker processor µs a job": 1e6 * spent[0] / jobs,
            "idle, producer processor µs a job": 1e6 * spent[1] / jobs,
        }

    def processor(self) -> tuple[float, float]:
        """Seconds of processor time of worker and producer so far."""
        return self.worker.processor() or 0.0, self.producer.processor() or 0.0


def run_idle(trees: Mapping[str, Path], times: int, jobs: int) -> dict[str, list[Figures]]:
    """Run the rounds; each tree runs its own adapter with its own sources."""
    rounds: dict[str, list[Figures]] = {name: [] for name in trees}
    with servers.postgres(None) as postgres, ExitStack() as stack:
        sides = {name: _start(postgres, name, tree, stack) for name, tree in trees.items()}
        number = 0
        for turn in range(times + 1):
            before = {name: side.processor() for name, side in sides.items()}
            for each in range(_WARM_UP if turn == 0 else jobs):
                for name in sorted(sides, reverse=bool(each % 2)):
                    sides[name].one(number := number + 1)
                    time.sleep(_GAP_S)
            for name, side in sides.items():
                then, now = before[name], side.processor()
                figures = side.figures((now[0] - then[0], now[1] - then[1]))
                if turn > 0:
                    rounds[name].append(figures)
    return rounds


def _start(postgres: servers.Postgres, name: str, tree: Path, stack: ExitStack) -> _Side:
    address = postgres.fresh(f"tenure_{name}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree)))}
    # `-P`: the directory in which it starts, this tree's, is not on its path.
    command = [sys.executable, "-P", "-m", "bench.adapters.tenure"]
    with Running([*command, "setup", address], environment) as setup:
        setup.done(_PATIENCE_S)
    worker = stack.enter_context(Running([*command, "worker", address, "each"], environment))
    producer = stack.enter_context(Running([*command, "producer", address], environment))
    while producer.line(_PATIENCE_S) != ["ready"]:
        pass
    return _Side(worker, producer)
