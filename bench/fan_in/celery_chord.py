"""Celery on Redis: a chord; the solo pool, 256 prefetched, results in Redis too."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery, chord

from bench.fan_in import answer
from bench.fan_in import end as ended


def application(address: str) -> Celery:
    """The application with its two tasks."""
    app = Celery("fan_in", broker=f"redis+socket://{address}", backend=f"redis+socket://{address}")
    app.conf.update(worker_prefetch_multiplier=256, worker_redirect_stdouts=False)

    @app.task(name="part")
    def part(n: int) -> int:
        return n

    @app.task(name="last", ignore_result=True)
    def last(results: list[int]) -> None:
        ended(results)

    return app


def work(address: str) -> None:
    """Run a worker."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    application(address).worker_main(["--quiet", "worker", "--pool=solo", *quiet])


def start(address: str) -> Callable[[int], None]:
    """Send a chord."""
    app = application(address)

    def make(count: int) -> None:
        chord([app.tasks["part"].s(n) for n in range(count)])(app.tasks["last"].s())

    return make


if __name__ == "__main__":
    answer(work, start)
