"""An enqueue happens whole or not at all: with keys and without, of several contracts, in one statement or many.

What can come between its statements is tried here: the end of the ids, a deadlock, somebody's open transaction, a row
that the database refuses. Making ids ahead is a neighbour of every enqueue, so it must not hold one up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

import tenure
from tenure.errors import Busy, Refused
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.connect import engine_dsn
from tenure.postgres.migrate import migrate
from tenure.postgres.statement import statement
from tenure.postgres.store import Store
from tests.harness import Harness

WIDTH = 1_048_576
USE = "insert into tenure.key (tenant_id, key, verb, hash, job_id) values ('default', %s, 'enqueue', 'x', 1)"


def mixed() -> list[NewJob]:
    """Jobs with keys and without, of two contracts, in no order."""
    kinds = [("standard", None), ("phase27", "b"), ("standard", "c"), ("phase27", None), ("standard", "a")] * 2
    return [
        NewJob("t", {"n": n}, contract, key=key and f"{key}{n}", queue=f"q{n % 2}")
        for n, (contract, key) in enumerate(kinds)
    ]


def each_made_once(db: Harness, jobs: list[NewJob], answers: list[Enqueued | Refused]) -> None:
    """Assert that the answers name the jobs asked for, in order, and that nothing else exists."""
    assert all(isinstance(answer, Enqueued) and answer.made for answer in answers), answers
    rows = {row["id"]: row for row in db.sql("select * from tenure.job")}
    shown = [rows[answer.job_id] for answer in answers if answer.job_id is not None]
    assert [(row["payload"], row["contract"], row["idempotency_key"]) for row in shown] == [
        (job.payload, job.contract, job.key) for job in jobs
    ]
    assert len(rows) == len(jobs)
    keys = {row["key"]: row["job_id"] for row in db.sql("select key, job_id from tenure.key")}
    assert keys == {row["idempotency_key"]: row["id"] for row in shown if row["idempotency_key"]}


def nothing_made(db: Harness) -> None:
    """Assert that neither a job nor a key exists."""
    assert db.sql("select id, payload from tenure.job") == []
    assert db.sql("select key from tenure.key") == []


def ends_after(db: Harness, left: int) -> None:
    """Leave this many ids."""
    db.sql("select setval('tenure.job_id_seq', max(high) - 1 - %s) from tenure.range", left)


@pytest.fixture
def other(dsn: str) -> Iterator[Harness]:
    """Somebody else's connection."""
    with Harness(dsn) as harness:
        yield harness


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores opened from now on wait 300 ms for a lock."""
    monkeypatch.setattr("tenure.postgres.connect.LOCK_TIMEOUT_MS", 300)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one statement carry two small payloads at the most."""
    monkeypatch.setattr("tenure.postgres.statement._MAX_STATEMENT_BYTES", 14)


@pytest.mark.parametrize("left", range(0, 10, 3))
async def test_mixed_batch_at_the_end_of_the_ids_makes_each_job_once(store: Store, db: Harness, left: int) -> None:
    ends_after(db, left)
    each_made_once(db, mixed(), await store.enqueue_many(mixed()))


async def test_mixed_batch_that_met_a_deadlock_makes_each_job_once(dsn: str, db: Harness, other: Harness) -> None:
    db.sql(
        f"alter database {db.connection.info.dbname} set deadlock_timeout = '100ms'"
    )  # the store is the one to notice
    other.sql("set deadlock_timeout = '60s'")
    jobs = [NewJob("t", {"n": 0}), *(NewJob("t", {"n": n}, key="_abc"[n]) for n in (1, 2, 3))]
    async with Store.open(dsn) as store:
        await store.claim(worker="w")  # the registry is read once
        with other.connection.transaction(force_rollback=True), Harness(dsn) as gate:
            other.sql(USE, "c")
            gate.sql("begin")
            gate.sql(USE, "b")
            asked = asyncio.create_task(store.enqueue_many(jobs))
            await waits_for_a_lock(db)
            tried = db.value("select last_value from tenure.job_id_seq")
            # The other waits for the store's first key before the store waits for the other's: the store, which closes
            # the circle, is the one that looks for it.
            using = asyncio.create_task(asyncio.to_thread(other.sql, USE, "a"))
            await waits_for_a_lock(db, count=2)
            gate.sql("rollback")
            await using
        each_made_once(db, jobs, await asked)
    assert db.value("select min(id) from tenure.job") > tried  # what was tried before the deadlock is gone


