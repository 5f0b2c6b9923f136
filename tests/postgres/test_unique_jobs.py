"""Unique jobs: which job is in the way of which, what happens then, and what never counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, DuplicateJob
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.jobs.unique import OnConflict, Unique, UniqueOption, unique_rule
from tenure.postgres.store import Store
from tenure.proof.audit import audit
from tests.harness import Harness


def sync(
    customer: int = 7,
    unique: UniqueOption | None = "waiting",
    *,
    by: Sequence[str] | None = ("customer",),
    on_conflict: OnConflict | None = None,
    **more: Any,
) -> NewJob:
    """A job that is unique by its customer."""
    payload = more.pop("payload", {"customer": customer, "full": False})
    return NewJob("sync", payload, unique=unique_rule(unique, by, on_conflict), **more)


async def made(store: Store, job: NewJob) -> int:
    """The id of a job that this call must make."""
    answer = await store.enqueue(job)
    assert answer.made
    return answer.job_id


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_one_that_waits_is_in_the_way_and_one_that_runs_is_not(store: Store, db: Harness, contract: str) -> None:
    first = await made(store, sync(contract=contract))
    assert await store.enqueue(sync(contract=contract)) == Enqueued(first, made=False)
    assert (await store.enqueue(sync(8, contract=contract))).made
    claimed = await store.claim_by_id([first], worker="w", contract=contract)
    assert [getattr(job, "id", job) for job in claimed] == [first]
    second = await made(store, sync(contract=contract))
    assert await store.enqueue(sync(contract=contract)) == Enqueued(second, made=False)
    assert db.value("select count(*) from tenure.job") == 3


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_an_active_one_is_in_the_way_until_it_ends(store: Store, db: Harness, contract: str) -> None:
    first = await made(store, sync(unique="active", contract=contract))
    (job,) = await store.claim(contract, worker="w")
    assert await store.enqueue(sync(unique="active", contract=contract)) == Enqueued(first, made=False)
    await store.start(job.held)
    await store.fail(job.held, Failure("later", type="TransientError", retryable=True))
    # It waits for its retry, or for its reconciler: it is active still.
    assert await store.enqueue(sync(unique="active", contract=contract)) == Enqueued(first, made=False)
    db.sql("update tenure.job set due_at = clock_timestamp()")
    await store.promote(contract)
    (job,) = await store.claim(contract, worker="w")
    await store.start(job.held)
    await store.succeed(job.held)
    assert await made(store, sync(unique="active", contract=contract)) != first


async def test_a_job_that_waits_for_its_retry_is_in_the_way_also_when_a_newer_one_runs(
    store: Store, db: Harness
) -> None:
    first = await made(store, sync())
    (job,) = await store.claim(worker="w")
    second = await made(store, sync())
    await store.claim(worker="w")
    await store.fail(job.held, Failure("later"))
    assert await store.enqueue(sync()) == Enqueued(first, made=False)
    assert db.value("select job_id from tenure.unique_job") == second


async def test_a_retry_never_fails_because_another_one_waits(store: Store, db: Harness) -> None:
    await made(store, sync(unique="active"))
    (job,) = await store.claim(worker="w")
    db.sql(
        "insert into tenure.unique_job (contract, tenant_id, type, scope) values ('standard', 'default', 'sync', 'x')"
    )
    waiting = await made(store, sync())
    moved = await store.fail(job.held, Failure("later"))
    assert getattr(moved, "role", "") == "ready"
    assert db.value("select count(*) from tenure.job where role = 'ready'") == 2
    await store.cancel(waiting)
    again = await store.requeue(waiting, actor="ada")
    assert db.row(again)["state"] == "queued"


async def test_a_period_runs_from_the_creation_of_the_first_and_outlives_it(store: Store, db: Harness) -> None:
    hour = timedelta(hours=1)
    first = await made(store, sync(unique=hour))
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held)
    assert await store.enqueue(sync(unique=hour)) == Enqueued(first, made=False)
    db.sql("update tenure.unique_job set made_at = made_at - interval '59 minutes'")
    assert await store.enqueue(sync(unique=hour)) == Enqueued(first, made=False)
    db.sql("update tenure.unique_job set made_at = made_at - interval '1 minute'")
    second = await made(store, sync(unique=hour))
    assert await store.enqueue(sync(unique=hour)) == Enqueued(second, made=False)
    # The caller's own period counts, and a finished job is in the way of no other mode.
    assert await store.enqueue(sync(unique=timedelta(minutes=1))) == Enqueued(second, made=False)
    db.sql("update tenure.unique_job set made_at = made_at - interval '2 minutes'")
    third = await made(store, sync(unique=timedelta(minutes=1)))
    assert third != second


async def test_a_replacement_changes_payload_and_times_with_one_log_row(store: Store, db: Harness) -> None:
    first = await made(store, sync(on_conflict="replace", delay_ms=5_000, priority=2))
    due = datetime(2030, 1, 1, tzinfo=UTC)
    new = sync(
        on_conflict="replace", run_at=due, expires_at=due + timedelta(hours=1), priority=9,
        payload={"customer": 7, "full": True},
    )  # fmt: skip
    before = db.row(first)
    assert await store.enqueue(new, created_by="ann") == Enqueued(first, made=False)
    after = db.row(first)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"payload", "due_at", "expires_at", "seq", "updated_at", "hidden"}
    assert (after["payload"], after["due_at"]) == ({"customer": 7, "full": True}, due)
    (row,) = db.log(first)
    assert (row["trigger"], row["hop"], row["actor"], row["seq"]) == ("replaced", False, "ann", 1)
    assert row["facts"] == {"due_at": "2030-01-01T00:00:00.000000Z"}
    db.sql("update tenure.job set due_at = clock_timestamp()")
    (job,) = await store.claim(worker="w")
    assert job.payload == {"customer": 7, "full": True}
    await store.succeed(job.held)
    assert (await audit(store)).violations == []


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_replacement_keeps_the_log_whole_under_every_contract(store: Store, db: Harness, contract: str) -> None:
    first = await made(store, sync(contract=contract))
    assert await store.enqueue(sync(contract=contract, on_conflict="replace")) == Enqueued(first, made=False)
    await store.claim(contract, worker="w")
    assert [row["trigger"] for row in db.log(first)] == ["replaced", "claim"]
    assert (await audit(store)).violations == []


async def test_a_job_that_runs_is_not_replaced_but_returned(store: Store, db: Harness) -> None:
    first = await made(store, sync(unique="active"))
    await store.claim(worker="w")
    new = sync(unique="active", on_conflict="replace", payload={"customer": 7, "full": True})
    assert await store.enqueue(new) == Enqueued(first, made=False)
    assert db.row(first)["payload"] == {"customer": 7, "full": False}
    assert [row["trigger"] for row in db.log(first)] == ["claim"]


async def test_a_job_that_waits_for_its_retry_is_not_replaced_but_returned(store: Store, db: Harness) -> None:
    first = await made(store, sync())
    (job,) = await store.claim(worker="w")
    await store.fail(job.held, Failure("later"))
    before = db.row(first)
    assert (before["role"], before["claims"]) == ("ready", 1)
    new = sync(on_conflict="replace", payload={"customer": 7, "full": True})
    # Its effects and its checkpoint belong to the work that it began with.
    assert await store.enqueue(new) == Enqueued(first, made=False)
    assert db.row(first) == before


async def test_a_refusal_names_the_other_job_and_writes_nothing(store: Store, db: Harness) -> None:
    first = await made(store, sync())
    with pytest.raises(DuplicateJob) as refused:
        await store.enqueue(sync(on_conflict="refuse"))
    assert (refused.value.job_id, refused.value.reason_code) == (first, "DUPLICATE_JOB")
    assert "Next: " in str(refused.value)
    assert db.value("select count(*) from tenure.job") == 1
    assert db.log(first) == []


async def test_tenants_types_contracts_and_other_arguments_are_compared_apart(store: Store) -> None:
    jobs = [
        sync(), sync(8), sync(tenant_id="other"), sync(contract="simple"), sync(by=None), sync(by=("customer", "full")),
        NewJob("other", {"customer": 7}, unique=Unique("waiting", ("customer",))),
    ]  # fmt: skip
    assert all(getattr(answer, "made", False) for answer in await store.enqueue_many(jobs))
    # A queue, a priority, a time limit and other arguments do not count.
    again = sync(queue="slow", priority=1, payload={"customer": 7, "full": True, "$timeout": 3})
    assert not (await store.enqueue(again)).made
    assert not (await store.enqueue(sync(by=None, payload={"full": False, "customer": 7, "$timeout": 3}))).made


async def test_jobs_that_are_not_unique_do_not_count(store: Store) -> None:
    await store.enqueue(NewJob("sync", {"customer": 7, "full": False}))
    await made(store, sync())
    assert (await store.enqueue(NewJob("sync", {"customer": 7, "full": False}))).made


async def test_equal_ones_of_one_batch_make_one_job_with_the_last_replacement(store: Store, db: Harness) -> None:
    batch = [
        sync(1), sync(2), sync(1), sync(1, on_conflict="refuse"), NewJob("sync", {}),
        *(sync(1, on_conflict="replace", payload={"customer": 1, "n": n}) for n in range(50)), sync(1, "active"),
    ]  # fmt: skip
    answers = await store.enqueue_many(batch)
    first = answers[0]
    assert isinstance(first, Enqueued)
    assert first.made
    assert isinstance(answers[3], DuplicateJob)
    assert answers[3].job_id == first.job_id
    others = [answer for n, answer in enumerate(answers) if n not in (0, 1, 3, 4)]
    assert set(others) == {Enqueued(first.job_id, made=False)}
    assert [isinstance(answers[n], Enqueued) and answers[n].made for n in (1, 4)] == [True, True]  # type: ignore[union-attr]
    assert db.row(first.job_id)["payload"] == {"customer": 1, "n": 49}
    assert len(db.log(first.job_id)) == 1
    assert db.value("select count(*) from tenure.job") == 3


async def test_a_key_is_replayed_first_and_stands_for_the_job_in_the_way(store: Store, db: Harness) -> None:
    first = await made(store, sync(key="a"))
    assert await store.enqueue(sync(key="b")) == Enqueued(first, made=False)
    assert db.row(first)["idempotency_key"] == "a"
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held)
    # Both keys were used for this job, finished or not; a third one makes a new job.
    assert await store.enqueue(sync(key="a")) == await store.enqueue(sync(key="b")) == Enqueued(first, made=False)
    second = await made(store, sync(key="c"))
    with pytest.raises(DuplicateJob):
        await store.enqueue(sync(key="d", on_conflict="refuse"))
    assert db.value("select count(*) from tenure.key where key = 'd'") == 0
    both = await store.enqueue_many([sync(key="e"), sync(key="e")])
    assert both == [Enqueued(second, made=False)] * 2


async def test_upkeep_deletes_rows_whose_jobs_ended_and_keeps_the_others(store: Store, db: Harness) -> None:
    await made(store, sync(1, timedelta(hours=1)))
    await made(store, sync(2))
    await made(store, sync(3))
    for job in await store.claim(worker="w", limit=2):
        await store.succeed(job.held)
    assert await store.history.forget_unique() == 0  # no row is looked at before a minute has passed
    db.sql("update tenure.unique_job set check_at = clock_timestamp()")
    assert await store.history.forget_unique() == 1
    assert db.value("select count(*) from tenure.unique_job where check_at > clock_timestamp()") == 2
    db.sql("update tenure.unique_job set check_at = clock_timestamp(), until = until - interval '2 hours'")
    assert await store.history.forget_unique() == 1
    assert not (await store.enqueue(sync(3))).made


async def test_upkeep_deletes_in_pages(store: Store, db: Harness) -> None:
    await store.enqueue_many([sync(n) for n in range(2_500)])
    db.sql("delete from tenure.job")
    db.sql("update tenure.unique_job set check_at = clock_timestamp()")
    assert await store.history.forget_unique() == 2_500
    assert db.value("select count(*) from tenure.unique_job") == 0


@pytest.mark.parametrize(
    "job",
    [
        sync(by=("custmer",)),
        NewJob("sync", [1], unique=Unique("waiting", ("customer",))),
        NewJob("sync", unique=Unique("sometimes")),  # type: ignore[arg-type]
        NewJob("sync", unique=Unique("waiting", on_conflict="ignore")),  # type: ignore[arg-type]
        NewJob("sync", unique=Unique("period")),
        NewJob("sync", unique=Unique("period", period_ms=0)),
        NewJob("sync", unique=Unique("waiting", ())),
    ],
    ids=["an argument that is not there", "no object", "a mode", "a conflict", "no period", "an empty one", "no names"],
)
async def test_bad_input_writes_nothing(store: Store, db: Harness, job: NewJob) -> None:
    with pytest.raises(BadInput):
        await store.enqueue(job)
    assert db.value("select (select count(*) from tenure.job) + (select count(*) from tenure.unique_job)") == 0
