"""What people see of attempts that did not end well, and of what handlers log themselves."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import logs
from tenure.app import App
from tenure.jobs.formats import FAILURE_LOGGER
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.upkeep import once
from tenure.worker import child_log
from tests.harness import Harness
from tests.worker import tasks
from tests.worker.rounds import HALF_S, Limits, Pulse
from tests.worker.test_failure_log import Place, everywhere, failures, log
from tests.worker.working import steady, until, working

__all__ = ["log"]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a root handler writes that has Tenure's filter and the JSON formatter."""
    written = io.StringIO()
    handler, root = logging.StreamHandler(written), logging.getLogger()
    handler.addFilter(logs.JobFilter())
    handler.setFormatter(logs.JsonFormatter())
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


def said(written: io.StringIO, logger: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for line in written.getvalue().splitlines()]
    return [line for line in every if line["logger"] == logger]


@everywhere
async def test_timeout_is_logged_once_with_the_place_where_the_handler_hung(
    dsn: str, log: pytest.LogCaptureFixture, place: Place, limits: Limits
) -> None:
    began, done = set[str](), threading.Event()
    async with place(dsn) as app:

        @app.task(timeout=0.2, max_attempts=1)
        async def waits_for_ever() -> None:
            began.add("on the loop")
            await asyncio.Event().wait()

        @app.task(timeout=0.2, max_attempts=1)
        def sleeps_in_a_thread() -> None:
            began.add("in a thread")
            done.wait(60)

        async with working(app) as worker:
            ids = [(await task.enqueue()).id for task in (waits_for_ever, sleeps_in_a_thread)]
            await until(lambda: len(began) == 2)
            limits.passes(0.2)
            await until(lambda: worker.counts["failed"] == 2)
            done.set()
    for job_id, name in zip(ids, ("waits_for_ever", "sleeps_in_a_thread"), strict=True):
        (record,) = failures(log, job_id)
        assert (record.levelno, record.task, record.attempt, record.decision) == (logging.ERROR, name, 1, "dead")
        first, *traceback = record.getMessage().splitlines()
        assert first == f"job {job_id} of {name}, attempt 1 failed, dead after 1 attempt"
        assert traceback[-1:] == ["TimeoutError: ran longer than 0.2 s"]
        assert f"in {name}" in "".join(traceback[1:2]), "the first frame is the handler's own"


def is_stopped(pid: str) -> bool:
    """Whether a process stands still by a signal."""
    return pid != "" and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("task", "place"),
    [
        (tasks.hangs, ["in hangs", "    time.sleep(600)"]),
        (tasks.waits, ["in waits", "    await asyncio.Event().wait()"]),
        (tasks.blocks, ["in blocks", "    hangs.function(began)"]),
        (tasks.stops_itself, ["  (its process was killed before it could report where the handler was)"]),
    ],
    ids=lambda given: str(getattr(given, "name", "")),
)
async def test_timeout_in_a_process_is_logged_with_the_place_where_the_handler_hung(
    app: App, log: pytest.LogCaptureFixture, tmp_path: Path, task: Any, place: list[str]
) -> None:
    app.tasks[task.name] = task
    async with working(app, queues=["default"]) as worker:
        ticket = await app._enqueue(task.options(max_attempts=1).call(str(tmp_path / "began")).job)
        await until((tmp_path / "began").exists)
        if task is tasks.stops_itself:
            await until(lambda: is_stopped((tmp_path / "began").read_text()))
        (running,) = worker._heartbeats.held
        running._time_out()  # its time is over; how long that takes depends on the machine
        await until(lambda: worker.counts["failed"] == 1)
    (record,) = failures(log, ticket.id)
    first, *traceback = record.getMessage().splitlines()
    assert first == f"job {ticket.id} of {task.name}, attempt 1 failed, dead after 1 attempt"
    assert traceback[0] == "Traceback (most recent call last):"
    assert place[0] in traceback[1], "the first frame is the handler's own"
    assert set(place[1:]) <= set(traceback)
    assert traceback[-1].startswith("TimeoutError: ran longer than ")
    assert record.error_code == "TIMEOUT"


