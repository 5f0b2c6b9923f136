"""A handler ends its job in a transaction of its own: the job's success and the handler's rows commit together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, InvalidTransition, JobFailed, StaleLease
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.app.callers import CALLERS, Caller, done
from tests.harness import Harness
from tests.worker import completing
from tests.worker.processes import steady_worker
from tests.worker.working import STEADY, until, working

Bring = Callable[[str], AbstractAsyncContextManager[Caller]]


@pytest.fixture(autouse=True)
def own_table(db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the handlers' own; Django may be used beside an event loop."""
    db.sql("create table done (job bigint, attempt integer)")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture
def program(dsn: str, app: App) -> App:
    """The tasks of the program, in an application on this test's database."""
    app.tasks.update(completing.app.tasks)
    for task in app.tasks.values():
        object.__setattr__(task, "app", app)
    return app


def wrote(ctx: tenure.Context) -> str:
    """The statement of a handler."""
    return f"insert into done values ({ctx.job.id}, {ctx.attempt})"


def ended(db: Harness, job_id: int) -> tuple[str, Any, list[str], list[int]]:
    """The state, the result, the triggers of the log and the attempts whose rows were committed."""
    row = db.row(job_id)
    triggers = [entry["trigger"] for entry in db.log(job_id)]
    attempts = db.sql("select attempt from done where job = %s order by attempt", job_id)
    db.log_is_sound(job_id)
    return row["state"], row["result"], triggers, [one["attempt"] for one in attempts]


@pytest.mark.parametrize("library", CALLERS)
async def test_job_ends_with_the_commit_of_its_handler(app: App, dsn: str, db: Harness, library: str) -> None:
    states = []

    @app.task
    async def work(ctx: tenure.Context) -> Any:
        async with CALLERS[library](dsn) as caller:
            await done(caller.execute(wrote(ctx)))
            await done(ctx.complete_in(caller.connection, {"n": [1, 2]}))
            states.append(db.value("select state from tenure.job"))
            await done(caller.commit())
        return "not stored"

    ticket = await work.enqueue()
    async with working(app) as worker:
        assert await ended_well(app, ticket) == {"n": [1, 2]}
    assert states == ["running"]
    assert ended(db, ticket.id) == ("succeeded", {"n": [1, 2]}, ["claim", "succeed"], [1])
    assert (worker.counts["succeeded"], worker.counts["refused"], worker.counts["lost"]) == (1, 0, 0)


@pytest.mark.parametrize("contract", [name for name in BUILT_IN if name != "dispatcher"])
async def test_every_contract_whose_workers_see_the_database_has_it(
    app: App, dsn: str, db: Harness, contract: str
) -> None:
    @app.task(contract=contract)
    async def work(ctx: tenure.Context) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(wrote(ctx).encode())
            await ctx.complete_in(connection)

    ticket = await work.enqueue()
    async with working(app) as worker:
        await app.result(ticket, timeout=60)
        await until(lambda: worker.counts["succeeded"] == 1)
    state, result, triggers, attempts = ended(db, ticket.id)
    assert (state, result, attempts) == (BUILT_IN[contract].successes()[0], None, [1])
    assert triggers.count("succeed") == 1


@pytest.mark.parametrize("task", ["in_thread", "in_process"])
async def test_plain_handler_ends_its_job_in_its_thread_or_its_process(
    program: App, dsn: str, db: Harness, tmp_path: Path, task: str
) -> None:
    ticket = await program.tasks[task].enqueue(dsn, str(tmp_path), [])
    async with working(program) as worker:
        assert await program.result(ticket, timeout=60) == {"attempt": 1}
        await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", {"attempt": 1}, ["claim", "succeed"], [1])


async def test_asynchronous_handler_in_a_process_ends_its_job(program: App, dsn: str, db: Harness) -> None:
    ticket = await program.tasks["in_process_async"].enqueue(dsn)
    async with working(program) as worker:
        assert await program.result(ticket, timeout=60) == {"attempt": 1}
        await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", {"attempt": 1}, ["claim", "succeed"], [1])


