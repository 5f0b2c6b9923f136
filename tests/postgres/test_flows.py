"""Flows: a node starts when its parents have ended, whatever the shape of the flow."""

from __future__ import annotations

import asyncio

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import FlowConflict, TenureError
from tenure.jobs.flow import NewFlow, OnFailure
from tenure.jobs.holder_call import HolderCall
from tenure.postgres.store import Store
from tests.flow_nodes import claim_all, fail, node, run, states
from tests.harness import Harness


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_chain_runs_in_its_order(store: Store, contract: str) -> None:
    chain = [node("c", "b", contract=contract), node("b", "a", contract=contract), node("a", contract=contract)]
    made = await store.flows.create(NewFlow("chain", chain))
    assert await states(store, made) == {"a": "started", "b": "waiting", "c": "waiting"}
    assert await run(store, contract) == ["a", "b", "c"]
    assert await states(store, made) == dict.fromkeys("abc", "succeeded")
    flow = await store.flows.read(made.id)
    assert (flow.state, flow.nodes, flow.open, flow.failed) == ("succeeded", 3, 0, 0)
    assert flow.ended_at is not None


async def test_parents_that_end_in_one_call_start_their_child(store: Store) -> None:
    made = await store.flows.create(NewFlow("two", [node("a"), node("b"), node("c", "a", "b"), node("d", "b")]))
    await store.report("succeed", [HolderCall(job.held) for job in await claim_all(store)])
    assert await states(store, made) == {"a": "succeeded", "b": "succeeded", "c": "started", "d": "started"}
    assert await run(store) == ["c", "d"]


async def test_results_become_arguments(store: Store) -> None:
    nodes = [
        node("a"), node("b"),
        node("sum", payload={"unit": "m"}, inputs={"x": "a", "y": "b", "both": ["b", "a"], "none": []}),
    ]  # fmt: skip
    await store.flows.create(NewFlow("sum", nodes))
    for job in await claim_all(store):
        await store.succeed(job.held, {"a": 1, "b": [2, None]}[job.type])
    (job,) = await claim_all(store)
    assert job.payload == {"unit": "m", "x": 1, "y": [2, None], "both": [[2, None], 1], "none": []}


async def test_a_mapped_node_runs_once_for_each_item(store: Store) -> None:
    nodes = [node("extract"), node("transform", inputs={"item": "extract"}, each="item"),
             node("load", inputs={"rows": "transform"})]  # fmt: skip
    made = await store.flows.create(NewFlow("etl", nodes))
    (extract,) = await claim_all(store)
    await store.succeed(extract.held, [3, 4, 5])
    members = await claim_all(store)
    assert [job.payload for job in members] == [{"item": 3}, {"item": 4}, {"item": 5}]
    assert [one.name for one in await store.flows.nodes(made.id)] == [
        "extract", "transform", "transform[0]", "transform[1]", "transform[2]", "load",
    ]  # fmt: skip
    for job in reversed(members):
        await store.succeed(job.held, job.payload["item"] * 10)
    (load,) = await claim_all(store)
    assert load.payload == {"rows": [30, 40, 50]}
    await store.succeed(load.held)
    assert (await store.flows.read(made.id)).state == "succeeded"


async def test_a_mapped_node_of_an_empty_list_ends_at_once(store: Store) -> None:
    nodes = [node("extract"), node("transform", inputs={"item": "extract"}, each="item"),
             node("load", inputs={"rows": "transform"})]  # fmt: skip
    await store.flows.create(NewFlow("etl", nodes))
    (extract,) = await claim_all(store)
    await store.succeed(extract.held, [])
    (load,) = await claim_all(store)
    assert load.payload == {"rows": []}


async def test_a_value_that_is_no_list_fails_the_mapped_node(store: Store) -> None:
    nodes = [node("extract"), node("transform", inputs={"item": "extract"}, each="item"), node("load", "transform")]
    made = await store.flows.create(NewFlow("etl", nodes))
    (extract,) = await claim_all(store)
    await store.succeed(extract.held, {"no": "list"})
    by_name = {one.name: one for one in await store.flows.nodes(made.id)}
    assert {name: one.state for name, one in by_name.items()} == {
        "extract": "succeeded", "transform": "failed", "load": "skipped",
    }  # fmt: skip
    assert "no list but a dict" in str(by_name["transform"].error)
    assert (await store.flows.read(made.id)).state == "failed"


