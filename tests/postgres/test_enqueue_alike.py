"""Jobs that differ in their payloads alone are made by a shorter statement, and are the same jobs."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, PayloadTooLarge
from tenure.jobs import validation
from tenure.jobs.dataset import NewDataset
from tenure.jobs.job import DatasetUse, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.outcome import Enqueued
from tenure.jobs.unique import Unique
from tenure.postgres import enqueue
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.asked import asked_by

pytestmark = pytest.mark.core

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)

#: A value of each field by which two jobs may differ; the payload is the one by which alike jobs may.
OTHER: dict[str, Any] = {
    "type": "other", "contract": "phase27", "version": "1", "queue": "other", "tenant_id": "other", "priority": 4,
    "max_attempts": 3, "run_at": NOON, "delay_ms": 3_600_000, "key": "key", "trace_id": "trace",
    "correlation_id": "matter", "notify": False, "unique": Unique("waiting"), "expires_at": NOON, "expires_ms": 60_000,
    "reads": (DatasetUse("prices"),), "writes": (DatasetUse("rates", 1),),
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that make jobs, as they are asked."""
    return asked_by(enqueue, monkeypatch)


def columns(db: Harness, made: list[Any]) -> list[dict[str, Any]]:
    """Every column of jobs but their ids; their times as whether each is the batch's own, which is the present."""
    rows = [db.row(one.job_id) for one in made]
    moment = rows[0]["created_at"]
    assert abs((db.value("select clock_timestamp()") - moment).total_seconds()) < 600
    for row in rows:
        del row["id"]
        for name in ("created_at", "updated_at", "due_at"):
            row[name] = row[name] == moment
    return rows


def test_every_field_but_the_payload_is_tried() -> None:
    assert {field.name for field in fields(NewJob)} == {*OTHER, "payload"}


@pytest.mark.parametrize("given", [{}, {"max_attempts": 3, "priority": 0, "queue": "mail", "tenant_id": "acme"}])
@pytest.mark.parametrize("contract", list(BUILT_IN))
async def test_a_batch_is_the_same_by_either_statement(
    store: Store, db: Harness, asked: list[str], monkeypatch: pytest.MonkeyPatch, contract: str, given: dict[str, Any]
) -> None:
    if contract == "standard":
        await store.types.declare([JobType("t", contract, max_attempts=9)])
    payloads: list[Any] = [{}, {"n": 1}, {"text": 'ä"\\{},\n'}, {"deep": [[], {"a": None}]}, {"n": 1}]
    jobs = [NewJob("t", payload, contract=contract, **given) for payload in payloads]
    quick = await store.enqueue_many(jobs, created_by="me")
    assert "enqueue_uniform" in asked
    asked.clear()
    monkeypatch.setattr(validation, "differ_only_in_payload", lambda _: False)
    plain = await store.enqueue_many(jobs, created_by="me")
    assert "enqueue" in asked
    assert "enqueue_uniform" not in asked
    assert columns(db, quick) == columns(db, plain)
    assert [row["payload"] for row in columns(db, quick)] == payloads


async def test_ids_come_in_the_order_asked(store: Store, db: Harness, asked: list[str]) -> None:
    made = await store.enqueue_many([NewJob("t", {"n": n}) for n in range(2_000)])
    ids = [one.job_id for one in made if isinstance(one, Enqueued)]
    assert asked == ["enqueue_uniform"]
    assert ids == sorted(ids)
    assert [row["n"] for row in db.sql("select (payload ->> 'n')::int as n from tenure.job order by id")] == [
        *range(2_000)
    ]


@pytest.mark.parametrize("field", list(OTHER))
@pytest.mark.parametrize("place", [0, 2, 4])
async def test_a_job_that_differs_in_anything_else_is_made_as_it_was_asked_for(
    store: Store, db: Harness, field: str, place: int
) -> None:
    jobs = [NewJob("t", {"n": n}) for n in range(5)]
    jobs[place] = replace(jobs[place], **{field: OTHER[field]})
    assert not validation.differ_only_in_payload(jobs)
    for dataset in ("prices", "rates"):
        await store.datasets.declare(NewDataset(dataset))
    made = await store.enqueue_many(jobs)
    rows = [db.row(one.job_id) for one in made if isinstance(one, Enqueued)]
    assert [row["payload"]["n"] for row in rows] == [0, 1, 2, 3, 4]
    if field in ("notify", "reads", "writes"):
        return  # no column tells of it
    if field == "unique":
        assert [row["job_id"] for row in db.sql("select job_id from tenure.unique_job")] == [rows[place]["id"]]
        return
    columns = {"run_at": "due_at", "delay_ms": "due_at", "key": "idempotency_key", "expires_ms": "expires_at"}
    column = columns.get(field, field)
    found = [row[column] for row in rows]
    usual = found[1 if place == 0 else 0]
    if field == "version":
        assert set(found) == {OTHER[field]}, "the version that is the newest anyway"
    elif field == "delay_ms":
        assert (found[place] - usual).total_seconds() == pytest.approx(3_600, abs=600)
    elif field == "expires_ms":
        assert (found[place] - rows[place]["created_at"]).total_seconds() == 60
        assert {value for n, value in enumerate(found) if n != place} == {None}
    else:
        assert found[place] == OTHER[field]
        assert {value for n, value in enumerate(found) if n != place} == {usual}
        assert usual != OTHER[field]