@pytest.mark.parametrize("library", CALLERS)
async def test_handler_that_raises_before_its_commit_has_failed(app: App, dsn: str, db: Harness, library: str) -> None:
    @app.task(max_attempts=2)
    async def work(ctx: tenure.Context) -> None:
        async with CALLERS[library](dsn) as caller:
            await done(caller.execute(wrote(ctx)))
            await done(ctx.complete_in(caller.connection, ctx.attempt))
            if ctx.attempt == 1:
                await done(caller.rollback())
                raise RuntimeError("no")
            await done(caller.commit())

    ticket = await work.enqueue()
    async with working(app) as worker:
        assert await ended_well(app, ticket) == 2
        await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", 2, ["claim", "retry", "claim", "succeed"], [2])
    assert db.log(ticket.id)[1]["facts"]["error"]["message"] == "no"
    assert worker.counts["retried"] == 1


@pytest.mark.parametrize("task", ["in_thread", "in_process"])
async def test_handler_that_returns_without_a_commit_has_failed(
    program: App, dsn: str, db: Harness, tmp_path: Path, task: str
) -> None:
    ticket = await program.tasks[task].enqueue(dsn, str(tmp_path), [], commits=False)
    async with working(program) as worker:
        assert await program.result(ticket, timeout=60) == {"attempt": 2}
        await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", {"attempt": 2}, ["claim", "retry", "claim", "succeed"], [2])
    assert db.log(ticket.id)[1]["facts"]["error"]["type"] == "TransactionNotCommitted"


async def test_call_that_is_not_awaited_has_failed(app: App, dsn: str, db: Harness) -> None:
    @app.task(max_attempts=1)
    async def work(ctx: tenure.Context) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            ctx.complete_in(connection)

    ticket = await work.enqueue()
    async with working(app):
        with pytest.warns(RuntimeWarning, match="never awaited"), pytest.raises(JobFailed, match="await complete_in"):
            await app.result(ticket, timeout=60)


async def test_stale_lease_ends_the_whole_transaction(app: App, dsn: str, db: Harness, store: Store) -> None:
    raised: list[BaseException] = []

    @app.task(max_attempts=1)
    async def work(ctx: tenure.Context) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(wrote(ctx).encode())
            db.expire(ctx.job.id)
            await store.reap("standard")
            try:
                await ctx.complete_in(connection)
            except StaleLease as error:
                raised.append(error)
                raise

    ticket = await work.enqueue()
    async with working(app, upkeep=False) as worker:
        with pytest.raises(JobFailed):
            await app.result(ticket, timeout=60)
        await until(lambda: bool(raised) and not worker._heartbeats.held)
    assert ended(db, ticket.id) == ("dead", None, ["claim", "expire_at_cap"], [])


async def test_job_that_another_worker_holds_is_not_ended(app: App, dsn: str, db: Harness, store: Store) -> None:
    @app.task
    async def work(ctx: tenure.Context) -> None:
        db.expire(ctx.job.id)
        await store.reap("standard")
        db.due(ctx.job.id)
        (again,) = await store.claim("standard", worker="other")
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(wrote(ctx).encode())
            try:
                with pytest.raises(StaleLease, match="held by other"):
                    await ctx.complete_in(connection, "mine")
            finally:
                await connection.rollback()
        await store.succeed(again.held, "theirs")

    ticket = await work.enqueue()
    async with working(app, upkeep=False):
        assert await ended_well(app, ticket) == "theirs"


async def test_nobody_takes_a_job_whose_end_is_being_committed(app: App, dsn: str, db: Harness, store: Store) -> None:
    """Its lease has run out while the transaction is open: upkeep, heartbeats and claims pass it by."""
    workers: list[Any] = []

    @app.task
    async def work(ctx: tenure.Context) -> None:
        db.expire(ctx.job.id)
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(wrote(ctx).encode())
            await ctx.complete_in(connection)
            assert await store.reap("standard") == []
            assert await store.claim("standard", worker="other") == []
            await beat_of(workers[0], ctx.job.id)
        await beat_of(workers[0], ctx.job.id)  # refused: the job has ended; the handler goes on
        db.sql("insert into done values (%s, 100)", ctx.job.id)

    ticket = await work.enqueue()
    async with working(app, upkeep=False) as worker:
        workers.append(worker)
        await ended_well(app, ticket)
        await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", None, ["claim", "succeed"], [1, 100])
    assert worker.counts["lost"] == 0


