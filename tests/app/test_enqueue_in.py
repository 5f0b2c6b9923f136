"""Jobs are made in the caller's own transaction, on the real connections of every library that people bring."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from importlib.resources import files
from typing import Any

import asyncpg
import django.db
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tenure.app import App
from tenure.errors import BadInput, IdempotencyConflict, SchemaMissing
from tenure.jobs.job import NewJob
from tenure.middleware import Middleware
from tenure.postgres.asyncpg_statement import _with_texts
from tenure.postgres.statement import query
from tests.app.callers import CALLERS, Caller, address, async_engine, django_connection, done, sync_engine, with_asyncpg
from tests.harness import Harness
from tests.postgres.listening import Ear
from tests.worker.working import quick, until

Bring = Callable[[str], AbstractAsyncContextManager[Caller]]


@pytest.fixture(autouse=True)
def django_beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django's connection be used in a test that has an event loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(params=CALLERS)
def bring(request: pytest.FixtureRequest) -> Bring:
    """The callers, one library after the other."""
    return CALLERS[request.param]


@pytest_asyncio.fixture
async def app(dsn: str, db: Harness) -> AsyncIterator[App]:
    """An application with one task, and a table of the caller's own."""
    db.sql("create table customer (name text)")
    async with quick(dsn) as app:

        @app.task(queue="mail", max_attempts=7)
        async def send(to: str, *, subject: str = "hello") -> int:
            return len(to) + len(subject)

        yield app


def made(db: Harness) -> tuple[int, int]:
    """How many jobs, and how many rows of the caller's own, others see."""
    return db.value("select count(*) from tenure.job"), db.value("select count(*) from customer")


async def test_commit_makes_the_job_and_rollback_none(app: App, db: Harness, dsn: str, bring: Bring) -> None:
    send = app.tasks["send"]
    async with bring(dsn) as caller:
        await done(send.enqueue_in(caller.connection, "alone in its transaction"))
        await done(caller.rollback())
        assert made(db) == (0, 0)
        await done(send.enqueue_in(caller.connection, "alone in its transaction"))
        assert made(db) == (0, 0)
        await done(caller.commit())
        assert made(db) == (1, 0)
        await done(caller.execute("insert into customer values ('Ada')"))
        await done(send.enqueue_in(caller.connection, "lost"))
        await done(caller.rollback())
        assert made(db) == (1, 0)
        ticket = await done(send.enqueue_in(caller.connection, 'a"b\\c {é}, %s $1 :name', subject="null"))
        await done(caller.execute("insert into customer values ('Ada')"))
        assert made(db) == (1, 0)
        await done(caller.commit())
        assert made(db) == (2, 1)
    row = db.row(ticket.id)
    assert row["payload"] == {"to": 'a"b\\c {é}, %s $1 :name', "subject": "null"}
    assert (row["queue"], row["max_attempts"], row["trace_id"]) == ("mail", 7, None)


async def test_savepoint_that_is_rolled_back_takes_its_jobs_along(
    app: App, db: Harness, dsn: str, bring: Bring
) -> None:
    send = app.tasks["send"]
    async with bring(dsn) as caller:
        await done(send.enqueue_in(caller.connection, "before"))
        with suppress(ZeroDivisionError):
            async with caller.nested():
                await done(send.options(key="k").enqueue_in(caller.connection, "inside"))
                await done(caller.execute("insert into customer values ('Ada')"))
                raise ZeroDivisionError
        async with caller.nested():
            await done(send.options(key="k").enqueue_in(caller.connection, "another body is none"))
        await done(send.enqueue_in(caller.connection, "after"))
        await done(caller.commit())
    assert db.value("select array_agg(payload ->> 'to' order by id) from tenure.job") == [
        "before", "another body is none", "after",
    ]  # fmt: skip
    assert made(db) == (3, 0)


