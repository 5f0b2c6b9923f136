"""Document 002 through the real worker: each of the eight reasons of a dead letter, from what happened to a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.errors import InfrastructureFailure
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import RELIABILITY, events, letters, shown
from tests.harness import Harness
from tests.worker import staged
from tests.worker.working import quick, until, working


class NoNightWork(tenure.Middleware):
    """A policy of the application: jobs of tenant `night` are not run."""

    async def run(self, ctx: tenure.Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Refuse them."""
        if ctx.job.tenant_id == "night":
            raise tenure.PolicyViolation("nobody works at night")
        return await call_next()


def declare(app: App) -> dict[str, Any]:
    """For each reason that a handler or its surroundings can give: a task that comes to it on its only attempt."""
    once: dict[str, Any] = {"contract": "reliability", "max_attempts": 1}

    @app.task(**once)
    async def validation_failed() -> None:
        raise tenure.ValidationError("no such page")

    @app.task(**once)
    async def dependency_unavailable() -> None:
        raise tenure.DependencyUnavailable("the bank does not answer")

    @app.task(**once, timeout=0.1)
    async def timeout() -> None:
        await asyncio.Event().wait()

    @app.task(**once)
    async def exhausted_retries() -> None:
        raise tenure.TransientError("busy")

    @app.task(**once)
    async def policy_violation() -> None:
        raise AssertionError("the policy lets nobody run this")

    @app.task(**once)
    async def compensation_failed(ctx: tenure.Context) -> None:
        await ctx.effect("charge", lambda: "receipt")
        raise tenure.TransientError("busy")

    @compensation_failed.compensate("charge")
    def refund(receipt: str) -> None:
        raise OSError("the bank refused the refund")

    own = (
        validation_failed, dependency_unavailable, timeout, exhausted_retries, policy_violation, compensation_failed,
    )  # fmt: skip
    return {task.name: task for task in own}


@pytest.mark.req("S2-41", "S2-13")
async def test_each_of_the_eight_reasons_comes_from_what_happened_to_the_job(dsn: str, db: Harness) -> None:
    async with quick(dsn, middleware=[NoNightWork()]) as app:
        made = {}
        for reason, task in declare(app).items():
            tenant = "night" if reason == "policy_violation" else "default"
            made[reason] = (await task.options(tenant=tenant).enqueue()).id
        made["parse_error"] = (await app._enqueue(NewJob("exhausted_retries", [1, 2], contract="reliability"))).id
        app.tasks["dies"] = staged.dies
        made["infrastructure_failure"] = (await app._enqueue(staged.dies.call("exec").job)).id
        assert set(made) == set(RELIABILITY.dead_letters.reasons)
        async with working(app):
            await until(lambda: not db.value("select count(*) from tenure.job"), 60)
    for reason, job_id in made.items():
        assert shown(db, job_id)["status"] == "dead_lettered", reason
        (letter,) = letters(db, job_id)
        assert letter["reason_code"] == reason
        # No operator named it: what moved the job was its holder, and the event says why.
        last = events(db, job_id)[-1]
        assert (last["type"], last["actor"]) == ("job_dead_lettered", letter["last_owner"]), reason
        assert last["payload"]["from"] == ("assigned" if reason == "parse_error" else "running")
        assert last["payload"]["reason"] == {"exhausted_retries": "exhaust"}.get(reason, reason)


@pytest.mark.req("S2-13")
@pytest.mark.parametrize(
    "payload", ["9" * 5_000, '{"page": ' + "[" * 4_000 + "]" * 4_000 + "}"], ids=["digits", "levels"]
)
async def test_payload_that_cannot_be_read_is_set_aside_before_it_starts(
    app: App, store: Store, db: Harness, payload: str
) -> None:
    ran: list[Any] = []

    @app.task(contract="reliability")
    async def index(page: Any) -> None:
        ran.append(page)

    broken = (await store.enqueue(NewJob("index", {"page": 1}, contract="reliability"))).job_id
    whole = (await store.enqueue(NewJob("index", {"page": 2}, contract="reliability"))).job_id
    # No library wrote this: the database keeps more digits and levels than a worker reads.
    db.sql("update tenure.job set payload = %s::jsonb where id = %s", payload, broken)
    async with working(app):
        await until(lambda: not db.value("select count(*) from tenure.job"))
    letter = db.one("select reason_code, stage from tenure_reliability.dead_letters where job_id = %s", broken)
    assert (letter["reason_code"], letter["stage"]) == ("parse_error", "input")
    assert db.hops(broken) == ["queued->assigned", "assigned->dead_lettered"]
    assert (ran, shown(db, whole)["status"]) == ([2], "succeeded")


class DiskFull(InfrastructureFailure):
    """An application's own kind of such a failure."""


#: error → the reason once its last attempt is spent.
RETRIED = {
    "dependency": (tenure.DependencyUnavailable("away"), "dependency_unavailable"),
    "infrastructure": (DiskFull("no space left"), "infrastructure_failure"),
    "timeout": (TimeoutError("the mail server did not answer"), "timeout"),
    "any other": (KeyError("page"), "exhausted_retries"),
}


@pytest.mark.req("S2-13")
@pytest.mark.parametrize("kind", RETRIED)
async def test_a_failure_that_may_pass_is_tried_again_and_names_its_reason_in_the_end(
    app: App, db: Harness, kind: str
) -> None:
    error, reason = RETRIED[kind]

    @app.task(contract="reliability", max_attempts=2)
    async def index() -> None:
        raise error

    async with working(app):
        ticket = await index.enqueue()
        await until(lambda: db.row(ticket.id)["role"] == "done")
    assert letters(db, ticket.id)[0]["reason_code"] == reason
    told = {event["type"]: event["payload"]["reason"] for event in events(db, ticket.id)}
    assert told["job_requeued"] == "retry"
    assert shown(db, ticket.id)["attempts"] == 2


@pytest.mark.req("S2-13")
async def test_a_policy_violation_ends_the_job_at_once_although_attempts_are_left(app: App, db: Harness) -> None:
    @app.task(contract="reliability", max_attempts=3)
    def index() -> None:
        raise tenure.PolicyViolation("this page is closed")

    async with working(app):
        ticket = await index.enqueue()
        await until(lambda: db.row(ticket.id)["role"] == "done")
    (letter,) = letters(db, ticket.id)
    assert (letter["reason_code"], letter["attempts"]) == ("policy_violation", 1)
    assert db.hops(ticket.id)[-1] == "running->dead_lettered"
