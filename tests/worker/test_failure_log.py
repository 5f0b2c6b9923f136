"""What a worker logs of failures: one record for each failed attempt, with the decision and the time of the queue."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.errors import ConnectionLost
from tenure.jobs.formats import format_iso
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.outcome import Moved
from tenure.queue import FailureReporter
from tenure.settings import Settings
from tests.harness import Harness
from tests.http.conftest import serving
from tests.worker import tasks
from tests.worker.working import STEADY, steady, until, working

#: So long the queue's own policy lets every job wait: nothing runs a second time unless the test says so.
POLICY = """
create or replace function tenure.backoff_ms(
    job_id bigint, claims integer, raises integer, base_ms bigint, factor double precision, cap_ms bigint,
    jitter_form text, jitter_low double precision, jitter_high double precision, cap_after_jitter boolean
) returns bigint language sql immutable parallel safe return 777000
"""

#: Where an application and its worker find their jobs.
Place = Callable[[str], AbstractAsyncContextManager[App]]


@asynccontextmanager
async def beside_the_database(dsn: str) -> AsyncIterator[App]:
    async with steady(dsn) as app:
        yield app


@asynccontextmanager
async def through_a_dispatcher(dsn: str) -> AsyncIterator[App]:
    with serving(dsn, numbers=STEADY) as url:
        async with App(dispatcher_url=url, settings=Settings()) as app:
            yield app


everywhere = pytest.mark.parametrize(
    "place", [beside_the_database, through_a_dispatcher], ids=lambda place: str(place.__name__)
)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What workers log, from now on."""
    caplog.set_level(logging.DEBUG, "tenure.worker")
    return caplog


def failures(log: pytest.LogCaptureFixture, *ids: int) -> list[Any]:
    """The records of failed attempts, of these jobs or of all; no other logger speaks of a failed attempt."""
    found = [record for record in log.records if record.name == "tenure.worker.failures"]
    others = [record.getMessage() for record in log.records if record not in found]
    assert [line for line in others if "attempt" in line or "refused:" in line or "retry" in line] == []
    return [record for record in found if not ids or record.__dict__["job_id"] in ids]


@pytest.mark.req("S3-26")
@everywhere
async def test_retry_is_logged_once_with_the_rows_eta_to_the_microsecond(
    dsn: str, db: Harness, log: pytest.LogCaptureFixture, place: Place
) -> None:
    db.sql(POLICY)
    async with place(dsn) as app:

        @app.task(contract="simple")
        async def send() -> None:
            raise tenure.TransientError("busy")

        async with working(app) as worker:
            tickets = [await send.enqueue() for _ in range(3)]
            await until(lambda: worker.counts["retried"] == 3)
    for ticket in tickets:
        eta: datetime = db.value("select eta from tenure_simple.tasks where id = %s", ticket.id)
        (record,) = failures(log, ticket.id)
        first, *traceback = record.getMessage().splitlines()
        assert first == f"job {ticket.id} of send, attempt 1 failed, retry in 12.9 min, at {format_iso(eta)}"
        assert datetime.fromisoformat(first.rpartition(" ")[2]) == record.eta == eta
        assert (record.levelno, record.decision) == (logging.WARNING, "retry")
        assert (record.task, record.attempt, record.contract) == ("send", 1, "simple")
        assert (record.error_type, record.error_message) == ("TransientError", "busy")
        assert traceback[0].startswith("Traceback")
        assert traceback[-1].endswith("TransientError: busy")
        assert "in send" in traceback[1], "the first frame is the handler's own"


@pytest.mark.req("S3-26")
@everywhere
async def test_every_failed_attempt_is_logged_once_and_the_last_one_as_an_error(
    dsn: str, db: Harness, log: pytest.LogCaptureFixture, place: Place
) -> None:
    async with place(dsn) as app:

        @app.task(contract="simple", max_attempts=3)
        async def send() -> None:
            raise ValueError("odd")

        async with working(app) as worker:
            ticket = await send.enqueue()
            await until(lambda: worker.counts["failed"] == 1)
    logged = failures(log)
    decided = [
        datetime.fromisoformat(event["facts"]["due_at"])
        for event in db.log(ticket.id)
        if event["trigger"] == "retry" and event["facts"]
    ]
    assert [(record.levelno, record.attempt, record.decision) for record in logged] == [
        (logging.WARNING, 1, "retry"), (logging.WARNING, 2, "retry"), (logging.ERROR, 3, "FAILED"),
    ]  # fmt: skip
    assert [record.eta for record in logged] == [*decided, None]
    assert f"job {ticket.id} of send, attempt 3 failed, FAILED after 3 attempts\n" in logged[2].getMessage()