@pytest.mark.parametrize("loss", ["lease", "cancel"])
async def test_handler_whose_transaction_was_rolled_back_is_stopped_when_it_loses_the_job(
    app: App, dsn: str, db: Harness, store: Store, loss: str
) -> None:
    stopped: list[str] = []
    rolled_back = asyncio.Event()

    @app.task
    async def work(ctx: tenure.Context) -> str:
        if ctx.attempt == 1:
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await connection.execute(wrote(ctx).encode())
                await ctx.complete_in(connection)
                await connection.rollback()
            rolled_back.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append(loss)
                raise
        return "another attempt"

    ticket = await work.enqueue()
    async with working(app, upkeep=False) as worker:
        await asyncio.wait_for(rolled_back.wait(), 60)
        await beat_of(worker, ticket.id)  # the lease still counts
        assert stopped == []
        if loss == "lease":
            db.expire(ticket.id)
            await store.reap("standard")
            db.due(ticket.id)
        else:
            await app.cancel(ticket, mode="hard")
        await beat_of(worker, ticket.id)
        await until(lambda: stopped == [loss])
        await until(lambda: worker.counts["lost" if loss == "lease" else "cancelled"] == 1)
        if loss == "lease":
            assert await ended_well(app, ticket) == "another attempt"
    hops = ["expire", "claim", "succeed"] if loss == "lease" else ["cancel"]
    assert ended(db, ticket.id)[2:] == (["claim", *hops], [])


async def test_process_whose_transaction_was_rolled_back_is_killed_when_it_loses_the_job(
    program: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    ticket = await program.tasks["in_process"].enqueue(dsn, str(tmp_path), ["after"], commits=False)
    async with working(program) as worker:
        await until((tmp_path / "after.began").exists)
        await program.cancel(ticket, mode="hard")
        await beat_of(worker, ticket.id)
        await until(lambda: worker.counts["cancelled"] == 1)
    assert ended(db, ticket.id)[2:] == (["claim", "cancel"], [])


def nobody_in_a_transaction(db: Harness) -> bool:
    """Whether no session of this database is idle inside of a transaction."""
    idle = "datname = current_database() and state like 'idle in transaction%'"
    return bool(db.value(f"select count(*) = 0 from pg_stat_activity where {idle}"))


async def ended_well(app: App, ticket: tenure.Ticket[Any]) -> Any:
    """The result of a job, of whatever type its task says."""
    return await app.result(ticket, timeout=60)


async def beat_of(worker: Any, job_id: int) -> None:
    """Wait until a heartbeat of this job was answered, and its answer was used."""
    sent = worker._heartbeats.sent
    while worker._heartbeats.sent < sent + 2:
        if not any(one.job.id == job_id and one.heartbeats_until for one in worker._heartbeats.held):
            break
        worker._heartbeats.check_soon(job_id)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)