@pytest.mark.parametrize("given", [{"run_at": NOON}, {"delay_ms": 5}, {"trace_id": "t"}, {"correlation_id": "c"}])
async def test_what_all_have_in_common_is_kept_where_the_short_statement_has_no_place_for_it(
    store: Store, db: Harness, given: dict[str, Any]
) -> None:
    jobs = [NewJob("t", {"n": n}, **given) for n in range(3)]
    assert not validation.differ_only_in_payload(jobs)
    for dataset in ("prices", "rates"):
        await store.datasets.declare(NewDataset(dataset))
    made = await store.enqueue_many(jobs)
    for one in made:
        assert isinstance(one, Enqueued)
        row = db.row(one.job_id)
        assert (row["due_at"] != row["created_at"]) == ("run_at" in given or "delay_ms" in given)
        assert (row["trace_id"], row["correlation_id"]) == (given.get("trace_id"), given.get("correlation_id"))


class Own(NewJob):
    """A job of somebody's own kind, whose fields may be anything."""


def test_only_plain_jobs_are_alike() -> None:
    assert validation.differ_only_in_payload([NewJob("t", {"n": n}) for n in range(3)])
    read = [NewJob(**json.loads('{"type": "send it", "queue": "a b", "contract": "my own"}')) for _ in range(3)]
    assert validation.differ_only_in_payload(read), "also with names that were read from JSON, each on its own"
    assert not validation.differ_only_in_payload([NewJob("t"), NewJob("t", priority=True), NewJob("t", priority=1)])
    assert not validation.differ_only_in_payload([])
    assert not validation.differ_only_in_payload([NewJob("t"), Own("t")])
    assert not validation.differ_only_in_payload([Own("t"), NewJob("t")])
    assert not validation.differ_only_in_payload([NewJob("t"), {"type": "t"}])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"a": object()}, BadInput),
        ({"a": "\x00"}, BadInput),
        ({1: 2}, BadInput),
        ({"a": "x" * 2_000_000}, PayloadTooLarge),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
async def test_a_bad_payload_is_named_by_its_place_and_nothing_is_made(
    store: Store, db: Harness, bad: Any, error: type[BadInput], place: int
) -> None:
    jobs = [NewJob("t", bad if n == place else {"n": n}) for n in range(5)]
    assert validation.differ_only_in_payload(jobs)
    with pytest.raises(error, match=f"job {place + 1} of 5"):
        await store.enqueue_many(jobs)
    assert db.value("select count(*) from tenure.job") == 0


@pytest.mark.parametrize("given", [{"priority": 10}, {"queue": ""}, {"max_attempts": 0}, {"type": "x" * 300}])
async def test_what_all_have_in_common_is_checked(store: Store, db: Harness, given: dict[str, Any]) -> None:
    jobs = [NewJob(**{"type": "t", "payload": {"n": n}, **given}) for n in range(3)]
    with pytest.raises(BadInput, match="job 1 of 3"):
        await store.enqueue_many(jobs)
    assert db.value("select count(*) from tenure.job") == 0


async def test_what_was_prepared_is_made_only_when_it_is_asked_for(store: Store, db: Harness) -> None:
    mixed = [
        NewJob("t", {"n": n}, contract=list(BUILT_IN)[n % 3], key=f"k{n}" if n % 4 == 0 else None) for n in range(12)
    ]
    for jobs in ([NewJob("t", {"n": n}) for n in range(12)], mixed, []):
        before = db.value("select count(*) from tenure.job")
        prepared = await store.prepare(jobs)
        assert db.value("select count(*) from tenure.job") == before
        made = await store.insert_prepared(prepared)
        assert [isinstance(one, Enqueued) and one.made for one in made] == [True] * len(jobs)
        rows = [db.row(one.job_id) for one in made if isinstance(one, Enqueued)]
        assert [(row["payload"]["n"], row["contract"]) for row in rows] == [
            (n, job.contract) for n, job in enumerate(jobs)
        ]
