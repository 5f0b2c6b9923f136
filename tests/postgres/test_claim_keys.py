"""A claim key is spent with the first job that it wins, once and for good; asking in vain costs nothing.

Beside the keys stand the other promises of a claim: a name given twice is one, a lease begins when the claim has all
its rows, and rows that this process cannot claim do not stand before those that it can.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Hop, Path
from tenure.errors import InvalidTransition, JobNotFound, NotDue, Refused, StaleLease
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.claim import Claimer, claim_by_id_plan
from tenure.postgres.connect import engine_dsn
from tenure.postgres.migrate import migrate
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, Statement, run_sync
from tenure.postgres.store import Store
from tests.harness import Harness


@pytest.fixture
def other(dsn: str) -> Iterator[Harness]:
    """Somebody else's connection."""
    with Harness(dsn) as harness:
        yield harness


def keys(db: Harness) -> set[UUID]:
    """Every key that was spent."""
    return {row["key"] for row in db.sql("select key from tenure.claim")}


async def made(store: Store, count: int, **options: Any) -> list[int]:
    """The ids of new jobs."""
    answers = await store.enqueue_many([NewJob("t", **options) for _ in range(count)])
    return [answer.job_id for answer in answers if answer.job_id is not None]


async def waits_for_a_lock(db: Harness) -> None:
    """Return when the store's own connection waits for somebody."""
    give_up = time.monotonic() + 60
    waiting = (
        "select count(*) from pg_stat_activity where application_name = 'tenure' and wait_event_type = 'Lock' "
        "and datname = current_database()"
    )
    while not db.value(waiting):
        assert time.monotonic() < give_up, "nobody waits"
        await asyncio.sleep(0.01)


async def test_idle_queue_that_is_asked_often_spends_no_key(store: Store, db: Harness) -> None:
    for n in range(100):
        assert await store.claim(worker="w", claim_key=uuid4() if n % 2 else None) == []
    assert keys(db) == set()


async def test_claim_that_finds_the_only_job_locked_spends_no_key(store: Store, db: Harness, other: Harness) -> None:
    (job_id,) = await made(store, 1)
    key = uuid4()
    with other.connection.transaction():
        other.sql("select from tenure.job where id = %s for update", job_id)
        assert await store.claim(worker="w", claim_key=key) == []
        assert await store.claim(worker="w") == []
        assert keys(db) == set()
    (job,) = await store.claim(worker="w", claim_key=key)
    assert (job.id, job.lease_token) == (job_id, key)
    assert keys(db) == {key}


async def test_claim_by_id_that_wins_nothing_spends_no_key(store: Store, db: Harness) -> None:
    (delayed,) = await made(store, 1, delay_ms=600_000)
    (held, ended) = await made(store, 2)
    first, second = await store.claim(worker="w", limit=2)
    await store.succeed(next(job.held for job in (first, second) if job.id == ended))
    spent, key = keys(db), uuid4()
    answers = await store.claim_by_id([delayed, held, ended, 10**9], worker="w2", claim_key=key)
    assert [type(answer) for answer in answers] == [NotDue, InvalidTransition, InvalidTransition, JobNotFound]
    assert keys(db) == spent
    db.due(delayed)
    (job,) = await store.claim_by_id([delayed], worker="w2", claim_key=key)
    assert isinstance(job, Job)
    assert keys(db) == spent | {key}


async def test_job_named_twice_is_answered_twice(store: Store, db: Harness) -> None:
    (delayed,) = await made(store, 1, delay_ms=600_000)
    (due,) = await made(store, 1)
    assert [type(answer) for answer in await store.claim_by_id([delayed, delayed], worker="w")] == [NotDue, NotDue]
    assert keys(db) == set()
    first, refused, again, unknown = await store.claim_by_id([due, delayed, due, 10**9], worker="w")
    assert isinstance(first, Job)
    assert again == first
    assert (first.id, first.claims) == (due, 1)
    assert (type(refused), type(unknown)) == (NotDue, JobNotFound)
    assert keys(db) == {first.lease_token}
    assert db.hops(due) == ["queued->running"]


@pytest.mark.parametrize("how", ["succeed", "fail", "expire"])
async def test_spent_key_wins_no_other_job_by_id(store: Store, db: Harness, how: str) -> None:
    first_id, second_id = await made(store, 2)
    key = uuid4()
    (job,) = await store.claim_by_id([first_id], worker="w", claim_key=key)
    assert isinstance(job, Job)
    if how == "succeed":
        await store.succeed(job.held)
    elif how == "fail":
        await store.fail(job.held, Failure("no"))
    else:
        db.expire(job.id)
        await store.reap("standard")
    before = db.fingerprint(first_id, second_id)
    for ids in ([second_id], [first_id, second_id]):
        answers = await store.claim_by_id(ids, worker="w", claim_key=key)
        assert [type(answer) for answer in answers] == [StaleLease] * len(ids)
    with pytest.raises(StaleLease):
        await store.claim(worker="w", claim_key=key)
    assert db.fingerprint(first_id, second_id) == before


def answered(engine: psycopg.Connection[Any], step: Any) -> list[Any]:
    """The rows of one statement, executed by hand."""
    assert isinstance(step, Statement)
    cursor = psycopg.RawCursor(engine)
    cursor.execute(step.query.text, step.values, binary=True)
    return cursor.fetchall()


def the_rest(engine: psycopg.Connection[Any], plan: Plan[list[Job | Refused]], step: Any) -> Job | Refused:
    """What a call for one job answers after the statements that are left."""
    try:
        while True:
            step = plan.send(answered(engine, step))
    except StopIteration as stop:
        (answer,) = stop.value
    return answer  # type: ignore[no-any-return]


