"""A keyed enqueue happens once: the same request gets the same job, another request with its key a conflict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.errors import IdempotencyConflict, Refused
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres import connect
from tenure.postgres.store import Store
from tests.harness import Harness, at_once

WELCOME = NewJob("mail", {"to": "a@b.c", "parts": {"x": 1, "y": [1, 2]}}, key="welcome:42")


def rows(db: Harness) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every job and every key."""
    return db.sql("select xmin::text, * from tenure.job order by id"), db.sql("select xmin::text, * from tenure.key")


def from_sixteen(dsn: str, call: Callable[[Store, int], Any]) -> list[Any]:
    """What sixteen callers get that ask at once, each on connections of its own."""

    async def ask(n: int) -> Any:
        async with Store.open(dsn, connections=1) as store:
            return await call(store, n)

    return at_once(16, lambda n: asyncio.run(ask(n)))


async def test_same_request_twice_is_one_job(store: Store, db: Harness) -> None:
    first = await store.enqueue(WELCOME)
    before = rows(db)
    assert await store.enqueue(WELCOME) == Enqueued(first.job_id, made=False)
    assert first.made
    assert rows(db) == before
    assert db.row(first.job_id)["idempotency_key"] == "welcome:42"


async def test_order_of_the_payloads_keys_does_not_matter(store: Store, db: Harness) -> None:
    first = await store.enqueue(WELCOME)
    turned = replace(WELCOME, payload={"parts": {"y": [1, 2], "x": 1}, "to": "a@b.c"})
    assert await store.enqueue(turned) == Enqueued(first.job_id, made=False)
    assert db.value("select count(*) from tenure.job") == 1


async def test_ids_for_tracing_are_no_part_of_the_request(store: Store) -> None:
    first = await store.enqueue(replace(WELCOME, trace_id="t1", correlation_id="c1"))
    again = await store.enqueue(replace(WELCOME, trace_id="t2", correlation_id="c2"))
    assert again == Enqueued(first.job_id, made=False)


async def test_finished_job_still_answers_for_its_key(store: Store, db: Harness) -> None:
    first = await store.enqueue(WELCOME)
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held)
    assert await store.enqueue(WELCOME) == Enqueued(first.job_id, made=False)
    assert db.value("select count(*) from tenure.job") == 0


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"to": "other"}},
        {"payload": {**WELCOME.payload, "parts": {"x": 1, "y": [2, 1]}}},
        {"type": "letter"},
        {"contract": "phase27"},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_other_request_with_the_same_key_is_a_conflict(store: Store, db: Harness, other: dict[str, Any]) -> None:
    first = await store.enqueue(WELCOME)
    before = rows(db)
    with pytest.raises(
        IdempotencyConflict, match=rf"'welcome:42' was used before.*job {first.job_id}.*use a new key"
    ) as no:
        await store.enqueue(replace(WELCOME, **other))
    assert (no.value.job_id, no.value.key, no.value.reason_code) == (first.job_id, "welcome:42", "IDEMPOTENCY_CONFLICT")
    assert rows(db) == before


#: How a job is run is no part of what is asked for: a release may change it between a request and its repeat.
OPTIONS = pytest.mark.parametrize(
    "other",
    [
        {"queue": "slow"},
        {"priority": 0},
        {"max_attempts": 2},
        {"delay_ms": 5},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"payload": {**WELCOME.payload, "$timeout": 7.5}},
    ],
    ids=lambda other: next(iter(other)),
)


@OPTIONS
async def test_repeat_with_other_options_gets_the_first_job(store: Store, db: Harness, other: dict[str, Any]) -> None:
    first = await store.enqueue(WELCOME)
    before = rows(db)
    assert await store.enqueue(replace(WELCOME, **other)) == Enqueued(first.job_id, made=False)
    assert rows(db) == before


async def test_same_key_of_two_tenants_is_two_jobs(store: Store, db: Harness) -> None:
    ours = await store.enqueue(replace(WELCOME, tenant_id="ours"))
    theirs = await store.enqueue(replace(WELCOME, tenant_id="theirs", payload={"to": "other"}))
    assert (ours.made, theirs.made) == (True, True)
    assert [db.row(one.job_id)["tenant_id"] for one in (ours, theirs)] == ["ours", "theirs"]


async def test_same_key_twice_in_one_batch_is_one_job(store: Store, db: Harness) -> None:
    first, second, other, third = await store.enqueue_many([WELCOME, WELCOME, replace(WELCOME, type="letter"), WELCOME])
    assert isinstance(first, Enqueued)
    assert first.made
    assert second == third == Enqueued(first.job_id, made=False)
    assert isinstance(other, IdempotencyConflict)
    assert db.value("select count(*) from tenure.job") == 1


async def test_mixed_batch_is_answered_in_the_order_asked(store: Store, db: Harness) -> None:
    known = await store.enqueue(replace(WELCOME, key="m"))
    jobs = [
        NewJob("t", {"n": 0}, key="z"),
        NewJob("t", {"n": 1}),
        NewJob("t", {"n": 2}, contract="phase27"),
        replace(WELCOME, key="m"),
        NewJob("t", {"n": 4}, key="a"),
        replace(WELCOME, key="m", type="letter"),
        NewJob("t", {"n": 6}, contract="phase27", key="b"),
        NewJob("t", {"n": 7}),
    ]
    answers = await store.enqueue_many(jobs)
    assert answers[3] == Enqueued(known.job_id, made=False)
    assert isinstance(answers[5], IdempotencyConflict)
    for n in (0, 1, 2, 4, 6, 7):
        answer = answers[n]
        assert isinstance(answer, Enqueued)
        row = db.row(answer.job_id)
        assert (answer.made, row["payload"], row["contract"]) == (True, {"n": n}, jobs[n].contract)
        assert row["idempotency_key"] == jobs[n].key
    assert db.value("select count(*) from tenure.job") == 7


