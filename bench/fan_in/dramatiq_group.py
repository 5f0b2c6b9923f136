"""Dramatiq on Redis with 8 threads: a group with a completion callback, which does not get the results."""

from __future__ import annotations

import threading
from collections.abc import Callable

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from bench.fan_in import answer
from bench.fan_in import end as ended


def actors(address: str) -> tuple[dramatiq.Actor, dramatiq.Actor]:
    """The two kinds of jobs."""
    broker = RedisBroker(url=f"unix://{address}")
    if not any(isinstance(one, GroupCallbacks) for one in broker.middleware):
        broker.add_middleware(GroupCallbacks(RedisBackend(url=f"unix://{address}")))
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def part(n: int) -> int:
        return n

    @dramatiq.actor
    def last(count: int) -> None:
        ended([0] * count)

    return part, last


def work(address: str) -> None:
    """Run a worker's threads."""
    dramatiq.Worker(actors(address)[0].broker, worker_threads=8).start()
    threading.Event().wait()


def start(address: str) -> Callable[[int], None]:
    """Send a group."""
    part, last = actors(address)

    def make(count: int) -> None:
        group = dramatiq.group([part.message(n) for n in range(count)])
        group.add_completion_callback(last.message(count))
        group.run()

    return make


if __name__ == "__main__":
    answer(work, start)
