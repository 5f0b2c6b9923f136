"""Unique and expiring jobs as an application declares them; over a dispatcher; and what middleware and tests see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from tenure import testing
from tenure.app import App
from tenure.errors import BadInput, Busy, DuplicateJob
from tenure.jobs.job import NewJob
from tenure.jobs.unique import Unique
from tenure.middleware import Middleware
from tenure.queue import AsyncTaskQueue
from tenure.task import Task
from tests.harness import Harness
from tests.http.conftest import serving
from tests.worker.killing import run_and_kill
from tests.worker.working import quick, until, working


class Seen(Middleware):
    """Keeps what is enqueued."""

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[int]]) -> int:
        """Note the job."""
        self.jobs.append(job)
        return await call_next(job)


def declare(app: App) -> Task[..., Any]:
    """A sync of a customer, at most one that waits."""

    @app.task(unique="waiting", unique_by=("customer",), on_conflict="replace", expires=timedelta(hours=1))
    async def sync(customer: int, *, full: bool = False) -> bool:
        return full

    return sync


@pytest_asyncio.fixture(params=["direct", "remote"])
async def app(dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[App]:
    """An application with a database, or with a dispatcher."""
    if request.param == "direct":
        async with quick(dsn) as made:
            yield made
        return
    with serving(dsn) as url:
        async with App(dispatcher_url=url) as made:
            yield made


async def test_a_task_is_debounced_and_its_options_can_change(app: App, db: Harness) -> None:
    sync = declare(app)
    first = await sync.options(delay=60).enqueue(7)
    again = await sync.enqueue(7, full=True)
    assert (again.id, again.made, first.made) == (first.id, False, True)
    row = db.row(first.id)
    assert row["payload"] == {"customer": 7, "full": True}
    assert row["due_at"] < row["created_at"] + timedelta(seconds=59)
    assert (row["expires_at"] - row["updated_at"]).total_seconds() == pytest.approx(3_600, abs=1)
    with pytest.raises(DuplicateJob) as refused:
        await sync.options(on_conflict="refuse").enqueue(7)
    assert refused.value.job_id == first.id
    assert (await sync.options(unique=timedelta(minutes=5)).enqueue(8)).made
    assert not (await sync.options(unique="active", expires=datetime(2030, 1, 1, tzinfo=UTC)).enqueue(8)).made
    assert db.value("select count(*) from tenure.job") == 2


async def test_many_at_once_make_one_for_each_customer(app: App, db: Harness) -> None:
    sync = declare(app)
    ids = await app.enqueue_many(sync.options(on_conflict="return").call(n % 10) for n in range(100))
    assert len(ids) == 100
    assert len(set(ids)) == 10
    assert db.value("select count(*) from tenure.job") == 10


async def test_a_default_that_is_passed_or_not_is_the_same(app: App) -> None:
    @app.task(unique="waiting")
    async def whole(customer: int, *rest: int, full: bool = False, **more: int) -> None: ...

    first = await whole.enqueue(7)
    assert first.made
    assert (await whole.enqueue(7, full=False)).id == first.id
    assert (await whole.enqueue(customer=7)).id == first.id
    assert (await whole.enqueue(7, full=True)).made


async def test_a_unique_job_waits_behind_nothing_of_its_batch(dsn: str, db: Harness) -> None:
    async with quick(dsn) as app:
        sync = declare(app)

        @app.task
        async def plain() -> None: ...

        await sync.enqueue(8)
        with Harness(dsn) as other, other.connection.transaction():
            other.sql("select from tenure.unique_job for update")
            waiting = asyncio.create_task(sync.enqueue(8))
            assert (await plain.enqueue()).made
            assert not waiting.done()
        await waiting


async def test_unique_jobs_that_wait_leave_connections_to_other_calls(app: App, db: Harness, dsn: str) -> None:
    sync = declare(app)

    @app.task
    async def plain() -> None: ...

    first = await sync.enqueue(8)
    with Harness(dsn) as other, other.connection.transaction():
        other.sql("select from tenure.unique_job for update")
        waiting = [asyncio.create_task(sync.enqueue(8)) for _ in range(40)]
        await until(lambda: _waits(db) >= 4)
        async with asyncio.timeout(30):
            assert (await plain.enqueue()).made
            assert (await app.job(first)).state == "queued"
        assert _waits(db) <= 4
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    # Whoever waited too long for the lock was told so.
    assert {(one.id, one.made) for one in answers if not isinstance(one, Busy)} == {(first.id, False)}  # type: ignore[union-attr]


async def test_a_unique_job_whose_worker_is_killed_is_retried(dsn: str, db: Harness) -> None:
    async with quick(dsn) as app:

        @app.task(name="nap", unique="active")
        async def nap(seconds: float) -> None:
            await asyncio.sleep(seconds)

        first = await nap.enqueue(600.0)
        await run_and_kill(dsn, db, first.id, times=1)
        assert not (await nap.enqueue(600.0)).made
        # The next claim closes the lease of the dead worker; the job in the way of others is this one still.
        async with working(app):
            await until(lambda: db.row(first.id)["claims"] == 2)
            assert not (await nap.enqueue(600.0)).made
            await app.cancel(first, mode="hard")
        assert (await nap.enqueue(600.0)).made


async def test_an_expired_job_never_runs(dsn: str, db: Harness) -> None:
    async with quick(dsn) as app:
        sync = declare(app)
        late = await sync.enqueue(1)
        db.sql("update tenure.job set expires_at = clock_timestamp()")
        due = await sync.enqueue(2, full=True)
        async with working(app, upkeep=False):
            assert await app.result(due, timeout=60) is True
            await until(lambda: db.row(late.id)["role"] == "done")
        assert (await app.job(late)).state == "cancelled"
        assert db.log(late.id)[0]["reason"] == "expired"


async def test_middleware_and_test_helpers_see_the_options(dsn: str) -> None:
    seen = Seen()
    async with quick(dsn, middleware=[seen]) as app:
        sync = declare(app)
        made = await sync.enqueue(7)
        assert not (await sync.enqueue(7)).made
        assert seen.jobs[0].unique == Unique("waiting", ("customer",), "replace")
        assert (seen.jobs[0].expires_ms, seen.jobs[0].expires_at) == (3_600_000, None)
        assert (await testing.assert_enqueued(app, sync, 7)).id == made.id


async def test_time_that_a_test_lets_pass_ends_periods_and_expires_jobs(tenure_database: str) -> None:
    async with App(tenure_database) as app:
        sync = declare(app)
        first = await sync.options(unique=timedelta(hours=2)).enqueue(7)
        await testing.advance(app, hours=1)
        await testing.drain(app)
        assert (await app.job(first)).state == "cancelled"
        assert not (await sync.options(unique=timedelta(hours=2)).enqueue(7)).made
        await testing.advance(app, hours=1)
        assert (await sync.options(unique=timedelta(hours=2)).enqueue(7)).made


async def test_a_task_queue_takes_the_options_too(dsn: str, db: Harness) -> None:
    async with AsyncTaskQueue(dsn) as queue:
        first = await queue.enqueue("sync", {"customer": 7}, unique="active", expires=60)
        assert await queue.enqueue("sync", {"customer": 7}, unique="active") == first
        assert db.row(first)["expires_at"] is not None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"unique": "sometimes"}, "must be"),
        ({"unique": timedelta()}, "at least a millisecond"),
        ({"unique": "waiting", "unique_by": ("custmer",)}, "custmer"),
        ({"unique": "waiting", "unique_by": "customer"}, "unique_by=\\('customer',\\)"),
        ({"unique": "waiting", "unique_by": ()}, "one or more"),
        ({"unique": "waiting", "on_conflict": "ignore"}, "on_conflict"),
        ({"unique_by": ("customer",)}, "is for unique jobs"),
        ({"on_conflict": "refuse"}, "is for unique jobs"),
        ({"expires": "soon"}, "expires must be"),
        ({"expires": 0}, "at least a millisecond"),
        ({"expires": 60, "contract": "phase27"}, "no cancel from queued"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_stands(options: dict[str, Any], told: str) -> None:
    app = App("postgresql://nowhere")

    async def sync(customer: int) -> None: ...

    with pytest.raises(BadInput, match=told):
        app.task(**options)(sync)


def _waits(db: Harness) -> int:
    """How many sessions wait for a lock."""
    return int(
        db.value(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
    )
