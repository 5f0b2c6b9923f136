"""Tenure: a chord, all defaults."""

from __future__ import annotations

from collections.abc import Callable

import tenure
from bench.fan_in import answer
from bench.fan_in import end as ended


def application(address: str) -> tenure.App:
    """The application with its two tasks."""
    app = tenure.App(address)

    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def last(results: list[int]) -> None:
        ended(results)

    return app


def work(address: str) -> None:
    """Run a worker."""
    application(address).run_worker(concurrency=1_000)


def start(address: str) -> Callable[[int], None]:
    """Make a flow of a chord."""
    app = application(address)

    def make(count: int) -> None:
        flow = app.flow("fan-in")
        flow.chord([app.tasks["part"].call(n) for n in range(count)], app.tasks["last"])
        flow.start_sync()

    return make


if __name__ == "__main__":
    answer(work, start)
