"""Any number of calls, batch by batch: a batch is prepared while the one before is made, and nobody can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tenure.app import App
from tenure.errors import BadInput, IdempotencyConflict
from tenure.middleware import Middleware
from tenure.postgres.enqueue import PreparedJobs
from tenure.postgres.store import Store
from tenure.task import Call
from tests.harness import Harness
from tests.worker.working import quick, until

_COUNT = "select count(*) from tenure.job"


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application with one task."""
    async with quick(dsn) as app:

        @app.task
        async def work(n: object) -> None: ...

        yield app


def calls(app: App, numbers: Sequence[object]) -> Iterator[Call[Any]]:
    """Calls of the task, made as they are asked for."""
    return (app.tasks["work"].call(n) for n in numbers)


def order(db: Harness, ids: list[int]) -> list[Any]:
    """The arguments of jobs, in the order of these ids."""
    rows = {row["id"]: row["n"] for row in db.sql("select id, payload -> 'n' as n from tenure.job")}
    assert len(rows) == len(ids)
    return [rows[job_id] for job_id in ids]


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in its order: batches are prepared, asked for and made."""
    happened: list[str] = []
    prepare, make = Store.prepare, Store.insert_prepared

    async def told_prepare(store: Store, jobs: Any, **options: Any) -> PreparedJobs:
        happened.append(f"prepare {jobs[0].payload['n']}")
        return await prepare(store, jobs, **options)

    async def told_make(store: Store, prepared: PreparedJobs) -> Any:
        n = prepared.jobs[0].payload["n"]
        happened.append(f"make {n}")
        try:
            return await make(store, prepared)
        finally:
            happened.append(f"made {n}")

    monkeypatch.setattr(Store, "prepare", told_prepare)
    monkeypatch.setattr(Store, "insert_prepared", told_make)
    return happened


async def test_batches_are_made_one_at_a_time_in_their_order_while_the_next_is_prepared(
    app: App, db: Harness, under_way: list[str]
) -> None:
    told: list[int] = []
    ids = await app.enqueue_many(calls(app, range(25)), batch=10, progress=told.append)
    assert order(db, ids) == list(range(25))
    assert ids == sorted(ids)
    assert told == [10, 20, 25]
    assert [what for what in under_way if what.startswith("ma")] == [
        "make 0", "made 0", "make 10", "made 10", "make 20", "made 20"
    ]  # fmt: skip
    assert under_way.index("prepare 10") < under_way.index("made 0"), "the second is prepared while the first is made"


@pytest.mark.parametrize("jobs", [0, 1, 9, 10, 11, 20])
async def test_every_call_is_made_once_however_the_batches_fall(app: App, db: Harness, jobs: int) -> None:
    told: list[int] = []
    ids = await app.enqueue_many(calls(app, range(jobs)), batch=10, progress=told.append)
    assert order(db, ids) == list(range(jobs))
    assert told[-1:] == ([jobs] if jobs else [])


@pytest.mark.parametrize("made", [0, 10, 20])
async def test_a_bad_call_in_the_middle_says_how_many_were_made_before_it(app: App, db: Harness, made: int) -> None:
    numbers: list[object] = list(range(35))
    numbers[made + 3] = "x" * 2_000_000
    with pytest.raises(BadInput, match="job 4 of 10") as raised:
        await app.enqueue_many(calls(app, numbers), batch=10)
    assert db.value(_COUNT) == made
    notes = getattr(raised.value, "__notes__", [])
    first, last = db.one("select min(id), max(id) from tenure.job").values()
    expected = [f"{made} jobs were made before that, the first as {first}, the last as {last}"] if made else []
    assert notes == expected


async def test_what_the_callers_own_iterator_raises_comes_after_what_was_made(app: App, db: Harness) -> None:
    def broken() -> Iterator[Call[Any]]:
        yield from calls(app, range(13))
        raise LookupError("no more")

    with pytest.raises(LookupError) as raised:
        await app.enqueue_many(broken(), batch=10)
    assert db.value(_COUNT) == 10
    assert raised.value.__notes__[-1].startswith("10 jobs were made before that")
    with pytest.raises(BadInput, match=r"takes task\.call") as refused:
        await app.enqueue_many([*calls(app, range(5)), "no call"], batch=5)  # type: ignore[list-item]
    assert db.value(_COUNT) == 15
    assert refused.value.__notes__[-1].startswith("5 jobs were made before that")


async def test_a_batch_that_the_database_refuses_stops_those_after_it(app: App, db: Harness) -> None:
    db.sql("""
        create function public.refuse() returns trigger language plpgsql as $$
        begin if new.payload ->> 'n' = '15' then raise exception 'not this one'; end if; return new; end $$;
        create trigger refuse before insert on tenure.job for each row execute function public.refuse();
    """)
    with pytest.raises(psycopg.errors.RaiseException) as raised:
        await app.enqueue_many(calls(app, range(50)), batch=10)
    assert db.value(_COUNT) == 10
    assert raised.value.__notes__[-1].startswith("10 jobs were made before that")
    numbers: list[object] = [*range(20), "x" * 2_000_000, *range(21, 30)]
    with pytest.raises(BadInput) as both:
        await app.enqueue_many(calls(app, numbers), batch=10)
    assert any("not this one" in note for note in both.value.__notes__), "the batch under way failed too: who says so?"


async def test_a_key_that_was_used_otherwise_says_which_of_its_batch_were_made(app: App, db: Harness) -> None:
    task = app.tasks["work"]
    await task.options(key="once").enqueue(0)
    batch = [task.call(1), task.options(key="once").call(2), task.call(3)]
    with pytest.raises(IdempotencyConflict) as raised:
        await app.enqueue_many([*calls(app, range(3)), *batch], batch=3)
    assert db.value(_COUNT) == 1 + 3 + 2
    said = " ".join(raised.value.__notes__)
    assert "2 other jobs of this batch were made" in said
    assert "3 jobs were made before that" in said


#: The engine's connections that are in the middle of something.
_BUSY = (
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and application_name = 'tenure' and state <> 'idle'"
)


#: The databases of other tests have the same oids of tables.
_WAITS_FOR_JOB = (
    "select count(*) from pg_locks where not granted and relation = 'tenure.job'::regclass "
    "and database = (select oid from pg_database where datname = current_database())"
)


async def test_who_is_cancelled_leaves_no_batch_under_way_behind(
    app: App, db: Harness, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.connect.LOCK_TIMEOUT_MS", 100_000)  # nobody gives the lock up by himself
    waiting = asyncio.Event()

    async def slowly() -> AsyncIterator[Call[Any]]:
        for call in calls(app, range(10)):
            yield call
        waiting.set()
        await asyncio.Event().wait()

    await app.enqueue_many(calls(app, [0]))
    before = asyncio.all_tasks()
    with psycopg.connect(dsn) as other:
        other.execute("lock table tenure.job in share mode")
        asked = asyncio.create_task(app.enqueue_many(slowly(), batch=10))
        await until(waiting.is_set)
        await until(lambda: db.value(_WAITS_FOR_JOB) == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(asked), 60)  # the lock stays: nobody waits for the database
        other.rollback()
    left = [task for task in asyncio.all_tasks() - before if "enqueue" in repr(task) or "together" in repr(task)]
    assert left == []
    await until(lambda: db.value(_BUSY) == 0, 60)
    assert db.value(_COUNT) == 1, "jobs were made after the caller was told that it was cancelled"


async def test_progress_that_raises_stops_what_is_not_begun(app: App, db: Harness) -> None:
    def stop(made: int) -> None:
        raise RuntimeError(f"{made} are enough")

    with pytest.raises(RuntimeError, match="10 are enough") as raised:
        await app.enqueue_many(calls(app, range(50)), batch=10, progress=stop)
    assert db.value(_COUNT) == 10
    assert raised.value.__notes__[-1].startswith("10 jobs were made")


class Doubling(Middleware):
    """Changes what is enqueued."""

    async def enqueue(self, job: Any, call_next: Any) -> int:
        await asyncio.sleep(0)
        job.payload["n"] *= 2
        made: int = await call_next(job)
        return made


async def test_with_middleware_the_ids_are_still_in_the_order_of_the_calls(dsn: str, db: Harness) -> None:
    async with quick(dsn, middleware=[Doubling()]) as app:

        @app.task
        async def work(n: int) -> None: ...

        ids = await app.enqueue_many(calls(app, range(25)), batch=10)
    assert order(db, ids) == list(range(0, 50, 2))
