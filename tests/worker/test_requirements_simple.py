"""Document 003 through the real worker: the queue alone decides whether and when a task runs again."""

from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
import tenure.worker
from tenure import AsyncTaskQueue
from tenure.app import App
from tenure.jobs.job import Held, Job
from tenure.jobs.outcome import Moved
from tenure.middleware import Middleware
from tenure.queue import Decision
from tests.harness import Harness
from tests.worker import program
from tests.worker.killing import run_and_kill
from tests.worker.processes import steady_worker
from tests.worker.working import steady, until, working

#: As long as this the queue's own policy lets a task wait, whatever its contract's numbers are.
POLICY = """
create or replace function tenure.backoff_ms(
    job_id bigint, claims integer, raises integer, base_ms bigint, factor double precision, cap_ms bigint,
    jitter_form text, jitter_low double precision, jitter_high double precision, cap_after_jitter boolean
) returns bigint language sql immutable parallel safe return 777000
"""


#: Passed on as it is: the snooze that a handler asked for, the delay of a hand-back, and the queue's due time.
PASSED_ON = {
    "reports": {"delay_ms"}, "watchdog": {"delay_ms"}, "failure_log": {"due_at"},
}  # fmt: skip


class Decided(Middleware):
    """Logs each decision, as an application would."""

    def __init__(self) -> None:
        self.decisions: list[Moved] = []

    async def finish(self, job: Job, outcome: Any) -> None:
        """Log it."""
        if isinstance(outcome, Moved):
            self.decisions.append(outcome)


@pytest.mark.req("S3-24")
async def test_every_failure_goes_through_fail_task(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[int, int]] = []
    fail_task = AsyncTaskQueue.fail_task

    async def counted(self: AsyncTaskQueue, task: Any, error: Any, **given: Any) -> Decision:
        reported.append((task.id, task.claims))
        return await fail_task(self, task, error, **given)

    monkeypatch.setattr(AsyncTaskQueue, "fail_task", counted)
    raised: list[int] = []

    @app.task(contract="simple", max_attempts=3)
    async def fail(n: int) -> None:
        raised.append(n)
        raise tenure.PermanentError("for ever") if n % 2 else ValueError("odd")

    async with working(app) as worker:
        tickets = [await fail.enqueue(n) for n in range(4)]
        await until(lambda: worker.counts["failed"] == 4)
    assert len(raised) == 12  # under this contract every error may pass: three runs each
    assert sorted(reported) == sorted((ticket.id, claims) for ticket in tickets for claims in (1, 2, 3))


@pytest.mark.req("S3-24")
async def test_without_fail_task_the_worker_itself_writes_nothing(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Held] = []

    async def nothing(self: AsyncTaskQueue, task: Held, error: Any, **_: Any) -> Decision:
        said.append(task)
        at = datetime.now(UTC)
        return Decision.of(Moved(task.id, "retry", "RUNNING", "PENDING", "ready", task.claims, 1, at, at, 0))

    monkeypatch.setattr(AsyncTaskQueue, "fail_task", nothing)

    @app.task(contract="simple")
    async def fail() -> None:
        raise ValueError("odd")

    async with working(app, upkeep=False) as worker:
        ticket = await fail.enqueue()
        await until(lambda: worker.counts["retried"] == 1)
        before = db.fingerprint(ticket.id)
    assert [held.id for held in said] == [ticket.id]
    assert db.fingerprint(ticket.id) == before
    row = db.one("select status, error, attempts from tenure_simple.tasks where id = %s", ticket.id)
    assert row == {"status": "RUNNING", "error": None, "attempts": 1}
    assert db.hops(ticket.id) == ["PENDING->RUNNING"]


@pytest.mark.req("S3-25")
async def test_eta_is_what_the_queues_policy_says(dsn: str, db: Harness) -> None:
    db.sql(POLICY)
    decided = Decided()
    async with steady(dsn, middleware=[decided]) as app:

        @app.task(contract="simple")
        async def fail() -> None:
            raise tenure.TransientError("busy")

        async with working(app) as worker:
            ticket = await fail.enqueue()
            await until(lambda: worker.counts["retried"] == 1)
    row = db.one("select status, eta from tenure_simple.tasks where id = %s", ticket.id)
    (decision,) = decided.decisions
    assert row["status"] == "PENDING"
    assert row["eta"] - decision.at == timedelta(seconds=777)
    assert decision.due_at == row["eta"]  # to the microsecond


def names_in(node: ast.AST) -> set[str]:
    """The names and attributes that an expression uses."""
    return {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node)}


@pytest.mark.req("S3-25")
def test_nothing_in_the_worker_computes_a_delay() -> None:
    room = Path(tenure.worker.__file__).parent
    found: list[str] = []
    for path in sorted(room.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            raises = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift))
            used = (
                {node.id} if isinstance(node, ast.Name) else {node.attr} if isinstance(node, ast.Attribute) else set()
            )
            reckons = isinstance(node, ast.BinOp) and names_in(node) & {"eta", "due_at", "delay_ms"}
            about = {"random", "timedelta", "backoff", "delay_ms", "due_at", "eta", "uniform", "pow"}
            if (
                raises
                or reckons
                or source in ("random", "tenure.model.backoff")
                or (imported | used) & about - PASSED_ON.get(path.stem, set())
            ):
                found.append(f"{path.name}:{getattr(node, 'lineno', 0)}")
    assert len(list(room.glob("*.py"))) > 8
    assert found == []


@pytest.mark.req("S3-27")
async def test_worker_that_says_retry_on_the_last_attempt_is_overruled(app: App, db: Harness) -> None:
    @app.task(contract="simple", max_attempts=2)
    async def fail() -> None:
        raise tenure.TransientError("try me again")

    async with working(app) as worker:
        ticket = await fail.enqueue()
        await until(lambda: worker.counts["failed"] == 1)
    assert worker.counts["retried"] == 1
    assert db.hops(ticket.id)[-2:] == ["PENDING->RUNNING", "RUNNING->FAILED"]
    result = db.one("select status, attempts from tenure_simple.task_results where task_id = %s", ticket.id)
    assert result == {"status": "FAILED", "attempts": 2}


@pytest.mark.req("S3-31")
@pytest.mark.timeout(300)  # three processes begin, one after the other
async def test_killed_worker_is_a_failure_like_any_other(app: App, dsn: str, db: Harness) -> None:
    ticket = await app._enqueue(program.nap.options(contract="simple", max_attempts=2).call(600.0).job)
    await run_and_kill(dsn, db, ticket.id, times=2)
    with steady_worker(dsn):
        await until(lambda: db.row(ticket.id)["role"] == "done")
    again = ["PENDING->RUNNING", "RUNNING->FAILED"]
    assert db.hops(ticket.id) == [*again, "FAILED->PENDING", *again]
    result = db.one("select status, error, attempts from tenure_simple.task_results where task_id = %s", ticket.id)
    assert (result["status"], result["error"]["message"], result["attempts"]) == ("FAILED", "worker lost", 2)
