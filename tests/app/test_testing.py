"""The tools for users' own tests: run what is due, move time, and see what was enqueued."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

import tenure
from tenure import testing
from tenure.errors import NotATestDatabase
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.working import steady


async def test_drain_runs_what_is_due_and_what_that_enqueues(dsn: str) -> None:
    async with tenure.App(dsn) as app:

        @app.task
        async def outer(n: int) -> None:
            for _ in range(n):
                await inner.enqueue()

        @app.task
        async def inner() -> str:
            return "done"

        await outer.enqueue(3)
        later = await inner.options(delay=3_600).enqueue()
        counts = await testing.drain(app)
        assert (counts["claimed"], counts["succeeded"]) == (4, 4)
        assert (await app.job(later)).role == "ready"
        await testing.advance(app, hours=1)
        assert (await testing.drain(app))["succeeded"] == 1
        assert await app.result(later) == "done"


async def test_time_is_moved_past_retries(dsn: str) -> None:
    app = tenure.App(dsn)

    @app.task(max_attempts=3)
    async def flaky(ctx: tenure.Context) -> int:
        if ctx.attempt < 3:
            raise tenure.TransientError("again")
        return ctx.attempt

    ticket = await flaky.enqueue()
    for _ in range(3):
        await testing.drain(app)
        await testing.advance(app, minutes=11)
    assert await app.result(ticket, timeout=60) == 3
    await app.close()


async def test_what_was_enqueued_is_found_or_what_is_there_is_said(dsn: str) -> None:
    async with steady(dsn) as app:

        @app.task
        async def send(to: str, *, subject: str = "hello") -> None: ...

        with pytest.raises(AssertionError, match="none at all"):
            await testing.assert_enqueued(app, send, "a@b.c")
        ticket = await send.enqueue("a@b.c", subject="hi")
        assert (await testing.assert_enqueued(app, send, "a@b.c", subject="hi")).id == ticket.id
        with pytest.raises(AssertionError, match="'subject': 'hi'"):
            await testing.assert_enqueued(app, send, "a@b.c")
        assert [job.id for job in await testing.enqueued(app)] == [ticket.id]


async def test_drain_and_advance_leave_the_jobs_of_other_applications_alone(
    dsn: str, store: Store, db: Harness
) -> None:
    others = [(await store.enqueue(NewJob("foreign", contract=name))).job_id for name in ("standard", "simple")]
    lost = (await store.enqueue(NewJob("foreign"))).job_id
    await store.claim_by_id([lost], worker="w1", contract="standard")
    db.expire(lost)
    before = db.fingerprint(lost, *others)
    async with steady(dsn) as app:

        @app.task
        async def own() -> str:
            return "done"

        ticket = await own.options(delay=3_600).enqueue()
        await testing.advance(app, hours=2)
        assert (await testing.drain(app))["claimed"] == 1
        assert await app.result(ticket) == "done"
        assert [job.id for job in await testing.enqueued(app)] == [ticket.id]
    assert db.fingerprint(lost, *others) == before


async def test_a_database_that_was_not_made_for_tests_is_refused_unless_any_is_allowed(dsn: str, db: Harness) -> None:
    name = conninfo_to_dict(dsn)["dbname"]
    db.sql(f"comment on database {name} is null")
    async with steady(dsn) as app:

        @app.task
        async def own() -> str:
            return "done"

        testing.mark_database(app)
        assert await testing.drain(app) == {}
        db.sql(f"comment on database {name} is 'the shop'")
        ticket = await own.options(delay=3_600).enqueue()
        before = db.fingerprint(ticket.id)
        refused = f"the database '{name}' was not made for tests. Next: use the pytest fixture tenure_database"
        with pytest.raises(NotATestDatabase, match=refused):
            await testing.drain(app)
        with pytest.raises(NotATestDatabase, match=refused):
            await testing.advance(app, hours=2)
        with pytest.raises(NotATestDatabase, match="has had jobs"):
            testing.mark_database(app)
        assert db.fingerprint(ticket.id) == before
        await testing.advance(app, hours=2, allow_any_database=True)
        assert (await testing.drain(app, allow_any_database=True))["succeeded"] == 1
