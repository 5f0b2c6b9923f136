"""A process that stops before every statement it would make, so that it can be killed between any two of them.

Forked with a store of its own. A verb is a plan, a generator of statements: the same plan is run here, only that each
step is announced and waits for leave. `begin`, `commit` and `answer` are points too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from tenure.postgres.engine import Engine
from tenure.postgres.statement import Atomic, Plan, Statement
from tenure.postgres.store import Store
from tests.harness import Harness

T = TypeVar("T")

_FORK = multiprocessing.get_context("fork")
_NAME = "stepping"
_AT_MOST = 60.0  # seconds from one point to the next

Point = Callable[[str], None]
Work = Callable[[Store, Point], Awaitable[Any]]


def stepwise(plan: Plan[T], point: Point) -> Plan[T]:
    """The same plan, with a point before each of its steps."""
    try:
        step = next(plan)
        while True:
            if isinstance(step, Atomic):
                point("begin")
                step = Atomic(_to_commit(step.plan, point))
            elif isinstance(step, Statement):
                point(step.query.name)
            try:
                answer = yield step
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _to_commit(plan: Plan[T], point: Point) -> Plan[T]:
    answer = yield from stepwise(plan, point)
    point("commit")
    return answer


class StepwiseEngine(Engine):
    """The engine, with a point before every statement."""

    point: Point

    async def run(self, plan: Callable[[], Plan[T]], *, beat: bool = False) -> T:
        return await super().run(lambda: stepwise(plan(), self.point), beat=beat)


def _serve(dsn: str, pipe: Connection, work: Work) -> None:
    def point(name: str) -> None:
        pipe.send(name)
        pipe.recv()

    async def main() -> None:
        engine = await StepwiseEngine.connect(make_conninfo(dsn, application_name=_NAME), None, 1)
        engine.point = lambda _: None  # type: ignore[attr-defined]
        store = Store(engine)
        await store.jobs([1])  # connected, and the registry read
        engine.point = point  # type: ignore[attr-defined]
        await work(store, point)
        point("answer")
        pipe.send(None)
        await store.close()

    asyncio.run(main())


@contextmanager
def stepping(dsn: str, work: Work) -> Iterator[Iterator[str]]:
    """Start a process at this work; gives its points one by one, and kills it where the block ends."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_serve, args=(dsn, theirs, work), daemon=True)
    process.start()
    theirs.close()

    def points() -> Iterator[str]:
        while True:
            assert ours.poll(_AT_MOST), "the process came to no further point"
            name = ours.recv()
            if name is None:
                return
            yield name
            ours.send("go on")

    try:
        yield points()
    finally:
        process.kill()
        process.join()
        ours.close()


def killed_everywhere(
    db: Harness, scene: Callable[[], tuple[T, Work]], at: Callable[[T, str], None]
) -> Iterator[tuple[T, list[str]]]:
    """Play a scene again and again, killing the process at its first point, its second, and so on to the last.

    Gives each time what the scene was about and the points that were reached; at the last of them it was killed. `at`
    is called while the process stands at a point.
    """
    for further in range(1, 100):
        subject, work = scene()
        reached: list[str] = []
        with stepping(db.dsn, work) as points:
            for name in points:
                reached.append(name)
                at(subject, name)
                if len(reached) == further:
                    break
        _gone(db)
        yield subject, reached
        if reached[-1] == "answer":
            return
    raise AssertionError("the work never came to its end")


def _gone(db: Harness) -> None:
    """Wait until the database has noticed that the process died, and let go of what it held."""
    give_up = time.monotonic() + _AT_MOST
    lives = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"
    while db.sql(lives, _NAME):
        assert time.monotonic() < give_up, "a dead process is still connected"
        time.sleep(0.002)