@pytest.mark.parametrize("verdict", ["raises", "cancels"])
async def test_failure_to_undo_an_effect_is_logged_with_its_traceback(
    app: App, log: pytest.LogCaptureFixture, verdict: str
) -> None:
    @app.task(contract="reliability")
    async def order(ctx: tenure.Context) -> tenure.Cancel:
        await ctx.effect("charge", lambda: "receipt")
        if verdict == "raises":
            raise tenure.PermanentError("no such address")
        return tenure.Cancel("changed my mind")

    @order.compensate("charge")
    async def refund(result: str) -> None:
        raise ConnectionError("the bank is closed")

    async with working(app) as worker:
        await order.enqueue()
        await until(lambda: worker.counts["failed"] == 1)
    (record,) = failures(log)
    assert (record.levelno, record.decision, record.attempt) == (logging.ERROR, "dead_lettered", 1)
    lines = record.getMessage().splitlines()
    assert any("in refund" in line for line in lines)
    assert lines[-1] == "ConnectionError: the bank is closed"
    assert ("in order" in record.getMessage()) == (verdict == "raises")
    assert record.traceback == "\n".join(lines[1:])


async def test_soft_cancelled_job_whose_handler_puts_it_off_is_logged_as_cancelled(
    app: App, log: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def later(ctx: tenure.Context) -> tenure.Snooze:
        await app.cancel(ctx.job.id)
        return tenure.Snooze(60)

    async with working(app) as worker:
        ticket = await later.enqueue()
        await until(lambda: worker.counts["cancelled"] == 1)
    (record,) = failures(log)
    told = f"job {ticket.id} of later, attempt 1 ended, cancelled by request (its handler put it off)"
    assert (record.levelno, record.decision, record.getMessage()) == (logging.WARNING, "cancelled", told)


async def test_soft_cancelled_job_that_is_handed_back_is_logged_as_cancelled(
    app: App, log: pytest.LogCaptureFixture, db: Harness
) -> None:
    asked = asyncio.Event()

    @app.task
    async def goes_on(ctx: tenure.Context) -> None:
        await app.cancel(ctx.job.id)
        asked.set()
        await asyncio.Event().wait()

    async with working(app, grace=0.0) as worker:
        ticket = await goes_on.enqueue()
        await asked.wait()
    (record,) = failures(log)
    told = f"job {ticket.id} of goes_on, attempt 1 ended, cancelled by request (it was handed back)"
    assert (record.levelno, record.decision, record.getMessage()) == (logging.WARNING, "cancelled", told)
    assert (db.row(ticket.id)["state"], dict(worker.counts)) == ("cancelled", {"claimed": 1, "cancelled": 1})


@everywhere
@pytest.mark.parametrize("then", ["waits", "returns", "raises"])
async def test_hard_cancel_of_a_running_job_is_logged_as_such_and_is_no_refusal(
    dsn: str, db: Harness, log: pytest.LogCaptureFixture, place: Place, then: str
) -> None:
    async with place(dsn) as app:

        @app.task
        async def stopped(ctx: tenure.Context) -> str:
            async with Store.open(dsn) as store:
                await store.cancel(ctx.job.id, mode="hard", reason="wrong order", actor="ada")
            if then == "waits":
                await asyncio.Event().wait()
            if then == "raises":
                raise ValueError("odd")
            return "done"

        async with working(app) as worker:
            ticket = await stopped.enqueue()
            await until(lambda: sum(worker.counts[what] for what in ("cancelled", "refused", "lost", "failed")) == 1)
    (record,) = failures(log)
    assert record.getMessage() == f"job {ticket.id} of stopped, attempt 1 ended, cancelled by ada (wrong order)"
    assert (record.levelno, record.decision, record.task) == (logging.WARNING, "cancelled", "stopped")
    assert (worker.counts["cancelled"], db.row(ticket.id)["state"]) == (1, "cancelled")


async def test_handler_that_stops_when_asked_is_logged_as_cancelled(
    app: App, log: pytest.LogCaptureFixture, db: Harness
) -> None:
    @app.task
    async def stops() -> tenure.Cancel:
        return tenure.Cancel("no longer wanted")

    async with working(app) as worker:
        ticket = await stops.enqueue()
        await until(lambda: worker.counts["cancelled"] == 1)
    (record,) = failures(log)
    told = f"job {ticket.id} of stops, attempt 1 ended, cancelled by its handler (no longer wanted)"
    assert (record.levelno, record.getMessage()) == (logging.WARNING, told)


@everywhere
async def test_lost_lease_is_logged_by_the_worker_that_lost_it(
    dsn: str, db: Harness, log: pytest.LogCaptureFixture, place: Place, pulse: Pulse
) -> None:
    taken_over, lost = asyncio.Event(), asyncio.Event()
    async with place(dsn) as app:

        @app.task
        async def robbed(ctx: tenure.Context) -> None:
            if ctx.attempt == 2:
                taken_over.set()
                await lost.wait()
                return
            async with Store.open(dsn) as store:
                db.expire(ctx.job.id)
                await store.reap("standard")
            await asyncio.Event().wait()

        async with working(app, upkeep=False) as worker:
            ticket = await robbed.enqueue()
            await taken_over.wait()  # nobody locks the row any more, which would put the heartbeat off
            await until(pulse.another())
            pulse.passes(HALF_S)  # the next heartbeat is due, which finds the loss
            await until(lambda: worker.counts["lost"] == 1)
            lost.set()
            await until(lambda: worker.counts["succeeded"] == 1)
    (record,) = [one for one in log.records if "lease is lost" in one.getMessage()]
    assert (record.levelno, record.__dict__["job_id"], record.__dict__["attempt"]) == (logging.WARNING, ticket.id, 1)
    assert "(expire by tenure:upkeep, the job is queued); the handler was stopped" in record.getMessage()


@everywhere
async def test_lease_that_another_claim_takes_over_is_one_failed_attempt(
    dsn: str, db: Harness, log: pytest.LogCaptureFixture, place: Place, pulse: Pulse
) -> None:
    async with place(dsn) as app:

        @app.task(contract="phase27")
        async def robbed(ctx: tenure.Context) -> None:
            async with Store.open(dsn) as store:
                db.expire(ctx.job.id)
                await store.claim_by_id([ctx.job.id], worker="w2", contract="phase27", lease_ms=600_000)
            await until(pulse.another())
            pulse.passes(HALF_S)  # the next heartbeat is due, which finds the loss
            await asyncio.Event().wait()

        async with working(app, upkeep=False, concurrency=1) as worker:
            ticket = await robbed.enqueue()
            await until(lambda: worker.counts["lost"] == 1)
    (record,) = [one for one in log.records if one.name == FAILURE_LOGGER]
    assert (record.__dict__["job_id"], record.__dict__["attempt"]) == (ticket.id, 1)
    assert record.__dict__["decision"] == "retry"
    (stopped,) = [one for one in log.records if "the handler was stopped" in one.getMessage()]
    assert stopped.name == "tenure.worker"


async def test_upkeep_logs_each_lease_that_it_ends_with_its_decision(
    dsn: str, store: Store, db: Harness, log: pytest.LogCaptureFixture
) -> None:
    ids = [(await store.enqueue(NewJob("send", max_attempts=number))).job_id for number in (2, 1)]
    await store.claim("standard", ["default"], worker="w1", limit=10)
    db.expire(*ids)
    await once(store)
    retried, ended = failures(log)
    assert (retried.job_id, retried.task, retried.attempt, retried.decision) == (ids[0], "send", 1, "retry")
    assert (ended.job_id, ended.task, ended.attempt, ended.decision) == (ids[1], "send", 1, "dead")
    assert (retried.levelno, ended.levelno) == (logging.WARNING, logging.ERROR)
    assert f"job {ids[0]} of send, attempt 1 failed, retry in " in retried.getMessage()
    assert f"job {ids[1]} of send, attempt 1 failed, dead after 1 attempt\n" in ended.getMessage()


async def test_routine_is_told_at_debug_only(app: App, db: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tenure")

    @app.task
    async def send() -> None: ...

    @app.task(contract="dispatcher")
    async def again(ctx: tenure.Context) -> None:
        if ctx.attempt == 1:
            raise tenure.TransientError("busy")

    async with working(app) as worker:
        ticket = await send.enqueue()
        await again.enqueue()  # upkeep alone makes it ready again
        await until(lambda: worker.counts["succeeded"] == 2)
    (record,) = [one for one in caplog.records if one.__dict__.get("job_id") == ticket.id]
    assert (record.levelno, record.__dict__["decision"]) == (logging.DEBUG, "succeeded")
    assert record.getMessage().startswith(f"job {ticket.id} of send, attempt 1 ended, succeeded in ")
    parts = [one for one in caplog.records if one.name == "tenure.upkeep"]
    assert [one for one in parts if one.levelno > logging.DEBUG] == []
    assert [one.getMessage() for one in parts if one.getMessage().startswith("promote")] == ["promote dispatcher: 1"]


@everywhere
async def test_what_a_handler_logs_carries_its_job_task_and_attempt(dsn: str, lines: io.StringIO, place: Place) -> None:
    async with place(dsn) as app:
        app.tasks[tasks.talkative.name] = tasks.talkative
        shop = logging.getLogger("shop.mail")

        @app.task(max_attempts=2, backoff_base=0.001, backoff_cap=0.001)
        async def on_the_loop() -> None:
            await asyncio.sleep(0)
            shop.info("said here")
            await asyncio.to_thread(shop.info, "said beside")
            if len(said(lines, "shop.mail")) < 3:
                raise tenure.TransientError("again")

        @app.task
        def in_a_thread() -> None:
            shop.info("said there")

        async with working(app) as worker:
            first = await on_the_loop.enqueue()
            await until(lambda: worker.counts["succeeded"] == 1)
            others = [await in_a_thread.enqueue(), await app._enqueue(tasks.talkative.call("elsewhere").job)]
            await until(lambda: worker.counts["succeeded"] == 3)
            shop.info("outside of handlers")
    found = {line["message"]: line for line in said(lines, "shop.mail")}
    told = [(line["message"], line.get("job_id"), line.get("task"), line.get("attempt")) for line in found.values()]
    assert set(told) == {
        ("said here", first.id, "on_the_loop", 2), ("said beside", first.id, "on_the_loop", 2),
        ("said there", others[0].id, "in_a_thread", 1), ("said elsewhere", others[1].id, "talkative", 1),
        ("outside of handlers", None, None, None),
    }  # fmt: skip
    assert found["said elsewhere"]["pid"] != os.getpid()
    assert found["said elsewhere"]["odd"].startswith("<object object")
    assert [line["attempt"] for line in said(lines, "shop.mail") if line["message"] == "said here"] == [1, 2]


async def test_child_whose_module_sets_logging_up_writes_each_line_once(dsn: str, lines: io.StringIO) -> None:
    async with steady(dsn) as app:
        app.tasks[tasks.handled.name] = tasks.handled
        async with working(app) as worker:
            await app._enqueue(tasks.handled.call().job)
            await until(lambda: worker.counts["succeeded"] == 1)
    assert said(lines, "shop.own") == []
    (line,) = said(lines, "shop")
    assert (line["message"], line["task"]) == ("written by the worker", "handled")


def test_record_that_a_child_has_written_is_not_written_again(lines: io.StringIO) -> None:
    record = {"name": "shop", "levelno": 30, "levelname": "WARNING", "msg": "once"}
    child_log.write(record, ["root"])
    assert said(lines, "shop") == []
    child_log.write(record, [])
    assert len(said(lines, "shop")) == 1


def test_text_lines_name_the_job_and_json_lines_keep_the_traceback_apart() -> None:
    record = logging.makeLogRecord(
        {"name": "shop", "levelno": 20, "levelname": "INFO", "msg": "sent %s", "args": ("it",), "created": time.time(),
         "job_id": 7, "task": "send", "attempt": 2}
    )  # fmt: skip
    assert logs.TextFormatter().format(record).endswith(" INFO    [job 7 send, attempt 2] sent it")
    failed = logging.makeLogRecord(
        {"name": FAILURE_LOGGER, "levelname": "ERROR", "msg": "job 7 of send failed\nTraceback: odd",
         "traceback": "Traceback: odd", "job_id": 7, "task": "send", "attempt": 2, "eta": None}
    )  # fmt: skip
    line = json.loads(logs.JsonFormatter().format(failed))
    assert (line["message"], line["traceback"]) == ("job 7 of send failed", "Traceback: odd")
    assert "eta" not in line
    assert "[job" not in logs.TextFormatter().format(failed)
    try:
        raise ValueError("odd")
    except ValueError:
        caught = logging.getLogger("shop").makeRecord("shop", 40, "f", 1, "oh", (), sys.exc_info())
    assert json.loads(logs.JsonFormatter().format(caught))["traceback"].endswith("ValueError: odd")
