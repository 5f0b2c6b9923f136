"""Document 000 through the real worker: what a handler raises, and what neither its end nor its beats write."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.errors import InvalidTransition
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.settings import Settings
from tenure.worker import Worker
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


@pytest.mark.req("S0-62")
async def test_worker_that_renews_its_lease_leaves_no_trace_in_the_events(dsn: str, db: Harness) -> None:
    call_next = asyncio.Event()
    async with App(dsn, settings=Settings(database_url=dsn)) as app:  # with the document's own lease: 60 s

        @app.task(contract="phase27")
        async def work(ctx: tenure.Context) -> None:
            await ctx.progress({"at": ctx.attempt})
            await call_next.wait()
            if ctx.attempt == 1:
                raise Boom("once")

        async with working(app) as worker:
            ticket = await work.enqueue()
            await until(lambda: db.row(ticket.id)["progress"] is not None)
            for _ in range(2):
                await _renewed(worker, db, ticket.id)
            before = db.fingerprint(ticket.id)
            for mode in ("soft", "hard"):
                with pytest.raises(InvalidTransition):
                    await app.cancel(ticket.id, mode=mode)
            assert db.row(ticket.id)["cancel_requested_at"] is None
            assert _still(db.fingerprint(ticket.id)) == _still(before)
            call_next.set()
            await until(lambda: worker.counts["retried"] == 1)
            db.due(ticket.id)
            await until(lambda: worker.counts["succeeded"] == 1)
    again = ["task.running", "task.failed", "task.requeued"]
    events = db.sql("select * from tenure_phase27.task_events where task_id = %s order by id", ticket.id)
    assert [event["kind"] for event in events] == [*again, "task.running", "task.completed"]
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "retry", "claim", "succeed"]
    shown = json.dumps([{**event, "ts": None} for event in events], default=str).lower()
    assert [word for word in ("heartbeat", "renew", "cancel", "dlq", "dead", "letter") if word in shown] == []


async def _renewed(worker: Worker, db: Harness, job_id: int) -> None:
    """Let most of the lease be over and the worker look at the job: it beats, and has its whole lease again."""
    db.wear(job_id)
    first = db.row(job_id)["last_heartbeat_at"]

    def has_beaten() -> bool:
        worker.wake_up(JOB_CHANGED, str(job_id))
        row = db.row(job_id)
        beaten = row["last_heartbeat_at"] is not None and row["last_heartbeat_at"] != first
        left = "select lock_expires_at - clock_timestamp() > interval '400 s' as renewed from tenure_phase27.tasks"
        return beaten and bool(db.value(f"{left} where task_id = %s", job_id))

    await until(has_beaten)


def _still(fingerprint: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, without what another beat may change."""
    beats = {"xmin", "last_heartbeat_at", "lease_expires_at"}
    return [{name: value for name, value in row.items() if name not in beats} for row in fingerprint]