async def test_wakeup_comes_with_the_commit_and_not_before(app: App, dsn: str, bring: Bring) -> None:
    send = app.tasks["send"]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as listening:
        await listening.execute("listen tenure")
        ear = Ear(listening)
        async with bring(dsn) as caller:
            await done(send.enqueue_in(caller.connection, "rolled back"))
            await done(caller.rollback())
            await done(send.options(notify=False).enqueue_in(caller.connection, "asleep"))
            await done(send.options(delay=60).enqueue_in(caller.connection, "later"))
            await done(send.options(queue="q").enqueue_in(caller.connection, "now"))
            await done(send.options(queue="q").enqueue_in(caller.connection, "now too"))
            await ear.say("before the commit")
            await done(caller.commit())
            await ear.say("end")
        assert await ear.until(lambda word: word == "end") == ["before the commit", "standard:q", "end"]


async def test_key_gives_the_first_job_and_other_work_under_it_is_a_conflict(
    app: App, db: Harness, dsn: str, bring: Bring
) -> None:
    send = app.tasks["send"].options(key="k", run_at=None, priority=1, tenant="acme", contract="phase27")
    async with bring(dsn) as caller:
        first = await done(send.enqueue_in(caller.connection, "ada"))
        again = await done(send.enqueue_in(caller.connection, "ada"))
        assert (first.made, again.made, first.id == again.id) == (True, False, True)
        with pytest.raises(IdempotencyConflict):
            await done(send.enqueue_in(caller.connection, "eve"))
        await done(caller.execute("insert into customer values ('Ada')"))  # the transaction goes on
        await done(caller.commit())
    assert made(db) == (1, 1)
    assert not (await send.enqueue("ada")).made


async def test_many_calls_are_made_in_one_transaction(app: App, db: Harness, dsn: str, bring: Bring) -> None:
    send = app.tasks["send"]
    told: list[int] = []
    calls = [
        *(send.call(f"{n}@b.c") for n in range(1_200)),
        *(send.options(key=f"k{n}", delay=n, tenant=f"t{n % 3}").call("keyed") for n in range(20)),
        send.options(contract="phase27").call("another contract"),
    ]
    async with bring(dsn) as caller:
        ids = await done(app.enqueue_many_in(caller.connection, iter(calls), batch=500, progress=told.append))
        assert made(db) == (0, 0)
        again = await done(app.enqueue_many_in(caller.connection, calls[1_200:1_220]))
        assert again == ids[1_200:1_220]
        await done(caller.commit())
    assert told == [500, 1_000, 1_221]
    assert db.value("select array_agg(id) from tenure.job") is not None
    found = {row["id"]: row["to"] for row in db.sql("select id, payload ->> 'to' as to from tenure.job")}
    assert [found[job_id] for job_id in ids] == [call.job.payload["to"] for call in calls]


@pytest.mark.parametrize("commits", [False, True])
async def test_two_transactions_with_one_key_make_one_job(
    app: App, db: Harness, dsn: str, bring: Bring, commits: bool
) -> None:
    """The second waits for the first, and gets its job; when the first is rolled back, it makes its own."""
    send = app.tasks["send"].options(key="k")
    waits = "select count(*) > 0 from pg_locks where not granted and pid <> pg_backend_pid()"

    async def other() -> Any:
        async with bring(dsn) as caller:
            ticket = await done(send.enqueue_in(caller.connection, "ada"))
            await done(caller.commit())
            return ticket

    with psycopg.connect(dsn) as first:
        one = send.enqueue_in(first, "ada")
        waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, other()))
        await until(lambda: waiting.done() or db.value(waits))
        assert not waiting.done()
        (first.commit if commits else first.rollback)()
        two = await waiting
    assert (one.made, two.made, one.id == two.id) == (True, not commits, commits)
    assert db.value("select array_agg(id) from tenure.job") == [two.id]


