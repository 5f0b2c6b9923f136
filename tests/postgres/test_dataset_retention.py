"""Old data of datasets leaves as declared, and never what somebody reads."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure.errors import BadInput, DatasetConflict
from tenure.jobs.dataset import Append, NewDataset, Output, Replace
from tenure.jobs.flow import NewFlow
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, Job, NewJob
from tenure.postgres.callers_transaction import CallersTransaction
from tenure.postgres.registry import Registry
from tenure.postgres.store import Store
from tenure.upkeep import once
from tests.flow_nodes import claim_all, node
from tests.harness import Harness
from tests.postgres.retiring import full, long_ago, retired

PRICES = DatasetUse("prices")


async def held_job(store: Store) -> Job:
    await store.enqueue(NewJob("t", writes=(PRICES,)))
    (job,) = await claim_all(store)
    return job


async def complete(store: Store, job: Job, *outputs: Output) -> None:
    await store.report_one("succeed", HolderCall(job.held, outputs=outputs))


async def generations(store: Store, keep: int | None, count: int = 5) -> None:
    """Generations of which each was current once, and the newest one is."""
    await store.datasets.declare(NewDataset("prices", keep=keep))
    for number in range(2, count + 1):
        await store.datasets.new_generation("prices")
        await store.datasets.cutover({"prices": number}, actor="ada")


async def dropped(store: Store) -> list[int]:
    found = await store.datasets.generations("prices")
    return sorted(one.number for one in found if one.dropped_at is not None)


@pytest.mark.parametrize(("keep", "gone"), [(None, []), (0, [1, 2, 3, 4]), (1, [1, 2, 3]), (3, [1]), (4, []), (9, [])])
async def test_as_many_former_generations_stay_as_declared(store: Store, keep: int | None, gone: list[int]) -> None:
    await generations(store, keep)
    assert await store.datasets.retire_generations() == len(gone)
    assert await dropped(store) == gone
    assert await store.datasets.retire_generations() == 0


async def test_generations_that_were_never_current_or_were_rolled_back_do_not_count(store: Store) -> None:
    await generations(store, 1, 3)
    for _ in range(3):
        await store.datasets.new_generation("prices")  # 4, 5, 6
    await store.datasets.cutover({"prices": 5}, actor="ada")
    await store.datasets.rollback(["prices"], actor="ada")
    assert await store.datasets.retire_generations() == 1
    assert await dropped(store) == [1]
    await store.datasets.cutover({"prices": 6}, actor="ada")
    # 3 is the former one that stays, and what is newer than it.
    assert await store.datasets.retire_generations() == 1
    assert await dropped(store) == [1, 2]


async def test_what_a_live_job_or_a_flow_has_pinned_stays(store: Store, db: Harness) -> None:
    await store.datasets.declare(NewDataset("prices", keep=0))
    reader = (await store.enqueue(NewJob("t", reads=(PRICES,)))).job_id
    await store.datasets.new_generation("prices")
    await store.datasets.cutover({"prices": 2}, actor="ada")
    nodes = [node("a"), node("b", "a")]
    nodes[1].job.reads = (PRICES,)
    await store.flows.create(NewFlow("f", nodes))
    await store.datasets.new_generation("prices")
    await store.datasets.cutover({"prices": 3}, actor="ada")
    assert await store.datasets.retire_generations() == 0
    by_type = {job.type: job for job in await claim_all(store)}
    assert by_type["t"].id == reader
    await store.succeed(by_type["t"].held)
    assert await store.datasets.retire_generations() == 1
    assert await dropped(store) == [1]
    await store.succeed(by_type["a"].held)
    assert await store.datasets.retire_generations() == 0
    (b,) = await claim_all(store)
    await store.succeed(b.held)
    assert await store.datasets.retire_generations() == 1
    assert await dropped(store) == [1, 2]


async def test_what_an_open_transaction_pins_stays(store: Store, dsn: str) -> None:
    await generations(store, 0, 2)
    transaction = CallersTransaction(Registry(), 1_000_000, wake=False)
    with psycopg.connect(dsn) as connection:
        job = NewJob("t", reads=(DatasetUse("prices", 1),))
        transaction.run(connection, transaction.enqueue([job]), "enqueue_in")
        assert await store.datasets.retire_generations() == 0
        connection.commit()
    assert await store.datasets.retire_generations() == 0
    (held,) = await claim_all(store)
    await store.succeed(held.held)
    assert await store.datasets.retire_generations() == 1
    with pytest.raises(DatasetConflict, match="was dropped"):
        await store.enqueue(job)


async def test_replaced_rows_leave_after_a_time(store: Store, db: Harness) -> None:
    await store.datasets.declare(NewDataset("prices"))
    await complete(store, await held_job(store), Replace("prices", "may", [1, 2]), Append("prices", [9], ["z"]))
    await complete(store, await held_job(store), Replace("prices", "may", [3]))
    assert await store.datasets.forget_rows() == 0
    assert await store.datasets.forget_rows(0) == 2
    assert await store.datasets.forget_rows(0) == 0
    generation = await store.datasets.generation("prices", 1)
    assert [row.value async for row in store.datasets.rows(generation.id)] == [9, 3]
    assert db.value("select count(*) from tenure.dataset_batch") == 1


async def test_staged_rows_of_attempts_that_ended_leave(store: Store, db: Harness) -> None:
    await store.datasets.declare(NewDataset("prices"))
    lost, done, live = [await held_job(store) for _ in range(3)]
    for job in (lost, done, live):
        await store.datasets.stage(job.held, "prices", [1, 2, 3])
    await store.succeed(done.held)
    db.expire(lost.id)
    await store.reap("standard")
    assert await store.datasets.forget_rows(0) == 6
    assert db.value("select job_id from tenure.dataset_batch") == live.id


async def test_rows_of_dropped_generations_leave_after_a_time(store: Store, db: Harness) -> None:
    await store.datasets.declare(NewDataset("prices", keep=0))
    await complete(store, await held_job(store), Replace("prices", "may", [1, 2]), Append("prices", [9], ["z"]))
    old = await store.datasets.generation("prices", 1)
    await store.datasets.new_generation("prices")
    await store.datasets.cutover({"prices": 2}, actor="ada")
    assert await store.datasets.forget_rows(0) == 0
    await store.datasets.retire_generations()
    assert await store.datasets.forget_rows() == 0
    with pytest.raises(DatasetConflict, match="was dropped"):
        await store.datasets.page(old.id)
    assert await store.datasets.forget_rows(0) == 3
    assert db.value("select count(*) from tenure.dataset_row") == 0
    assert db.value("select count(*) from tenure.dataset_scope") == 0
    assert db.value("select count(*) from tenure.dataset_batch") == 0
    assert db.value("select emptied_at is not null from tenure.dataset_generation where number = 1")


async def test_upkeep_does_all_of_it(store: Store, db: Harness) -> None:
    await generations(store, 0, 2)
    reports = {report.part: report for report in await once(store)}
    assert reports["retire generations"].did == 1
    assert {"forget rows", "forget dataset events"} <= reports.keys()
    assert [report for report in reports.values() if report.trouble] == []


@pytest.mark.parametrize("after_s", [-1, "1", True, float("nan")])
async def test_bad_times_are_refused(store: Store, after_s: Any) -> None:
    for call in (store.datasets.forget_rows, store.datasets.forget_events):
        with pytest.raises(BadInput):
            await call(after_s)


async def test_pins_and_outputs_leave_with_the_range_of_their_job(store: Store, db: Harness) -> None:
    await store.datasets.declare(NewDataset("prices"))
    await complete(store, await held_job(store), Append("prices", [9], ["z"]))
    full(db)
    long_ago(db, 0)
    assert await retired(store) == 1
    assert db.value("select count(*) from tenure.dataset_pin") == 0
    assert db.value("select count(*) from tenure.dataset_output") == 0
    assert db.value("select count(*) from tenure.dataset_row") == 1
