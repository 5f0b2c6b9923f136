"""Datasets are declared, and jobs read and write the generations that were pinned when they were made."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, DatasetConflict, DatasetNotFound
from tenure.jobs.dataset import NewDataset
from tenure.jobs.flow import NewFlow
from tenure.jobs.job import DatasetUse, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.callers_transaction import CallersTransaction
from tenure.postgres.registry import Registry
from tenure.postgres.store import Store
from tests.flow_nodes import claim_all, fail, node
from tests.harness import Harness

PRICES, RATES = DatasetUse("prices"), DatasetUse("rates")


async def pinned(store: Store, job_id: int) -> dict[tuple[str, str], int]:
    """(mode, dataset) → generation, of a job."""
    return {(pin.mode, pin.dataset): pin.generation for pin in await store.datasets.pins(job_id)}


async def declare(store: Store, *names: str, **more: Any) -> None:
    for name in names:
        await store.datasets.declare(NewDataset(name, **more))


def switch(db: Harness, dataset: str, number: int) -> None:
    """Make a generation current, behind the back of the store."""
    db.sql(
        "update tenure.dataset set current_id = g.id from tenure.dataset_generation as g "
        "where g.dataset_id = dataset.id and g.number = %s and dataset.name = %s", number, dataset,
    )  # fmt: skip


async def test_a_dataset_is_declared_once(store: Store) -> None:
    made = await store.datasets.declare(NewDataset("prices", shape={"price": "number"}, keep=2), created_by="ada")
    assert (made.dataset, made.number, made.is_current, made.shape) == ("prices", 1, True, {"price": "number"})
    assert made.current_since is not None
    assert await store.datasets.declare(NewDataset("prices", shape={"price": "number"}, keep=2)) == made
    found = await store.datasets.find("prices")
    assert (found.uuid, found.current, found.newest, found.keep, found.created_by) == (
        made.dataset_uuid, 1, 1, 2, "ada",
    )  # fmt: skip
    await store.datasets.declare(NewDataset("prices", shape={"price": "number"}))
    assert (await store.datasets.find("prices")).keep is None
    other = await store.datasets.declare(NewDataset("prices", tenant_id="acme"))
    assert other.dataset_uuid != made.dataset_uuid
    assert [(one.tenant_id, one.name) for one in await store.datasets.list()] == [
        ("acme", "prices"), ("default", "prices"),
    ]  # fmt: skip
    assert [one.tenant_id for one in await store.datasets.list(tenant_id="acme")] == ["acme"]


@pytest.mark.req("S1-80")
async def test_a_changed_shape_is_a_new_generation_and_the_old_one_stays_current(store: Store) -> None:
    first = await store.datasets.declare(NewDataset("prices", shape={"v": 1}))
    second = await store.datasets.declare(NewDataset("prices", shape={"v": 2}))
    assert (second.number, second.is_current) == (2, False)
    # The code of the release before still runs: it makes no third generation.
    assert await store.datasets.declare(NewDataset("prices", shape={"v": 1})) == first
    assert (await store.datasets.current(["prices"]))["prices"] == first
    assert [one.number for one in await store.datasets.generations("prices")] == [2, 1]
    assert [one.number for one in await store.datasets.generations("prices", before=2)] == [1]
    assert await store.datasets.generation("prices", 2) == second
    empty = await store.datasets.new_generation("prices", created_by="ada")
    assert (empty.number, empty.shape, empty.is_current) == (3, {"v": 2}, False)


async def test_unknown_datasets_are_refused(store: Store) -> None:
    await declare(store, "prices")
    for call in (
        store.datasets.find("no"), store.datasets.generations("no"), store.datasets.generation("no", 1),
        store.datasets.current(["prices", "no"]), store.datasets.new_generation("no"),
        store.datasets.generation("prices", 2),
    ):  # fmt: skip
        with pytest.raises(DatasetNotFound):
            await call
    for unknown in (store.datasets.page(99), store.datasets.by_id(99)):
        with pytest.raises(DatasetNotFound, match="with the id 99"):
            await unknown
    for bad in (store.datasets.list(after=0), store.datasets.page(1, after="[]")):
        with pytest.raises(BadInput):
            await bad


@pytest.mark.req("S1-78")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_job_reads_what_was_current_when_it_was_made(store: Store, db: Harness, contract: str) -> None:
    await declare(store, "prices", "rates")
    before = await store.enqueue(NewJob("t", contract=contract, reads=(PRICES, RATES), writes=(PRICES,)))
    await store.datasets.new_generation("prices")
    switch(db, "prices", 2)
    after = await store.enqueue(NewJob("t", contract=contract, reads=(PRICES, DatasetUse("rates", 1))))
    assert await pinned(store, before.job_id) == {("read", "prices"): 1, ("read", "rates"): 1, ("write", "prices"): 1}
    assert await pinned(store, after.job_id) == {("read", "prices"): 2, ("read", "rates"): 1}


async def test_a_job_writes_the_generation_of_its_shape(store: Store, db: Harness) -> None:
    await store.datasets.declare(NewDataset("prices", shape={"v": 1}))
    await store.datasets.declare(NewDataset("prices", shape={"v": 2}))
    old, new = DatasetUse("prices", shape_json='{"v": 1}'), DatasetUse("prices", shape_json='{"v":2}')
    ids = [(await store.enqueue(NewJob("t", writes=(use,)))).job_id for use in (old, new, PRICES)]
    assert [await pinned(store, job_id) for job_id in ids] == [{("write", "prices"): n} for n in (1, 2, 1)]
    await store.datasets.new_generation("prices")
    switch(db, "prices", 3)
    # The current generation comes before the newest one.
    made = await store.enqueue(NewJob("t", writes=(new,)))
    assert await pinned(store, made.job_id) == {("write", "prices"): 3}
    with pytest.raises(DatasetConflict, match="no generation of the shape"):
        await store.enqueue(NewJob("t", writes=(DatasetUse("prices", shape_json="3"),)))


async def test_jobs_without_their_dataset_are_not_made_and_the_others_are(store: Store, db: Harness) -> None:
    await declare(store, "prices")
    jobs = [
        NewJob("a"), NewJob("b", reads=(DatasetUse("no"),)), NewJob("c", reads=(PRICES,), key="k"),
        NewJob("d", reads=(DatasetUse("prices", 7),), contract="phase27"), NewJob("e", contract="phase27"),
        NewJob("f", reads=(DatasetUse("no"),), key="k2"), NewJob("c", reads=(PRICES,), key="k"),
    ]  # fmt: skip
    answers = await store.enqueue_many(jobs)
    assert [isinstance(one, Enqueued) for one in answers] == [True, False, True, False, True, False, True]
    assert "'no'" in str(answers[1])
    assert "generation 7" in str(answers[3])
    assert [row["type"] for row in db.sql("select type from tenure.job order by type")] == ["a", "c", "e"]
    assert db.value("select count(*) from tenure.dataset_pin") == 1
    assert db.value("select count(*) from tenure.key") == 1


async def test_a_repeated_key_is_answered_although_the_generation_left_since(store: Store, db: Harness) -> None:
    await declare(store, "prices")
    job = NewJob("t", reads=(DatasetUse("prices", 1),), key="k")
    made = await store.enqueue(job)
    db.sql("update tenure.dataset_generation set dropped_at = now()")
    assert await store.enqueue(job) == Enqueued(made.job_id, made=False)
    with pytest.raises(DatasetConflict, match="was dropped"):
        await store.enqueue(NewJob("t", reads=(DatasetUse("prices", 1),)))


async def test_nothing_new_writes_to_a_generation_that_was_rolled_back(store: Store, db: Harness) -> None:
    await declare(store, "prices")
    await store.datasets.new_generation("prices")
    db.sql("update tenure.dataset_generation set rolled_back_at = now() where number = 2")
    with pytest.raises(DatasetConflict, match="generation 2 of dataset 'prices' was rolled back"):
        await store.enqueue(NewJob("t", writes=(DatasetUse("prices", 2),)))
    await store.enqueue(NewJob("t", reads=(DatasetUse("prices", 2),)))


@pytest.mark.parametrize(
    "uses", [[PRICES], ("prices",), (PRICES, DatasetUse("prices", 1)), (DatasetUse(""),), (DatasetUse("prices", 0),)]
)
async def test_bad_uses_are_refused(store: Store, db: Harness, uses: Any) -> None:
    await declare(store, "prices")
    for job in (NewJob("t", reads=uses), NewJob("t", writes=uses)):
        with pytest.raises(BadInput):
            await store.enqueue(job)
    assert db.value("select count(*) from tenure.job") == 0


async def test_a_job_that_runs_again_has_the_same_pins(store: Store, db: Harness) -> None:
    await declare(store, "prices")
    ended = [(await store.enqueue(NewJob("t", reads=(PRICES,), writes=(PRICES,)))).job_id for _ in range(2)]
    dead, done = await claim_all(store)
    await fail(store, dead)
    await store.succeed(done.held)
    await store.datasets.new_generation("prices")
    switch(db, "prices", 2)
    for job_id in ended:
        again = await store.requeue(job_id, actor="ada")
        assert await pinned(store, again) == {("read", "prices"): 1, ("write", "prices"): 1}


async def test_jobs_in_the_callers_transaction_are_pinned(store: Store, dsn: str, db: Harness) -> None:
    await declare(store, "prices")
    transaction = CallersTransaction(Registry(), 1_000_000, wake=False)
    with psycopg.connect(dsn) as connection:
        jobs = [NewJob("t", reads=(PRICES,)), NewJob("t")]
        made = transaction.run(connection, transaction.enqueue(jobs), "enqueue_in")
        assert db.value("select count(*) from tenure.dataset_pin") == 0
        connection.commit()
        assert await pinned(store, made[0].job_id) == {("read", "prices"): 1}
        with pytest.raises(DatasetNotFound):
            transaction.run(connection, transaction.enqueue([NewJob("t", reads=(RATES,))]), "enqueue_in")
    assert db.value("select count(*) from tenure.job") == 2


@pytest.mark.req("S1-78")
async def test_a_flow_reads_what_it_writes_itself_and_else_what_was_current_at_its_creation(
    store: Store, db: Harness
) -> None:
    await declare(store, "prices", "rates")

    def job(name: str, **more: Any) -> NewJob:
        return NewJob(name, **more)

    nodes = [
        node("extract"), node("transform", inputs={"item": "extract"}, each="item"), node("load", "transform"),
        node("old", "load"),
    ]  # fmt: skip
    nodes[1].job.reads, nodes[1].job.writes = (RATES,), (PRICES,)
    nodes[2].job.reads = (PRICES, RATES)
    nodes[3].job.reads = (DatasetUse("prices", 1),)
    made = await store.flows.create(NewFlow("etl", nodes))
    own = await store.datasets.generation("prices", 2)
    assert (own.flow_id, own.is_current) == (made.id, False)
    assert await store.datasets.of_flow(made.id) == [own]
    await store.datasets.new_generation("rates")
    switch(db, "rates", 2)
    (extract,) = await claim_all(store)
    await store.succeed(extract.held, [1, 2])
    members = await claim_all(store)
    for member in members:
        assert await pinned(store, member.id) == {("read", "rates"): 1, ("write", "prices"): 2}
        await store.succeed(member.held)
    (load,) = await claim_all(store)
    assert await pinned(store, load.id) == {("read", "rates"): 1, ("read", "prices"): 2}
    await store.succeed(load.held)
    (old,) = await claim_all(store)
    assert await pinned(store, old.id) == {("read", "prices"): 1}
    assert await pinned(store, made.jobs["transform"]) == {("read", "rates"): 1, ("write", "prices"): 2}


async def test_a_node_that_runs_again_keeps_its_pins(store: Store) -> None:
    await declare(store, "prices")
    nodes = [node("a"), node("b", "a")]
    nodes[0].job.writes, nodes[1].job.reads = (PRICES,), (PRICES,)
    made = await store.flows.create(NewFlow("f", nodes))
    (a,) = await claim_all(store)
    await fail(store, a)
    resumed = await store.flows.resume(made.id)
    assert await pinned(store, resumed.jobs["a"]) == {("write", "prices"): 2}
    assert (await store.datasets.find("prices")).newest == 2


async def test_a_node_that_would_write_to_what_was_rolled_back_fails(store: Store, db: Harness) -> None:
    await declare(store, "prices")
    nodes = [node("a"), node("b", "a")]
    nodes[1].job.writes = (PRICES,)
    made = await store.flows.create(NewFlow("f", nodes))
    db.sql("update tenure.dataset_generation set rolled_back_at = now() where number = 2")
    (a,) = await claim_all(store)
    await store.succeed(a.held)
    by_name = {one.name: one for one in await store.flows.nodes(made.id)}
    assert by_name["b"].state == "failed"
    assert "rolled back" in str(by_name["b"].error)


async def test_a_flow_with_two_shapes_or_an_unknown_dataset_is_not_made(store: Store, db: Harness) -> None:
    await declare(store, "prices")
    for uses, error in (
        ((DatasetUse("prices", shape_json="1"), DatasetUse("prices", shape_json="2")), BadInput),
        ((DatasetUse("no"), PRICES), DatasetNotFound),
        ((DatasetUse("prices", 9), PRICES), DatasetNotFound),
    ):
        nodes = [node("a"), node("b", "a")]
        nodes[0].job.writes, nodes[1].job.writes = uses[:1], uses[1:]
        with pytest.raises(error):
            await store.flows.create(NewFlow("f", nodes))
    assert db.value("select count(*) from tenure.flow") == 0
    assert db.value("select count(*) from tenure.dataset_generation") == 1
    nodes = [node("a"), node("b", "a")]
    nodes[0].job.writes, nodes[1].job.writes = (PRICES,), (DatasetUse("prices", shape_json='"new"'),)
    await store.flows.create(NewFlow("f", nodes))
    assert (await store.datasets.generation("prices", 2)).shape == "new"


@pytest.mark.parametrize("name", ["a/b", " a", "a\nb", ".."])
async def test_a_name_that_no_address_can_have_is_refused(store: Store, name: str) -> None:
    with pytest.raises(BadInput, match="printable text without /"):
        await store.datasets.declare(NewDataset(name))


async def test_datasets_of_all_tenants_are_listed_page_by_page(store: Store) -> None:
    for tenant, name in (("b", "x"), ("a", "y"), ("b", "a"), ("a", "z"), ("c", "a")):
        await store.datasets.declare(NewDataset(name, tenant))
    seen, after = list[tuple[str, str]](), None
    while page := await store.datasets.list(limit=2, after=after):
        seen += [(one.tenant_id, one.name) for one in page]
        after = page[-1].id
    assert seen == [("a", "y"), ("a", "z"), ("b", "a"), ("b", "x"), ("c", "a")]
    first = (await store.datasets.list(tenant_id="b"))[0]
    assert [one.name for one in await store.datasets.list(tenant_id="b", after=first.id)] == ["x"]