@pytest.mark.req("S4-07")
def test_sixteen_at_once_with_one_key_make_one_job(dsn: str, db: Harness) -> None:
    job = replace(WELCOME, contract="gate_b2", tenant_id="acme")
    answers = from_sixteen(dsn, lambda store, _: store.enqueue(job))
    assert sorted(answer.made for answer in answers) == [False] * 15 + [True]
    assert len({answer.job_id for answer in answers}) == 1
    shown = db.sql("select job_id, tenant_id, idempotency_key from tenure_gate_b2.jobs")
    assert [tuple(row.values()) for row in shown] == [(answers[0].job_id, "acme", "welcome:42")]


@pytest.mark.req("S2-24")
def test_sixteen_at_once_share_one_enqueue_and_one_claim(dsn: str, db: Harness) -> None:
    job, key = replace(WELCOME, contract="reliability"), uuid4()
    made = from_sixteen(dsn, lambda store, _: store.enqueue(job))
    assert db.value("select count(*) from tenure_reliability.jobs") == 1
    claims = from_sixteen(dsn, lambda store, _: store.claim("reliability", worker="w", claim_key=key))
    assert {(one.id, one.claims, one.lease_token) for won in claims for one in won} == {(made[0].job_id, 1, key)}
    assert all(len(won) == 1 for won in claims)
    assert db.value("select count(*) from tenure_reliability.job_events where type = 'job_claimed'") == 1


def test_sixteen_at_once_with_sixteen_bodies_make_one_job(dsn: str, db: Harness) -> None:
    answers = from_sixteen(dsn, lambda store, n: store.enqueue_many([replace(WELCOME, payload={"n": n})]))
    kinds = sorted(type(answer).__name__ for (answer,) in answers)
    assert kinds == ["Enqueued"] + ["IdempotencyConflict"] * 15
    assert db.value("select count(*) from tenure.job") == 1


def test_batches_with_the_same_keys_in_any_order_do_not_block_each_other(dsn: str, db: Harness) -> None:
    jobs = [replace(WELCOME, key=f"k{n}") for n in range(40)]
    answers = from_sixteen(dsn, lambda store, n: store.enqueue_many(jobs[n:] + jobs[:n]))
    assert db.value("select count(*) from tenure.job") == 40
    assert sum(answer.made for batch in answers for answer in batch) == 40


class Opened:
    """A keyed enqueue whose transaction is still open: the rows of a real one, taken out and written again."""

    def __init__(self, dsn: str, db: Harness) -> None:
        self.made = Enqueued(asyncio.run(enqueued(dsn)).job_id, made=True)
        for table in ("job", "key"):
            db.sql(f"create table public.{table} as table tenure.{table}")
            db.sql(f"delete from tenure.{table}")
        self.connection = psycopg.connect(dsn)
        for table in ("job", "key"):
            self.connection.execute(f"insert into tenure.{table} table public.{table}".encode())


async def enqueued(dsn: str) -> Enqueued:
    """The job of the key, made."""
    async with Store.open(dsn) as store:
        return await store.enqueue(WELCOME)


@pytest.fixture
def first(dsn: str, db: Harness) -> Iterator[Opened]:
    """A first use of the key that is not committed yet."""
    opened = Opened(dsn, db)
    yield opened
    opened.connection.close()


async def waiting(store: Store, db: Harness) -> asyncio.Task[Enqueued]:
    """A second call with the same key, once it waits for the first."""
    task = asyncio.create_task(store.enqueue(WELCOME))
    until = time.monotonic() + 60
    blocked = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    while not db.sql(blocked):
        assert time.monotonic() < until, "nobody waits for the open transaction"
        await asyncio.sleep(0.01)
    return task


async def test_first_use_that_is_rolled_back_leaves_the_key_free(store: Store, db: Harness, first: Opened) -> None:
    second = await waiting(store, db)
    first.connection.rollback()
    answer = await second
    assert answer.made
    assert answer.job_id != first.made.job_id
    assert [row["id"] for row in rows(db)[0]] == [answer.job_id]


async def test_first_use_that_is_committed_later_answers_for_both(store: Store, db: Harness, first: Opened) -> None:
    second = await waiting(store, db)
    first.connection.commit()
    assert await second == Enqueued(first.made.job_id, made=False)
    assert [row["id"] for row in rows(db)[0]] == [first.made.job_id]


async def test_first_use_that_stays_open_is_a_typed_refusal(
    dsn: str, first: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 200)
    async with Store.open(dsn) as store:
        with pytest.raises(Refused):
            await store.enqueue(WELCOME)
    first.connection.commit()


async def test_the_same_moment_in_another_zone_is_the_same_body(store: Store) -> None:
    noon = datetime(2030, 5, 1, 12, tzinfo=UTC)
    first = await store.enqueue(NewJob("t", run_at=noon, key="k"))
    far_east = noon.astimezone(timezone(timedelta(hours=20)))  # a zone that PostgreSQL itself would refuse
    assert await store.enqueue(NewJob("t", run_at=far_east, key="k")) == Enqueued(first.job_id, made=False)
