"""The engine on the caller's own pool: under its settings while it works, and nothing of them left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool, ConnectionPool

from tenure import AsyncTaskQueue
from tenure.errors import BadInput, Busy, CannotConnect, StaleLease
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.connect import session_settings
from tenure.postgres.engine import Engine, Pool
from tenure.postgres.store import Store
from tests.harness import Harness

# Keeps the settings under which each log row was written.
_KEEP_SETTINGS = """
create table public.setting (n bigint generated always as identity, name text, value text, isolation text);
grant all on public.setting to public;
create function public.keep_settings() returns trigger language plpgsql as $$ begin
    insert into public.setting (name, value, isolation)
    select lower(s.name), s.setting, current_setting('transaction_isolation') from pg_settings s
    where lower(s.name) = any ('{%s}');
    return null;
end $$;
create trigger keep_settings after insert on tenure.event for each row execute function public.keep_settings();
"""

MODES = pytest.mark.parametrize("autocommit", [True, False])


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    """A pool as most callers make one: one transaction per block, rows as dictionaries."""
    async with AsyncConnectionPool(
        dsn, min_size=1, max_size=2, kwargs={"row_factory": dict_row, "application_name": "caller"}
    ) as opened:
        await opened.wait()  # who asks before the first connection is there makes the pool grow
        yield opened


async def a_life(pool: Pool) -> int:
    """A task that is retried and then succeeds, on this pool; its id."""
    async with AsyncTaskQueue(pool) as queue:
        task_id = await queue.enqueue("send", {"n": 1}, key="k")
        task = await queue.dequeue("w1")
        assert task is not None
        said = await queue.fail_task(task, "boom")
        assert said.eta == (await queue.get_task(task_id)).eta
        with pytest.raises(StaleLease):
            await queue.fail_task(task, "boom")
    return task_id


@MODES
async def test_a_queue_on_the_callers_pool_commits_each_step_and_leaves_the_pool_open(
    dsn: str, db: Harness, autocommit: bool
) -> None:
    kwargs = {"autocommit": autocommit, "application_name": "caller"}
    async with AsyncConnectionPool(dsn, min_size=1, max_size=2, kwargs=kwargs) as pool:
        task_id = await a_life(pool)
        assert db.hops(task_id) == ["PENDING->RUNNING", "RUNNING->FAILED", "FAILED->PENDING"]
        assert not pool.closed
        async with pool.connection() as connection:
            assert await (await connection.execute("select 1")).fetchone() == (1,)
        others = (
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'tenure'"
        )
        assert db.value(others) == 0
    db.log_is_sound(task_id)


@pytest.mark.parametrize("kind", [AsyncConnectionPool, AsyncNullConnectionPool])
async def test_rows_come_as_the_engine_reads_them_whatever_the_pools_factory(
    dsn: str, db: Harness, kind: type[Pool]
) -> None:
    options: dict[str, Any] = {"row_factory": dict_row}
    async with kind(dsn, min_size=0, max_size=2, kwargs=options) as pool:
        task_id = await a_life(pool)
    assert db.row(task_id)["state"] == "PENDING"


async def test_statements_run_under_the_engines_settings_and_the_callers_under_its_own(pool: Pool, db: Harness) -> None:
    names = ",".join(session_settings())
    db.sql(_KEEP_SETTINGS.replace("%s", names))
    async with pool.connection() as connection:
        await connection.execute("set statement_timeout = '7s'; set timezone = 'Asia/Tokyo'")
    own = await shown(pool, names)
    await a_life(pool)
    kept = db.sql("select distinct name, value, isolation from public.setting")
    assert {row["name"]: row["value"] for row in kept} == session_settings()
    assert {row["isolation"] for row in kept} == {"read committed"}
    assert await shown(pool, names) == own
    assert (own["statement_timeout"], own["timezone"], own["enable_hashjoin"]) == ("7000", "Asia/Tokyo", "on")


async def shown(pool: Pool, names: str) -> dict[str, str]:
    """What a connection of the pool has for these settings, asked as its owner would."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "select lower(name) as name, setting from pg_settings where lower(name) = any (%s)", [names.split(",")]
        )
        found: Any = await cursor.fetchall()
        return {row["name"]: row["setting"] for row in found}