@pytest.mark.parametrize(
    ("policy", "ran", "ends"),
    [
        ("stop", ["a", "b"], "failed succeeded skipped skipped skipped"),
        ("skip", ["a", "b", "after_b"], "failed succeeded skipped succeeded skipped"),
        ("continue", ["a", "b", "after_a", "after_b", "last"], "failed succeeded succeeded succeeded succeeded"),
    ],
)
@pytest.mark.parametrize("of_node", [True, False])
async def test_the_policy_says_what_a_failure_does(
    store: Store, policy: OnFailure, ran: list[str], ends: str, of_node: bool
) -> None:
    nodes = [
        node("a", on_failure=policy if of_node else None), node("b"), node("after_a", inputs={"x": "a"}),
        node("after_b", "b"), node("last", "after_a", "after_b"),
    ]  # fmt: skip
    made = await store.flows.create(NewFlow("policy", nodes, on_failure="continue" if of_node else policy))
    done: list[str] = []
    while jobs := await claim_all(store):
        for job in jobs:
            done.append(job.type)
            if job.type == "a":
                await fail(store, job)
            else:
                assert job.type != "after_a" or job.payload == {"x": None}
                await store.succeed(job.held)
    assert done == ran
    assert [one.state for one in await store.flows.nodes(made.id)] == ends.split()
    flow = await store.flows.read(made.id)
    assert (flow.state, flow.open, flow.failed) == ("succeeded" if policy == "continue" else "failed", 0, 1)


@pytest.mark.parametrize(("fails", "cleaned"), [(True, "succeeded"), (False, "skipped")])
async def test_a_clean_up_node_runs_last_and_only_after_a_failure(store: Store, fails: bool, cleaned: str) -> None:
    nodes = [node("undo", cleanup=True), node("a"), node("b"), node("c", "a", "b")]
    made = await store.flows.create(NewFlow("clean", nodes))
    a, b = await claim_all(store)
    await (fail(store, a) if fails else store.succeed(a.held))
    assert await claim_all(store) == []
    await store.succeed(b.held)
    await run(store)
    assert await states(store, made) == {
        "a": "failed" if fails else "succeeded", "b": "succeeded", "c": "skipped" if fails else "succeeded",
        "undo": cleaned,
    }  # fmt: skip
    flow = await store.flows.read(made.id)
    assert (flow.state, flow.open) == ("failed" if fails else "succeeded", 0)


async def test_a_key_stands_for_one_flow(store: Store) -> None:
    flow = NewFlow("keyed", [node("a"), node("b", "a")], key="tonight")
    first = await store.flows.create(flow)
    assert await store.flows.create(NewFlow("keyed", [node("b", "a"), node("a")], key="tonight")) == (
        first.id, first.jobs, False,
    )  # fmt: skip
    with pytest.raises(FlowConflict, match=f"another flow, {first.id}"):
        await store.flows.create(NewFlow("keyed", [node("a")], key="tonight"))
    assert len(await store.flows.list()) == 1


async def test_two_callers_with_one_key_make_one_flow(store: Store) -> None:
    flow = NewFlow("keyed", [node("a"), node("b", "a")], key="tonight")
    made = await asyncio.gather(*(store.flows.create(flow) for _ in range(8)))
    assert len({one.id for one in made}) == 1
    assert sum(one.made for one in made) == 1


async def test_bad_input_writes_nothing(store: Store, db: Harness) -> None:
    for bad in (
        [node("a", payload={"x": object()})], [node("a", contract="none")], [node("a", "b")],
        [node("a", cleanup=True)], [node("a", "b"), node("b", "a")],
    ):  # fmt: skip
        with pytest.raises(TenureError):
            await store.flows.create(NewFlow("bad", bad))
    assert db.value("select count(*) from tenure.flow") == db.value("select count(*) from tenure.job") == 0


async def test_a_flow_of_ten_thousand_nodes_is_created(store: Store, db: Harness) -> None:
    layers = [
        [node(f"n{layer}_{n}", *([f"n{layer - 1}_{n}"] if layer else [])) for n in range(1_000)] for layer in range(10)
    ]
    made = await store.flows.create(NewFlow("large", [one for layer in layers for one in layer]))
    assert (await store.flows.read(made.id)).nodes == 10_000
    assert db.value("select count(*) from tenure.job") == 1_000


async def test_a_fan_out_and_fan_in_of_a_thousand(store: Store) -> None:
    nodes = [node("list"), node("work", inputs={"n": "list"}, each="n"), node("sum", inputs={"ns": "work"})]
    await store.flows.create(NewFlow("wide", nodes))
    (first,) = await claim_all(store)
    await store.succeed(first.held, list(range(1_000)))
    jobs = await claim_all(store)
    await store.report("succeed", [HolderCall(job.held, result=job.payload["n"]) for job in jobs])
    (last,) = await claim_all(store)
    assert last.payload == {"ns": list(range(1_000))}