async def test_repeat_gets_the_job_that_the_first_call_wins_between_two_of_its_looks(
    store: Store, other: Harness, dsn: str
) -> None:
    (job_id,) = await made(store, 1)
    key, registry = uuid4(), Registry()
    with psycopg.connect(engine_dsn(dsn), autocommit=True) as engine:
        run_sync(engine, registry.load())
        claimer = Claimer("w", 1, key)
        repeat = claim_by_id_plan(registry.versions("standard"), [job_id], [claimer], skip_locked=True)
        with other.connection.transaction():
            other.sql("select from tenure.job where id = %s for update", job_id)  # as the first call locks it
            step = next(repeat)
            while isinstance(step, Statement) and step.query.name != "find_used_claim_keys":
                step = repeat.send(answered(engine, step))
        (job,) = await store.claim_by_id([job_id], worker="w", claim_key=key)
        answer = the_rest(engine, repeat, step)
    assert isinstance(answer, Job)
    assert answer == job


async def test_key_stays_spent_when_a_repeat_finishes_the_job_before_the_first_call_hears_of_it(
    store: Store, db: Harness, dsn: str
) -> None:
    first_id, _ = await made(store, 2)
    key, registry = uuid4(), Registry()
    with psycopg.connect(engine_dsn(dsn), autocommit=True) as engine:
        run_sync(engine, registry.load())
        claimer = Claimer("w", 1, key)
        slow = claim_by_id_plan(registry.versions("standard"), [first_id], [claimer])
        step = slow.send(answered(engine, next(slow)))  # the move was made; its answer is still on the way
        (job,) = await store.claim_by_id([first_id], worker="w", claim_key=key)
        assert isinstance(job, Job)
        await store.succeed(job.held)
        answer = the_rest(engine, slow, step)
    assert isinstance(answer, StaleLease)
    assert keys(db) == {key}
    with pytest.raises(StaleLease):
        await store.claim(worker="w", claim_key=key)
    assert db.value("select count(*) from tenure.job where role = 'ready'") == 1


async def test_parallel_claims_by_id_with_one_key_win_one_batch(store: Store, db: Harness) -> None:
    ids, key = await made(store, 8), uuid4()
    await asyncio.gather(*(store.claim_by_id([job_id], worker="w", claim_key=key) for job_id in ids))
    assert keys(db) == {key}
    assert db.value("select count(*) from tenure.job where lease_token = %s", key) == 1


async def test_lease_begins_when_the_claim_has_all_its_rows(store: Store, db: Harness, other: Harness) -> None:
    first_id, second_id = await made(store, 2)
    with other.connection.transaction():
        other.sql("select from tenure.job where id = %s for update", second_id)
        claiming = asyncio.create_task(store.claim_by_id([first_id, second_id], worker="w", lease_ms=2_000))
        await waits_for_a_lock(db)
        released: datetime = other.value("select clock_timestamp()")
    first, second = await claiming
    assert isinstance(first, Job)
    assert isinstance(second, Job)
    for job in (first, second):
        assert job.lease_expires_at is not None
        assert job.lease_expires_at - released >= timedelta(seconds=2)


@pytest.mark.parametrize("contract", ["standard", "gate_b2"])
async def test_a_repeated_claim_takes_no_other_job(store: Store, db: Harness, contract: str) -> None:
    for _ in range(3):
        await store.enqueue(NewJob("t", contract=contract))
    key = uuid4()
    first = await store.claim(contract, worker="w", claim_key=key)
    assert [job.id for job in await store.claim(contract, worker="w", claim_key=key)] == [job.id for job in first]
    assert db.value("select count(*) from tenure.job where role = 'ready'") == 2


async def test_queue_named_twice_is_one(store: Store, db: Harness) -> None:
    await made(store, 3, queue="a")
    await made(store, 3, queue="b")
    won = await store.claim(queues=["a", "a", "b"], worker="w", limit=4)
    assert sorted(job.queue for job in won) == ["a"] * 3 + ["b"]
    assert db.value("select count(*) from tenure.event") == 4
    assert len(await store.claim(queues=["b", "a", "b"], worker="w", limit=6)) == 2


STANDARD = BUILT_IN["standard"]
ERRAND = replace(STANDARD, name="errand")
#: A later version lets jobs be parked in a state that the first one does not know.
NEXT = replace(
    ERRAND,
    version="2",
    states={**ERRAND.states, "parked": ("ready",)},
    paths=(
        *ERRAND.paths,
        Path("claim", ("parked",), (Hop("running", "active"),)),
        Path("retry", ("running",), (Hop("parked", "ready"),), due="backoff", choice="parked"),
    ),
)


async def test_rows_of_a_newer_version_do_not_use_up_the_limit_of_an_older_process(dsn: str, db: Harness) -> None:
    migrate(dsn, {"errand": ERRAND})
    async with Store.open(dsn) as old:
        assert await old.claim("errand", worker="w") == []  # it knows version 1 from now on
        migrate(dsn, {"errand": NEXT})
        parked = await made(old, 3, contract="errand", priority=0)
        db.sql("update tenure.job set version = '2', state = 'parked', seq = 1 where id = any(%s)", parked)
        before = db.fingerprint(*parked)
        known = await made(old, 2, contract="errand")
        assert [job.id for _ in known for job in await old.claim("errand", worker="w")] == known
        assert await old.claim("errand", worker="w", limit=5) == []
        assert db.fingerprint(*parked) == before
    async with Store.open(dsn) as new:
        won = await new.claim("errand", worker="w", limit=5)
        assert [(job.id, job.state) for job in won] == [(job_id, "running") for job_id in parked]
