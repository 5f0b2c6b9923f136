"""What is kept of flows: the id ranges of those that live, and those that ended for as long as finished jobs."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure.errors import FlowNotFound
from tenure.jobs.flow import FlowMade, NewFlow
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_nodes import claim_all, fail, node, run, states
from tests.harness import Harness
from tests.postgres.retiring import WIDTH, begun, full, long_ago, lows, retired, taken


def ended_long_ago(db: Harness, made: FlowMade) -> None:
    db.sql("update tenure.flow set ended_at = now() - interval '100 days' where id = %s", made.id)


async def test_a_range_stays_while_a_flow_lives_whose_node_has_its_id_there(store: Store, db: Harness) -> None:
    nodes = [node("list"), node("work", inputs={"n": "list"}, each="n"), node("sum", inputs={"ns": "work"})]
    made = await store.flows.create(NewFlow("map", nodes))
    (first,) = await claim_all(store)
    full(db)  # the members have their ids in the next range
    await store.succeed(first.held, [1, 2])
    long_ago(db, 0)
    assert db.value("select min(id) from tenure.job") > WIDTH
    assert await store.history.retire_ranges() == 0
    assert (begun(db), taken(db), 0 in lows(db)) == ([], [], True)
    assert await run(store) == ["work", "work", "sum"]
    assert (await store.flows.read(made.id)).state == "succeeded"
    db.log_is_sound(made.jobs["sum"])
    long_ago(db, 0)
    assert await retired(store) == 1


async def test_a_flow_that_is_created_while_its_range_is_about_to_leave_keeps_it(
    store: Store, db: Harness, dsn: str
) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a")]))
    (a,) = await claim_all(store)
    await store.succeed(a.held)
    (b,) = await claim_all(store)
    await store.succeed(b.held)
    full(db)
    long_ago(db, 0)
    with psycopg.connect(dsn) as other:
        other.execute("insert into tenure.flow (first_id, last_id, nodes, open, cleanups, name, tenant_id, on_failure) "
                      "values (7, 9, 1, 1, 0, 'late', 'default', 'stop')")  # fmt: skip
        other.execute(
            "insert into tenure.flow_node (id, flow_id, job_id, open, name, state, contract, queue, type) "
            "select 7, id, 7, 1, 'x', 'waiting', 'standard', 'default', 't' from tenure.flow where name = 'late'"
        )
        retiring = asyncio.create_task(store.history.retire_ranges())
        while not taken(db):  # noqa: ASYNC110 (it waits for the transaction that is open)
            await asyncio.sleep(0.01)
        other.commit()
        assert await retiring == 0
    assert 0 in lows(db)
    assert taken(db) == []
    assert (await store.flows.read(made.id)).state == "succeeded"


async def test_a_flow_is_forgotten_when_it_ended_long_ago(store: Store, db: Harness) -> None:
    chain = NewFlow("chain", [node("a"), node("b", "a")], key="nightly")
    old = await store.flows.create(chain)
    failed, live = [await store.flows.create(NewFlow(name, [node("a"), node("b", "a")])) for name in ("bad", "live")]
    for job in await claim_all(store):
        if job.id == old.jobs["a"]:
            await store.succeed(job.held)
        elif job.id == failed.jobs["a"]:
            await fail(store, job)
            letter = job.id
    (b,) = await claim_all(store)
    await store.succeed(b.held)
    assert await store.history.forget_flows() == 0
    ended_long_ago(db, old)
    ended_long_ago(db, failed)
    assert await store.history.forget_flows() == 2
    with pytest.raises(FlowNotFound):
        await store.flows.read(old.id)
    assert db.value("select count(*) from tenure.flow_node where flow_id <> %s", live.id) == 0
    assert await states(store, live) == {"a": "started", "b": "waiting"}
    assert (await store.flows.create(chain)).id != old.id
    again = await store.requeue(letter, actor="ada")
    assert db.value("select flow_node from tenure.job where id = %s", again) is None
    assert (await audit(store)).violations == []


async def test_large_flows_are_forgotten_page_by_page(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.retention._PAGE", 5)
    made = [await store.flows.create(NewFlow("pair", [node("a"), node("b", "a"), node("c", "b")])) for _ in range(5)]
    await run(store)
    for one in made:
        ended_long_ago(db, one)
    pages = []
    ask = store._engine.ask

    async def counted(name: str, **values: object) -> list[tuple[object, ...]]:
        rows = await ask(name, **values)
        pages.append(len(rows))
        return rows

    monkeypatch.setattr(store._engine, "ask", counted)
    assert await store.history.forget_flows() == 5
    assert pages == [2, 2, 1, 0]


async def test_a_flow_that_runs_again_is_not_forgotten(store: Store, db: Harness, dsn: str) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a")]))
    (a,) = await claim_all(store)
    await fail(store, a)
    ended_long_ago(db, made)
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.flow where id = %s for update", [made.id])
        assert await store.history.forget_flows() == 0
    await store.flows.resume(made.id)
    assert await store.history.forget_flows() == 0
    assert await run(store) == ["a", "b"]
    assert (await store.flows.read(made.id)).state == "succeeded"