async def test_a_commit_point_commits_on_a_borrowed_connection_too(pool: Pool, db: Harness) -> None:
    store = Store(Engine.on_pool(pool))
    made = await store.enqueue(NewJob("t", contract="gate_b2"))
    (job,) = await store.claim("gate_b2", worker="w")
    db.sql(
        "create function public.no_letters() returns trigger language plpgsql as "
        "$$ begin raise exception 'no dead letter today'; end $$; create trigger no_letters "
        "before insert on tenure.dead_letter for each row execute function public.no_letters()"
    )
    moved = await store.fail(job.held, Failure("bad", retryable=False))
    assert (moved.state, db.row(made.job_id)["state"]) == ("dlq_pending", "dlq_pending")
    db.sql("drop function public.no_letters() cascade")
    (settled,) = await store.settle("gate_b2")
    assert (settled.job_id, db.row(made.job_id)["state"]) == (made.job_id, "failed")
    await store.close()
    assert not pool.closed


async def test_a_locked_row_is_busy_after_the_engines_timeout_and_not_the_callers(
    pool: Pool, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.connect.LOCK_TIMEOUT_MS", 150)
    async with AsyncTaskQueue(pool) as queue:
        await queue.enqueue("send")
        task = await queue.dequeue("w1")
        assert task is not None
        with db.connection.transaction(force_rollback=True):
            db.sql("select from tenure.job where id = %s for update", task.id)
            with pytest.raises(Busy):
                await queue.complete_task(task)
        await queue.complete_task(task)


async def test_eight_dequeues_on_two_borrowed_connections_take_eight_tasks(pool: Pool, db: Harness) -> None:
    async with AsyncTaskQueue(pool) as queue:
        ids = {await queue.enqueue("send") for _ in range(8)}
        tasks = await asyncio.gather(*(queue.dequeue(f"w{n}") for n in range(8)))
        assert {task.id for task in tasks if task is not None} == ids
        assert all(task is not None for task in tasks)


async def serializable(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)


async def read_only(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.set_read_only(True)


async def left_open(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("select 1")


@pytest.mark.parametrize(
    ("option", "way", "reason"),
    [
        ("configure", serializable, "run at serializable"),
        ("configure", read_only, "read-only"),
        ("check", left_open, "inside a transaction"),
    ],
)
async def test_connections_on_which_a_step_could_not_commit_are_refused_by_type(
    dsn: str, db: Harness, option: str, way: Any, reason: str
) -> None:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False, **{option: way}) as pool:
        for _ in range(2):
            with pytest.raises(BadInput, match=reason):
                await AsyncTaskQueue(pool).enqueue("send")
    assert db.value("select count(*) from tenure.job") == 0


async def test_what_is_no_pool_is_refused_when_the_queue_is_made(dsn: str) -> None:
    with ConnectionPool(dsn, min_size=0, max_size=1, open=False) as synchronous:
        for given in (synchronous, None, 5432, object()):
            with pytest.raises(BadInput, match="AsyncConnectionPool"):
                AsyncTaskQueue(given)  # type: ignore[arg-type]


async def test_a_pool_that_is_not_open_is_said_to_be_that(dsn: str) -> None:
    pool: Pool = AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False)
    queue = AsyncTaskQueue(pool)
    with pytest.raises(BadInput, match="not open"):
        await queue.enqueue("send")
    async with pool:
        task_id = await queue.enqueue("send")
        await queue.close()
        with pytest.raises(BadInput, match="this queue is closed"):
            await queue.get_task(task_id)


async def test_a_pool_that_takes_no_more_waiters_says_that_nothing_was_done(dsn: str, db: Harness) -> None:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=1, max_waiting=1, open=False) as pool:
        async with AsyncTaskQueue(pool) as queue, pool.connection():
            waiting = asyncio.create_task(queue.enqueue("send"))
            while pool.get_stats().get("requests_waiting") != 1:
                assert not waiting.done()
                await asyncio.sleep(0.01)
            with pytest.raises(CannotConnect, match="nothing was done"):
                await queue.enqueue("send")
        await waiting
    assert db.value("select count(*) from tenure.job") == 1