async def test_handler_may_fail_after_its_commit_and_the_job_stays_ended(
    app: App, dsn: str, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work(ctx: tenure.Context) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(wrote(ctx).encode())
            await ctx.complete_in(connection, 7)
        raise RuntimeError("too late to matter")

    ticket = await work.enqueue()
    with caplog.at_level(logging.WARNING):
        async with working(app) as worker:
            assert await ended_well(app, ticket) == 7
            await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", 7, ["claim", "succeed"], [1])
    (said,) = [record.getMessage() for record in caplog.records if "too late to matter" in record.getMessage()]
    assert "ended, succeeded, in its handler's transaction; the handler failed after that" in said


async def test_transaction_that_commits_after_its_handler_timed_out_is_the_end(
    program: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    """The thread goes on; the report of its failure waits for the row, and is refused by the commit."""
    ticket = await program.tasks["in_thread"].options(timeout=0.5).enqueue(dsn, str(tmp_path), ["open"])
    fails = "select count(*) > 0 from pg_locks where not granted and pid <> pg_backend_pid()"
    async with working(program) as worker:
        await until(lambda: db.value(fails))
        (tmp_path / "open").touch()
        assert await program.result(ticket, timeout=60) == {"attempt": 1}
        await until(lambda: worker.counts["succeeded"] == 1)
    assert ended(db, ticket.id) == ("succeeded", {"attempt": 1}, ["claim", "succeed"], [1])


@pytest.mark.parametrize("task", ["in_thread", "in_process"])
async def test_worker_killed_before_the_commit_runs_the_job_again_and_after_it_does_not(
    program: App, dsn: str, db: Harness, tmp_path: Path, task: str
) -> None:
    ids = {}
    for gate in ("open", "after"):
        place = tmp_path / gate
        place.mkdir()
        ticket = await program.tasks[task].enqueue(dsn, str(place), [gate])
        ids[gate] = ticket.id
        with steady_worker(dsn, "--no-upkeep", app="tests.worker.completing:app") as process:
            await until((place / f"{gate}.began").exists)
            process.kill()
            process.wait()
        # PostgreSQL rolls the transaction of a dead process back when it notices.
        await until(partial(nobody_in_a_transaction, db))
        db.expire(ticket.id)
    async with working(program):
        assert await program.result(ids["open"], timeout=60) == {"attempt": 2}
        assert await program.result(ids["after"], timeout=60) == {"attempt": 1}
    assert ended(db, ids["open"])[2:] == (["claim", "expire", "claim", "succeed"], [2])
    assert ended(db, ids["after"])[2:] == (["claim", "succeed"], [1])


async def test_wrong_call_leaves_the_job_to_its_handler(app: App, dsn: str, db: Harness) -> None:
    wrong: list[str] = []

    @app.task
    async def work(ctx: tenure.Context) -> str:
        async with await psycopg.AsyncConnection.connect(dsn) as other:
            with pytest.raises(BadInput, match="at most"):
                await ctx.complete_in(other, "x" * 2_000_000)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for connection_, result in ((connection, 1), ("no", 1), (connection, "x" * 2_000_000)):
                try:
                    ctx.complete_in(connection_, result)  # type: ignore[arg-type]
                except BadInput as error:
                    wrong.append(str(error))
        return "returned"

    ticket = await work.enqueue()
    async with working(app):
        assert await app.result(ticket, timeout=60) == "returned"
    assert wrong[0].startswith("complete_in needs an open transaction")
    assert wrong[1].startswith("complete_in needs a psycopg connection")
    assert len(wrong) == 3


async def test_job_is_ended_once_in_a_transaction(app: App, dsn: str, db: Harness) -> None:
    @app.task
    async def work(ctx: tenure.Context) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            async with connection.transaction(force_rollback=True):
                await ctx.complete_in(connection, "rolled back")
            await ctx.complete_in(connection, "first")
            with pytest.raises(InvalidTransition):
                await ctx.complete_in(connection, "second")

    ticket = await work.enqueue()
    async with working(app):
        assert await ended_well(app, ticket) == "first"


async def test_worker_that_never_sees_the_database_is_refused(app: App, dsn: str, db: Harness) -> None:
    said: list[str] = []

    @app.task(contract="dispatcher", max_attempts=1)
    async def work(ctx: tenure.Context) -> str:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            try:
                await ctx.complete_in(connection)
            except BadInput as error:
                said.append(str(error))
        return "by the report"

    ticket = await work.enqueue()
    async with working(app):
        assert await app.result(ticket, timeout=60) == "by the report"
    assert said == [
        "workers of contract dispatcher never see the database: complete_in cannot end its jobs. "
        "Next: return the result from the handler"
    ]
    async with App("postgresql://nowhere", dispatcher_url="http://localhost:9", settings=Settings()) as remote:
        with pytest.raises(
            BadInput, match="complete_in writes in your own transaction, and this app uses a dispatcher"
        ):
            remote._succeed_in(object(), None)  # type: ignore[arg-type]


async def test_result_is_converted_as_a_returned_one(dsn: str, db: Harness) -> None:
    from datetime import UTC, datetime

    async with App(dsn, settings=Settings(database_url=dsn, numbers=STEADY)) as app:

        @app.task
        async def work(ctx: tenure.Context) -> datetime:
            at = datetime(2030, 1, 2, tzinfo=UTC)
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await ctx.complete_in(connection, at)
            return at

        ticket = await work.enqueue()
        async with working(app):
            await app.result(ticket, timeout=60)
    assert db.row(ticket.id)["result"].startswith("2030-01-02T00:00:00")