async def test_end_is_logged_in_the_contracts_own_words_whatever_the_handler_did_wrong(
    app: App, db: Harness, log: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def refuse() -> None:
        raise tenure.PermanentError("no such account")

    @app.task
    async def too_much() -> str:
        return "x" * 2_000_000

    @app.task(contract="simple", max_attempts=1)
    async def put_off() -> tenure.Snooze:
        return tenure.Snooze(5)

    app.tasks[tasks.poisonous.name] = tasks.poisonous
    async with working(app) as worker:
        ids = [(await task.enqueue()).id for task in (refuse, too_much, put_off)]
        ids.append((await app._enqueue(tasks.poisonous.options(max_attempts=1).call().job)).id)
        await until(lambda: worker.counts["failed"] == 4)
    found = [(record.levelno, record.decision, record.error_type) for job in ids for record in failures(log, job)]
    assert found == [
        (logging.ERROR, "dead", "PermanentError"), (logging.ERROR, "dead", "PermanentError"),
        (logging.ERROR, "FAILED", "PermanentError"), (logging.ERROR, "dead", "InfrastructureFailure"),
    ]  # fmt: skip
    assert "the process that ran the job ended with exit code 7" in failures(log, ids[3])[0].getMessage()
    assert "dead after 1 attempt\n" in failures(log, ids[0])[0].getMessage()
    assert [db.row(job)["state"] for job in ids] == ["dead", "dead", "FAILED", "dead"]


async def test_attempts_do_not_count_what_was_put_off(app: App, db: Harness, log: pytest.LogCaptureFixture) -> None:
    @app.task(max_attempts=1)
    async def later(ctx: tenure.Context) -> tenure.Snooze:
        if ctx.job.claims < 3:
            return tenure.Snooze(0)
        raise ValueError("odd")

    async with working(app) as worker:
        ticket = await later.enqueue()
        await until(lambda: worker.counts["failed"] == 1)
    (record,) = failures(log)
    assert (record.attempt, record.decision, db.row(ticket.id)["claims"]) == (1, "dead", 3)


@pytest.mark.req("S3-26")
async def test_retry_whose_answer_was_lost_is_logged_once_with_the_rows_eta(
    app: App, db: Harness, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql(POLICY)
    report = FailureReporter.report
    lost: list[Moved] = []

    async def lose_the_first_answer(self: FailureReporter, call: HolderCall) -> Moved:
        moved = await report(self, call)
        if not lost:
            lost.append(moved)
            raise ConnectionLost("cut off")
        return moved

    monkeypatch.setattr(FailureReporter, "report", lose_the_first_answer)

    @app.task(contract="simple")
    async def send() -> None:
        raise ValueError("odd")

    async with working(app) as worker:
        ticket = await send.enqueue()
        await until(lambda: worker.counts["retried"] + worker.counts["failed"] == 1)
    (record,) = failures(log)
    eta = db.value("select eta from tenure_simple.tasks where id = %s", ticket.id)
    assert len(lost) == 1
    assert (record.levelno, record.eta) == (logging.WARNING, eta)
    assert worker.counts["retried"] == 1
    assert f"retry in 12.9 min, at {format_iso(eta)}\n" in record.getMessage()


async def test_failure_that_is_refused_is_logged_with_its_traceback(
    app: App, db: Harness, log: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def robbed(ctx: tenure.Context) -> None:
        db.sql("update tenure.job set lease_token = gen_random_uuid() where id = %s", ctx.job.id)
        raise ValueError("odd")

    async with working(app) as worker:
        ticket = await robbed.enqueue()
        await until(lambda: worker.counts["refused"] == 1)
        db.sql("update tenure.job set lease_expires_at = lease_expires_at - interval '1 day' where id = %s", ticket.id)
    (record,) = failures(log)
    assert (record.levelno, record.decision, record.eta) == (logging.WARNING, "refused", None)
    assert "the report was refused: " in record.getMessage()
    assert record.getMessage().endswith("ValueError: odd")


async def test_failure_of_a_job_that_is_to_be_cancelled_is_a_warning(
    app: App, db: Harness, log: pytest.LogCaptureFixture
) -> None:
    @app.task(contract="simple")
    async def stop(ctx: tenure.Context) -> None:
        await app.cancel(ctx.job.id)
        raise ValueError("odd")

    async with working(app) as worker:
        ticket = await stop.enqueue()
        await until(lambda: worker.counts["failed"] == 1)
    (record,) = failures(log)
    assert (record.levelno, record.decision) == (logging.WARNING, "CANCELLED")
    assert db.row(ticket.id)["state"] == "CANCELLED"
