"""Middleware: around enqueue and run, told of claims, endings and the shutdown, in the order in which it was given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

import tenure
from tenure.app import App
from tenure.errors import BadInput
from tenure.jobs.job import Job, NewJob
from tests.harness import Harness
from tests.worker.working import working


class Diary(tenure.Middleware):
    """Writes down what it sees, under its name."""

    def __init__(self, name: str, pages: list[str]) -> None:
        self.name, self.pages = name, pages

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[int]]) -> int:
        """Before and after."""
        self.pages.append(f"{self.name} enqueue")
        return await call_next(replace(job, queue="changed"))

    async def claim(self, jobs: Sequence[Job]) -> None:
        """Told."""
        self.pages.append(f"{self.name} claim {len(jobs)}")

    async def run(self, ctx: tenure.Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Before and after."""
        self.pages.append(f"{self.name} run")
        value = await call_next()
        self.pages.append(f"{self.name} ran {value}")
        return value + 1

    async def finish(self, job: Job, became: Any) -> None:
        """Told, and failing at it."""
        self.pages.append(f"{self.name} finish {became.state}")
        raise RuntimeError("too late to change anything")

    async def shutdown(self) -> None:
        """Told."""
        self.pages.append(f"{self.name} shutdown")


async def test_hooks_are_called_in_order_and_what_they_change_counts(dsn: str, db: Harness) -> None:
    pages: list[str] = []
    async with App(dsn, middleware=[Diary("outer", pages), Diary("inner", pages)]) as app:

        @app.task
        async def work() -> int:
            pages.append("work")
            return 1

        async with working(app, queues=["changed"]):
            ticket = await work.enqueue()
            assert await app.result(ticket, timeout=60) == 3
    assert pages == [
        "outer enqueue", "inner enqueue", "outer claim 1", "inner claim 1", "outer run", "inner run", "work",
        "inner ran 1", "outer ran 2", "outer finish succeeded", "inner finish succeeded", "outer shutdown",
        "inner shutdown",
    ]  # fmt: skip


class Refusing(tenure.Middleware):
    """Lets nothing in, and nothing run."""

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[int]]) -> int:
        """Refuse what is named so."""
        if job.type == "refused":
            raise PermissionError("not today")
        return await call_next(job)

    async def run(self, ctx: tenure.Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Refuse all."""
        raise tenure.PermanentError("not here")


async def test_hook_that_raises_refuses_the_enqueue_or_fails_the_job(dsn: str, db: Harness) -> None:
    async with App(dsn, middleware=[Refusing()]) as app:

        @app.task
        async def refused() -> None: ...

        @app.task
        async def work() -> None: ...

        with pytest.raises(PermissionError):
            await refused.enqueue()
        with psycopg.connect(dsn) as connection, pytest.raises(PermissionError):
            refused.enqueue_in(connection)
        assert db.value("select count(*) from tenure.job") == 0
        async with working(app):
            with pytest.raises(tenure.JobFailed, match="not here"):
                await app.result(await work.enqueue(), timeout=60)


class Waiting(tenure.Middleware):
    """Waits for something before it lets a job in."""

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[int]]) -> int:
        """Wait."""
        import asyncio

        await asyncio.sleep(0)
        return await call_next(job)


async def test_hook_that_waits_cannot_join_a_synchronous_transaction(dsn: str, db: Harness) -> None:
    async with App(dsn, middleware=[Waiting()]) as app:

        @app.task
        async def work() -> None: ...

        with psycopg.connect(dsn) as connection, pytest.raises(BadInput, match="asynchronous connection"):
            work.enqueue_in(connection)
        async with await psycopg.AsyncConnection.connect(dsn) as waiting:
            await work.enqueue_in(waiting)
        assert db.value("select count(*) from tenure.job") == 1
