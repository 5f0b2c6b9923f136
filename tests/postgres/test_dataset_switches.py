"""Cutover and rollback change the current generations of a set of datasets together, or none of them."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, Busy, DatasetConflict, DatasetNotFound, TenureError
from tenure.jobs.dataset import Append, NewDataset, Switched
from tenure.jobs.flow import NewFlow
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, NewJob
from tenure.postgres import connect
from tenure.postgres.callers_transaction import CallersTransaction
from tenure.postgres.registry import Registry
from tenure.postgres.store import Store
from tenure.upkeep import once
from tests.flow_nodes import claim_all, node
from tests.harness import Harness

NAMES = ("prices", "rates", "stock")
PRICES = DatasetUse("prices")


async def prepare(store: Store, generations: int = 3) -> None:
    """Datasets with this many generations each, of which the first is current."""
    for name in NAMES:
        await store.datasets.declare(NewDataset(name))
        for _ in range(generations - 1):
            await store.datasets.new_generation(name)


async def current(store: Store) -> dict[str, int]:
    return {name: one.number for name, one in (await store.datasets.current(NAMES)).items()}


@pytest.mark.req("S1-81")
async def test_a_cutover_switches_a_set_and_a_rollback_restores_it(store: Store) -> None:
    await prepare(store)
    first = await store.datasets.cutover({"rates": 3, "prices": 2}, actor="ada", reason="new model")
    assert (first.kind, first.actor, first.reason, first.undoes) == ("cutover", "ada", "new model", None)
    assert first.datasets == (Switched("prices", 1, 2), Switched("rates", 1, 3))
    assert await current(store) == {"prices": 2, "rates": 3, "stock": 1}
    assert (await store.datasets.generation("prices", 2)).current_since == first.at
    second = await store.datasets.cutover({"prices": 3, "rates": 3}, actor="bob")
    assert second.datasets == (Switched("prices", 2, 3),)
    done = await store.datasets.rollback(["prices"], actor="eve", reason="wrong")
    assert (done.switch.kind, done.switch.undoes, done.switch.actor) == ("rollback", second.id, "eve")
    assert done.switch.datasets == (Switched("prices", 3, 2),)
    assert await current(store) == {"prices": 2, "rates": 3, "stock": 1}
    again = await store.datasets.rollback(["rates"], actor="eve")
    assert again.switch.datasets == (Switched("prices", 2, 1), Switched("rates", 3, 1))
    assert await current(store) == {"prices": 1, "rates": 1, "stock": 1}
    log = await store.datasets.switches()
    assert list(log) == [again.switch, done.switch, second, first]
    assert await store.datasets.switches(dataset="rates", limit=1) == [again.switch]
    assert await store.datasets.switches(dataset="rates", before=again.switch.id) == [first]
    assert await store.datasets.switches(tenant_id="acme") == []


async def test_what_cannot_become_current_leaves_the_whole_set(store: Store, db: Harness) -> None:
    await prepare(store)
    await store.datasets.cutover({"prices": 2}, actor="ada")
    await store.datasets.rollback(["prices"], actor="ada")
    db.sql("update tenure.dataset_generation set dropped_at = now() where number = 3")
    for wrong, error in (
        ({"rates": 2, "prices": 2}, DatasetConflict), ({"rates": 2, "prices": 3}, DatasetConflict),
        ({"rates": 2, "prices": 9}, DatasetNotFound), ({"rates": 2, "no": 1}, DatasetNotFound),
        ({"rates": 1, "prices": 1}, DatasetConflict), ({}, BadInput), ({"rates": 0}, BadInput),
    ):  # fmt: skip
        with pytest.raises(error):
            await store.datasets.cutover(wrong, actor="ada")
    assert await current(store) == {"prices": 1, "rates": 1, "stock": 1}
    assert len(await store.datasets.switches()) == 2


async def test_a_set_is_rolled_back_only_as_it_was_switched(store: Store, db: Harness) -> None:
    await prepare(store)
    with pytest.raises(DatasetConflict, match="no cutover to undo"):
        await store.datasets.rollback(["prices"], actor="ada")
    await store.datasets.cutover({"prices": 2, "rates": 2}, actor="ada")
    await store.datasets.cutover({"stock": 2}, actor="ada")
    with pytest.raises(DatasetConflict, match="different cutovers"):
        await store.datasets.rollback(["prices", "stock"], actor="ada")
    await store.datasets.cutover({"rates": 3}, actor="ada")
    with pytest.raises(DatasetConflict, match="different cutovers"):
        await store.datasets.rollback(["prices"], actor="ada")
    with pytest.raises(DatasetNotFound):
        await store.datasets.rollback(["prices", "no"], actor="ada")
    with pytest.raises(BadInput):
        await store.datasets.rollback([], actor="ada")
    assert await current(store) == {"prices": 2, "rates": 3, "stock": 2}
    db.sql("update tenure.dataset_generation set dropped_at = now() where number = 1")
    with pytest.raises(DatasetConflict, match="was dropped"):
        await store.datasets.rollback(["stock"], actor="ada")


@pytest.mark.req("S1-82")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_rollback_cancels_what_waits_to_write_and_leaves_what_runs(
    store: Store, db: Harness, contract: str
) -> None:
    await prepare(store)
    await store.datasets.cutover({"prices": 2, "rates": 2}, actor="ada")
    job = NewJob("t", contract=contract, writes=(PRICES,))
    await store.enqueue(job)
    (running,) = await claim_all(store, contract)
    waiting = (await store.enqueue(job)).job_id
    others = (
        NewJob("t", contract=contract), NewJob("t", contract=contract, reads=(PRICES,)),
        NewJob("t", contract=contract, writes=(DatasetUse("stock"),)),
    )  # fmt: skip
    bystanders = [(await store.enqueue(one)).job_id for one in others]
    done = await store.datasets.rollback(["rates"], actor="eve", reason="wrong")
    can_cancel = contract in ("standard", "dispatcher", "simple", "reliability")
    assert list(done.cancelled) == ([waiting] if can_cancel else [])
    assert list(done.left) == ([] if can_cancel else [waiting])
    roles = [db.row(one)["role"] for one in (waiting, *bystanders)]
    assert roles[0] == "done" if can_cancel else roles[0] in ("ready", "waiting")
    assert "done" not in roles[1:]
    if can_cancel:
        assert (db.log(waiting)[-1]["actor"], db.log(waiting)[-1]["reason"]) == (
            "eve",
            f"rollback {done.switch.id}: wrong",
        )
    await store.report_one("succeed", HolderCall(running.held, outputs=[Append("prices", [1], ["a"])]))
    assert await current(store) == {"prices": 1, "rates": 1, "stock": 1}
    old = await store.datasets.generation("prices", 1)
    assert [row async for row in store.datasets.rows(old.id)] == []
    with pytest.raises(DatasetConflict, match="rolled back"):
        await store.datasets.cutover({"prices": 2}, actor="eve")


@pytest.mark.req("S1-82")
async def test_a_rollback_that_died_is_finished_by_upkeep(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(store)
    await store.datasets.cutover({"prices": 2}, actor="ada")
    ids = [(await store.enqueue(NewJob("t", writes=(PRICES,)))).job_id for _ in range(3)]

    async def die(*_: object) -> None:
        raise ConnectionError("the process died")

    with monkeypatch.context() as patched:
        patched.setattr(store.datasets, "_cancel_writers", die)
        with pytest.raises(ConnectionError):
            await store.datasets.rollback(["prices"], actor="eve")
    assert await current(store) == {"prices": 1, "rates": 1, "stock": 1}
    assert {db.row(one)["role"] for one in ids} == {"ready"}
    reports = {report.part: report for report in await once(store)}
    assert reports["finish rollbacks"].did == 3
    assert {(db.row(one)["state"], db.log(one)[-1]["actor"]) for one in ids} == {("cancelled", "eve")}
    reports = {report.part: report for report in await once(store)}
    assert reports["finish rollbacks"].did == 0


async def test_nodes_of_a_flow_that_wait_to_write_end_with_a_rollback(store: Store) -> None:
    await prepare(store, 1)
    nodes = [node("a"), node("b"), node("c", "b")]
    for one in nodes:
        one.job.writes = (PRICES,)
    made = await store.flows.create(NewFlow("f", nodes))
    (a, b) = await store.claim("standard", worker="w", limit=2)
    await store.succeed(a.held)
    await store.datasets.cutover({"prices": 2}, actor="ada")
    await store.datasets.rollback(["prices"], actor="ada")
    await store.succeed(b.held)
    by_name = {one.name: one.state for one in await store.flows.nodes(made.id)}
    assert by_name == {"a": "succeeded", "b": "succeeded", "c": "failed"}


async def test_a_rollback_waits_for_open_transactions_that_make_jobs(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(store)
    await store.datasets.cutover({"prices": 2}, actor="ada")
    transaction = CallersTransaction(Registry(), 1_000_000, wake=False)
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100)
    async with Store.open(dsn) as impatient:
        with psycopg.connect(dsn) as connection:
            transaction.run(connection, transaction.enqueue([NewJob("t", writes=(PRICES,))]), "enqueue_in")
            with pytest.raises(Busy):
                await impatient.datasets.rollback(["prices"], actor="eve")
            # A cutover does not wait for it.
            await impatient.datasets.cutover({"rates": 2}, actor="eve")
            connection.commit()
    assert len((await store.datasets.rollback(["prices"], actor="eve")).cancelled) == 1


@pytest.mark.req("S1-81")
async def test_readers_never_see_a_mixed_set_during_200_cutovers(store: Store, db: Harness, dsn: str) -> None:
    await prepare(store, 2)
    going = True

    async def read() -> set[tuple[int, ...]]:
        seen: set[tuple[int, ...]] = set()
        async with Store.open(dsn) as own:
            while going:
                found = await own.datasets.current(NAMES)
                seen.add(tuple(found[name].number for name in NAMES))
                pinned = await own.enqueue(NewJob("t", reads=tuple(map(DatasetUse, NAMES))))
                seen.add(tuple(pin.generation for pin in await own.datasets.pins(pinned.job_id)))
        return seen

    async def read_view() -> set[tuple[int, ...]]:
        seen: set[tuple[int, ...]] = set()
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            while going:
                cursor = await connection.execute(
                    "select array(select generation from tenure.dataset_current_pointer order by dataset)"
                )
                seen.add(tuple((await cursor.fetchone() or ((),))[0]))
        return seen

    db.sql(
        "insert into tenure.dataset_scope (generation_id, job_id, at, scope, location) "
        "select id, 1, now(), 'all', 'x' from tenure.dataset_generation"
    )
    readers = [asyncio.create_task(one()) for one in (read, read, read_view)]
    for n in range(200):
        await store.datasets.cutover(dict.fromkeys(NAMES, 2 - n % 2), actor="ada")
    going = False
    for seen in await asyncio.gather(*readers):
        assert seen <= {(1, 1, 1), (2, 2, 2)}
        assert seen


async def test_cutovers_in_any_order_do_not_deadlock(store: Store) -> None:
    await prepare(store, 2)
    calls = [
        store.datasets.cutover(dict.fromkeys(NAMES if n % 3 else reversed(NAMES), 1 + n % 2), actor="ada")
        for n in range(40)
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(not isinstance(one, BaseException) or isinstance(one, DatasetConflict) for one in answers), answers
    assert len(set((await current(store)).values())) == 1
    assert not [one for one in answers if isinstance(one, TenureError) and not isinstance(one, DatasetConflict)]


async def test_a_completion_and_a_cutover_do_not_wait_for_each_other(store: Store, dsn: str) -> None:
    await prepare(store)
    await store.enqueue(NewJob("t", writes=(PRICES,)))
    (job,) = await claim_all(store)
    transaction = CallersTransaction(Registry(), 1_000_000, wake=False)
    with psycopg.connect(dsn) as connection:
        call = HolderCall(job.held, outputs=[Append("prices", [1], ["a"])])
        transaction.run(connection, transaction.succeed(call), "complete_in")
        await store.datasets.cutover({"prices": 2}, actor="ada")
        connection.commit()
    assert await current(store) == {"prices": 2, "rates": 1, "stock": 1}
    new = await store.datasets.generation("prices", 2)
    assert [row async for row in store.datasets.rows(new.id)] == []