async def waits_for_a_lock(db: Harness, count: int = 1) -> None:
    """Return when so many connections wait for somebody."""
    give_up = time.monotonic() + 60
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    while db.value(waiting) < count:
        assert time.monotonic() < give_up, "nobody waits"
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("held", ["a4", "c2", "b6"])
async def test_key_in_somebodys_open_transaction_stops_the_whole_batch(
    dsn: str, db: Harness, other: Harness, held: str
) -> None:
    async with Store.open(dsn) as store:
        with other.connection.transaction(force_rollback=True):
            other.sql(USE, held)
            with pytest.raises(Busy, match="nothing was done"):
                await store.enqueue_many(mixed())
            nothing_made(db)
        each_made_once(db, mixed(), await store.enqueue_many(mixed()))


@pytest.mark.usefixtures("small_parts")
async def test_batch_of_many_statements_is_answered_in_the_order_asked(store: Store, db: Harness) -> None:
    plain = [NewJob("t", {"n": n}) for n in range(7)]
    each_made_once(db, plain, await store.enqueue_many(plain))
    db.sql("delete from tenure.job")
    each_made_once(db, mixed(), await store.enqueue_many(mixed()))
    assert [answer.job_id for answer in await store.enqueue_many([mixed()[1], mixed()[4]])] == [
        db.value("select job_id from tenure.key where key = %s", key) for key in ("b1", "a4")
    ]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("refused", range(0, 10, 3))
async def test_batch_of_many_statements_of_which_one_is_refused_makes_nothing(
    store: Store, db: Harness, refused: int
) -> None:
    db.sql(f"alter table tenure.job add constraint picky check (payload <> '{{\"n\": {refused}}}')")
    for jobs in (mixed(), [NewJob("t", {"n": n}) for n in range(10)]):
        with pytest.raises(psycopg.errors.CheckViolation, match="picky"):
            await store.enqueue_many(jobs)
        nothing_made(db)


@pytest.mark.usefixtures("small_parts")
async def test_batch_of_many_statements_at_the_end_of_the_ids_makes_each_job_once(store: Store, db: Harness) -> None:
    ends_after(db, 3)
    plain = [NewJob("t", {"n": n}) for n in range(7)]
    each_made_once(db, plain, await store.enqueue_many(plain))