async def test_outside_of_a_transaction_nothing_is_made(app: App, db: Harness, dsn: str) -> None:
    send = app.tasks["send"]
    match = "needs an open transaction"
    with psycopg.connect(dsn, autocommit=True) as plain:
        with pytest.raises(BadInput, match=match):
            send.enqueue_in(plain, "ada")
        with plain.transaction():
            send.enqueue_in(plain, "made")
    own = await asyncpg.connect(**address(dsn, of_asyncpg=True))
    with pytest.raises(BadInput, match=match):
        await send.enqueue_in(own, "ada")
    async with own.transaction():
        await send.enqueue_in(own, "made")
    await own.close()
    connection = django_connection(dsn)
    with pytest.raises(BadInput, match=match):
        send.enqueue_in(connection, "ada")
    with django.db.transaction.atomic(connection.alias):
        send.enqueue_in(connection, "made")
    connection.close()
    with sync_engine(dsn) as engine, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alone:
        with pytest.raises(BadInput, match=match):
            send.enqueue_in(alone, "ada")
        with pytest.raises(BadInput, match=match):
            app.enqueue_many_in(alone, [send.call("ada")])
    async with async_engine(dsn, "asyncpg") as engine, engine.connect() as own:
        await own.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(BadInput, match=match):
            await send.enqueue_in(own, "ada")
    assert db.value("select array_agg(distinct payload ->> 'to') from tenure.job") == ["made"]


async def test_django_transaction_that_cannot_commit_makes_no_job(app: App, db: Harness, dsn: str) -> None:
    connection = django_connection(dsn)
    with django.db.transaction.atomic(connection.alias):
        connection.set_rollback(True)
        with pytest.raises(django.db.transaction.TransactionManagementError):
            app.tasks["send"].enqueue_in(connection, "ada")
    connection.close()
    assert made(db) == (0, 0)


async def test_connection_of_another_kind_is_refused_with_what_to_do(app: App, dsn: str) -> None:
    send = app.tasks["send"]
    for wrong in ("a@b.c", None, 3, sqlite3.connect(":memory:"), object()):
        with pytest.raises(BadInput, match="enqueue_in needs a psycopg connection"):
            send.enqueue_in(wrong, "ada")  # type: ignore[call-overload]
    lite = create_engine("sqlite://")
    with Session(lite) as session, pytest.raises(BadInput, match=r"sqlite\+pysqlite.*postgresql\+psycopg://"):
        send.enqueue_in(session, "ada")
    with pytest.raises(BadInput, match="enqueue_in needs a psycopg connection"):
        send.enqueue_in(lite, "ada")  # type: ignore[call-overload]
    async with asyncpg.create_pool(**address(dsn, of_asyncpg=True), min_size=1) as pool:
        with pytest.raises(BadInput, match="enqueue_in needs a psycopg connection"):
            send.enqueue_in(pool, "ada")
    async with async_engine(dsn, "asyncpg") as engine, AsyncSession(engine) as session:
        with pytest.raises(BadInput, match="pass the AsyncSession"):
            await session.run_sync(lambda own: send.enqueue_in(own, "ada"))


async def test_bad_input_leaves_the_transaction_usable(app: App, db: Harness, dsn: str, bring: Bring) -> None:
    send = app.tasks["send"]
    async with bring(dsn) as caller:
        with pytest.raises(BadInput):
            await done(send.options(priority=11).enqueue_in(caller.connection, "ada"))
        with pytest.raises(BadInput, match="no contract 'nowhere'"):
            await done(send.options(contract="nowhere").enqueue_in(caller.connection, "ada"))
        with pytest.raises(BadInput, match="job 2 of 2"):
            await done(app.enqueue_many_in(caller.connection, [send.call("x"), send.options(priority=11).call("y")]))
        await done(send.enqueue_in(caller.connection, "good"))
        await done(caller.commit())
    assert made(db) == (1, 0)


async def test_database_without_the_schema_is_named(empty_dsn: str, bring: Bring) -> None:
    app = App(empty_dsn)

    @app.task
    def send() -> None: ...

    async with bring(empty_dsn) as caller:
        with pytest.raises(SchemaMissing, match="tenure migrate"):
            await done(send.enqueue_in(caller.connection))


