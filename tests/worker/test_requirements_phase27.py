"""Document 000 through the real worker: what a handler raises, and what the worker's own end is not."""

from __future__ import annotations

import asyncio

import pytest

import tenure
from tenure.app import App
from tests.harness import Harness
from tests.worker.working import until, working


class Boom(Exception):
    """An exception that Tenure never heard of."""


@pytest.mark.req("S0-39")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("gone"),
        Boom("ours"),
        tenure.PermanentError("for ever"),
        tenure.ValidationError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_goes_the_same_way(app: App, db: Harness, error: Exception) -> None:
    ran: list[int] = []

    @app.task(contract="phase27", max_attempts=3)
    async def work() -> None:
        ran.append(1)
        raise error

    async with working(app):
        ticket = await work.enqueue()
        await until(lambda: db.row(ticket.id)["role"] == "done")
    kinds = db.sql("select kind from tenure_phase27.task_events where task_id = %s order by id", ticket.id)
    again = ["task.running", "task.failed", "task.requeued"]
    assert [row["kind"] for row in kinds] == [*again, *again, "task.running", "task.failed"]
    task = db.one("select status, attempt, last_error from tenure_phase27.tasks where task_id = %s", ticket.id)
    assert (task["status"], task["attempt"], len(ran)) == ("failed", 3, 3)
    assert str(error) in task["last_error"]["message"]


@pytest.mark.req("S0-39")
async def test_end_of_the_worker_is_no_exception_of_the_handler(app: App, db: Harness) -> None:
    began = asyncio.Event()

    @app.task(contract="phase27")
    async def work() -> None:
        began.set()
        await asyncio.sleep(600)

    async with working(app, grace=0.1):
        ticket = await work.enqueue()
        await began.wait()
    kinds = db.sql("select kind from tenure_phase27.task_events where task_id = %s order by id", ticket.id)
    assert [row["kind"] for row in kinds] == ["task.running"]
    assert db.row(ticket.id)["last_error"] is None