@pytest.mark.usefixtures("small_parts", "impatient")
async def test_batch_of_many_statements_behind_a_held_key_makes_nothing(dsn: str, db: Harness, other: Harness) -> None:
    async with Store.open(dsn) as store:
        with other.connection.transaction(force_rollback=True):
            other.sql(USE, "c7")
            with pytest.raises(Busy):
                await store.enqueue_many(mixed())
            nothing_made(db)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every step of a plan."""
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


@pytest.mark.pristine
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
async def test_work_for_many_keys_grows_with_their_number(store: Store, dsn: str, known: bool) -> None:
    names = [f"k{n:05}" for n in range(4_000)]
    if known:
        await store.enqueue_many([NewJob("t", key=name) for name in names])
    asked = statement(
        "insert_enqueue_keys", {"keys": names, "hashes": names, "every_tenant": "default", "each_tenant": []}
    )
    with psycopg.connect(engine_dsn(dsn), autocommit=True) as engine:
        engine.execute(b"prepare asked as " + asked.query.text.encode())
        values = sql.SQL(", ").join(map(sql.Literal, asked.values))
        told = engine.execute(
            sql.SQL("explain (analyze, timing off, format json) execute asked ({})").format(values)
        ).fetchone()
    assert told is not None
    plan = told[0] if isinstance(told[0], list) else json.loads(told[0])
    handled = [
        (node["Actual Rows"] + node.get("Rows Removed by Join Filter", 0)) * node["Actual Loops"]
        for node in nodes(plan[0]["Plan"])
    ]
    assert len(names) <= max(handled) <= 2 * len(names)


async def test_many_keys_in_one_call_are_each_made_once(store: Store, db: Harness) -> None:
    jobs = [NewJob("t", {"n": n}, key=f"{n}") for n in range(4_000)]
    first = await store.enqueue_many(jobs)
    each_made_once(db, jobs, first)
    again = await store.enqueue_many(jobs)
    assert again == [Enqueued(answer.job_id, made=False) for answer in first if answer.job_id is not None]


def last_place(db: Harness) -> int:
    """Where the ranges end."""
    return int(db.value("select max(high) from tenure.range"))


@pytest.mark.parametrize("left", [0, 10, 100_000])
async def test_an_open_transaction_that_took_an_id_stops_neither_enqueues_nor_new_ranges(
    store: Store, db: Harness, other: Harness, left: int
) -> None:
    ends_after(db, left)
    before = last_place(db)
    with other.connection.transaction(force_rollback=True):
        other.sql("select nextval('tenure.job_id_seq')")
        # The transaction stays open: a call that waited for it would end as Busy.
        made = [(await store.enqueue(NewJob("t"))).job_id for _ in range(3)]
        await store.extend_ranges()
        made += [(await store.enqueue(NewJob("t"))).job_id for _ in range(3)]
    assert last_place(db) >= before + 4 * WIDTH
    assert sorted(made) == made
    assert made[-1] < last_place(db)


async def test_a_job_beyond_the_last_range_is_not_made(dsn: str, db: Harness, other: Harness) -> None:
    ends_after(db, 0)
    async with Store.open(dsn) as store:
        letter = await dead_letter(store, db)
        ends_after(db, 0)
        app = tenure.App(dsn)
        with psycopg.connect(dsn) as user:

            @app.task
            def send() -> None: ...

            with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):  # nobody makes ranges here
                send.enqueue_in(user)
            user.rollback()
        again = await store.letters.requeue(letter, actor="ada")
    assert again < last_place(db)
    assert db.value("select max(id) from tenure.job") == again


async def dead_letter(store: Store, db: Harness) -> int:
    """Make a job that fails for good; the id of its dead letter."""
    await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    await store.fail(job.held, Failure("no", type="PermanentError"))
    return int(db.value("select id from tenure.dead_letter"))


@pytest.fixture
def app(dsn: str, other: Harness) -> Harness:
    """A connection with the rights of a process that works, not of the owner."""
    migrate(dsn, grants=True)
    other.sql("set role tenure_app")
    return other


@pytest.mark.parametrize("ahead", [None, 0, -1, 65])
def test_ranges_are_made_a_sensible_number_ahead(db: Harness, app: Harness, ahead: int | None) -> None:
    before = last_place(db)
    for asking in (db, app):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="ranges are made 1 to 64 ahead"):
            asking.sql("select tenure.extend_ranges(%s)", ahead)
    assert last_place(db) == before


def test_working_process_makes_ranges_ahead_beside_an_open_transaction(db: Harness, app: Harness, dsn: str) -> None:
    with Harness(dsn) as third, third.connection.transaction(force_rollback=True):
        third.sql("select nextval('tenure.job_id_seq')")
        app.sql("set lock_timeout = '1s'")
        assert app.value("select tenure.extend_ranges(5)") == 1
    assert app.value("select tenure.extend_ranges(5)") == 0