async def test_settings_and_codecs_of_the_caller_stay_as_they_are(
    app: App, dsn: str, db: Harness, bring: Bring
) -> None:
    send = app.tasks["send"]
    settings = "create temp table {} on commit drop as select name, setting from pg_settings"
    async with bring(dsn) as caller:
        await done(caller.execute("set search_path = nowhere"))
        await done(caller.execute("set datestyle = 'SQL, DMY'"))
        await done(caller.execute("set extra_float_digits = 0"))
        await done(caller.execute(settings.format("before")))
        await done(send.options(delay=5, key="k").enqueue_in(caller.connection, "ada"))
        await done(send.options(priority=3).enqueue_in(caller.connection, "ada"))
        await done(caller.execute(settings.format("after")))
        await done(caller.execute(
            "do $$ begin if exists (select from pg_temp.before natural full join pg_temp.after "
            "where before is null or after is null) then raise 'changed'; end if; end $$"
        ))  # fmt: skip
        await done(caller.commit())
    assert made(db)[0] == 2


async def test_asyncpg_errors_reach_their_user_as_asyncpg_errors(app: App, db: Harness, dsn: str) -> None:
    db.sql(
        "create function public.no() returns trigger language plpgsql as "
        "$$ begin raise 'no' using errcode = '23514'; end $$"
    )
    db.sql("create trigger no before insert on tenure.job for each row execute function public.no()")
    async with with_asyncpg(dsn) as caller:
        with pytest.raises(asyncpg.CheckViolationError, match="no"):
            await done(app.tasks["send"].options(key="k").enqueue_in(caller.connection, "ada"))
        try:
            await done(caller.execute("select 1"))
        except asyncpg.InFailedSQLTransactionError:
            pytest.fail("several steps are in a savepoint, and the transaction goes on without them")
        with pytest.raises(asyncpg.CheckViolationError, match="no"):
            await done(app.tasks["send"].enqueue_in(caller.connection, "ada"))
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await done(app.tasks["send"].enqueue_in(caller.connection, "ada"))


def test_asyncpg_gets_every_parameter_of_every_statement_as_text() -> None:
    for file in files("tenure.postgres").joinpath("queries").iterdir():
        if file.name.endswith(".sql"):
            text = query(file.name.removesuffix(".sql")).text
            assert re.findall(r"\$[0-9]+(?!::text\b)(?![0-9])", _with_texts(text)) == [], file.name


async def test_middleware_goes_around_each_job(dsn: str, db: Harness, bring: Bring) -> None:
    class Stamp(Middleware):
        async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Any]) -> int:
            job.correlation_id = f"stamped {json.dumps(job.payload)}"
            made: int = await call_next(job)
            return made

    app = App(dsn, middleware=[Stamp()])

    @app.task
    def count(n: int) -> None: ...

    async with bring(dsn) as caller:
        await done(count.enqueue_in(caller.connection, 1))
        await done(app.enqueue_many_in(caller.connection, [count.call(2), count.call(3)]))
        await done(caller.commit())
    assert db.value("select array_agg(correlation_id order by id) from tenure.job") == [
        f'stamped {{"n": {n}}}' for n in (1, 2, 3)
    ]


async def test_jobs_of_a_contract_with_wakeups_write_them_in_the_transaction(
    app: App, db: Harness, dsn: str, bring: Bring
) -> None:
    db.sql("insert into tenure.published_queue (queue, url, fill_end) values ('mail', 'https://queue.example/1', 0)")
    send = app.tasks["send"].options(contract="dispatcher")
    async with bring(dsn) as caller:
        await done(send.enqueue_in(caller.connection, "lost"))
        await done(caller.rollback())
        ticket = await done(send.enqueue_in(caller.connection, "ada"))
        await done(caller.commit())
    assert db.value("select array_agg(job_id) from tenure.outbox") == [ticket.id]
