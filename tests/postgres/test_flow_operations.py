"""What operators do to flows: cancel, resume, requeue the dead letter of a node; claims by id of nodes that wait."""

from __future__ import annotations

import pytest

from tenure.errors import BadInput, FlowConflict, FlowNotFound, WaitingForParents
from tenure.jobs.flow import NewFlow
from tenure.postgres.engine import only_answer
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_nodes import claim_all, fail, node, run, states
from tests.harness import Harness


async def test_a_node_that_waits_is_not_claimed_by_its_id(store: Store) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a"), node("c", "b")]))
    (refused,) = await store.claim_by_id([made.jobs["c"]], worker="w", contract="standard")
    assert isinstance(refused, WaitingForParents)
    assert (refused.flow_id, refused.node) == (made.id, "c")
    waiting = await store.flows.find_waiting(made.jobs["c"])
    assert waiting is not None
    assert (waiting.flow, waiting.node.name, [one.name for one in waiting.parents]) == ("chain", "c", ["b"])
    assert await store.flows.find_waiting(made.jobs["a"]) is None
    assert await store.flows.find_waiting(10**9) is None


async def test_cancelling_a_flow_ends_what_waits_and_what_is_live(store: Store) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b"), node("c", "a", "b"), node("d", "c")]))
    a = only_answer(await store.claim_by_id([made.jobs["a"]], worker="w", contract="standard"))
    await store.start(a.held)
    done = await store.flows.cancel(made.id, actor="op")
    assert (done.waiting, done.jobs, done.left, done.flow.state) == (2, 2, {}, "cancelling")
    assert await states(store, made) == {"a": "started", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    await store.cancelled(a.held)
    flow = await store.flows.read(made.id)
    assert (flow.state, flow.open, flow.failed) == ("cancelled", 0, 4)
    assert (await store.flows.cancel(made.id)).jobs == 0
    with pytest.raises(FlowNotFound):
        await store.flows.cancel(10**6)


async def test_a_hard_cancel_ends_the_flow_at_once(store: Store) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a")]))
    await claim_all(store)
    assert (await store.flows.cancel(made.id, mode="hard")).flow.state == "cancelled"


@pytest.mark.parametrize("contract", ["phase27", "gate_b2"])
async def test_jobs_whose_contract_has_no_cancel_are_left_and_named(store: Store, contract: str) -> None:
    made = await store.flows.create(NewFlow("mixed", [node("a", contract=contract), node("b", "a")]))
    done = await store.flows.cancel(made.id)
    assert (done.waiting, done.jobs, list(done.left), done.flow.state) == (1, 0, ["a"], "cancelling")
    assert await run(store, contract) == ["a"]
    assert (await store.flows.read(made.id)).state == "cancelled"
    assert await states(store, made) == {"a": "succeeded", "b": "cancelled"}


async def test_clean_up_nodes_run_after_a_cancel(store: Store) -> None:
    made = await store.flows.create(NewFlow("clean", [node("a"), node("b", "a"), node("undo", cleanup=True)]))
    assert (await store.flows.cancel(made.id)).flow.state == "cancelling"
    assert await run(store) == ["undo"]
    assert await states(store, made) == {"a": "cancelled", "b": "cancelled", "undo": "succeeded"}
    assert (await store.flows.read(made.id)).state == "cancelled"


async def test_a_flow_that_has_ended_is_not_cancelled(store: Store) -> None:
    made = await store.flows.create(NewFlow("one", [node("a")]))
    await run(store)
    with pytest.raises(FlowConflict, match="succeeded already"):
        await store.flows.cancel(made.id)


@pytest.mark.parametrize("policy", ["stop", "skip"])
async def test_a_resume_runs_what_failed_and_lets_wait_what_was_skipped(store: Store, policy: str) -> None:
    nodes = [node("a"), node("b"), node("c", inputs={"x": "a"}), node("d", "c", "b"), node("undo", cleanup=True)]
    made = await store.flows.create(NewFlow("again", nodes, on_failure=policy))  # type: ignore[arg-type]
    a, b = await claim_all(store)
    await store.succeed(b.held)
    await fail(store, a)
    assert await run(store) == ["undo"]
    assert (await store.flows.read(made.id)).state == "failed"
    done = await store.flows.resume(made.id, actor="op")
    assert (list(done.jobs), done.waiting, done.left) == (["a"], 2, {})
    assert (done.flow.state, done.flow.open, done.flow.failed, done.flow.ended_at) == ("running", 4, 0, None)
    assert done.jobs["a"] != made.jobs["a"]
    (again,) = await claim_all(store)
    assert again.id == done.jobs["a"]
    await store.succeed(again.held, 7)
    (c,) = await claim_all(store)
    assert c.payload == {"x": 7}
    await store.succeed(c.held)
    assert await run(store) == ["d"]
    assert await states(store, made) == {**dict.fromkeys("abcd", "succeeded"), "undo": "skipped"}
    assert (await store.flows.read(made.id)).state == "succeeded"


async def test_members_that_failed_run_again_with_their_items(store: Store) -> None:
    nodes = [node("list"), node("work", payload={"unit": "m"}, inputs={"n": "list"}, each="n"),
             node("sum", inputs={"ns": "work"})]  # fmt: skip
    made = await store.flows.create(NewFlow("map", nodes))
    (first,) = await claim_all(store)
    await store.succeed(first.held, [1, 2, 3])
    one, two, three = await claim_all(store)
    await fail(store, two)
    await store.succeed(one.held, 10)
    await store.succeed(three.held, 30)
    assert (await store.flows.read(made.id)).state == "failed"
    done = await store.flows.resume(made.id)
    assert (list(done.jobs), done.waiting) == (["work[1]"], 1)
    (again,) = await claim_all(store)
    assert again.payload == {"unit": "m", "n": 2}
    await store.succeed(again.held, 20)
    (last,) = await claim_all(store)
    assert last.payload == {"ns": [10, 20, 30]}


async def test_only_the_named_nodes_run_again(store: Store) -> None:
    nodes = [node("a"), node("b"), node("after_a", "a"), node("after_b", "b"), node("both", "a", "b")]
    made = await store.flows.create(NewFlow("two", nodes, on_failure="skip"))
    for job in await claim_all(store):
        await fail(store, job)
    done = await store.flows.resume(made.id, nodes=["a", "after_b"])
    assert (list(done.jobs), done.waiting, done.left) == (["a"], 1, {"after_b": "it is skipped"})
    assert await run(store) == ["a", "after_a"]
    assert await states(store, made) == {
        "a": "succeeded", "b": "failed", "after_a": "succeeded", "after_b": "skipped", "both": "skipped",
    }  # fmt: skip
    assert (await store.flows.read(made.id)).state == "failed"
    with pytest.raises(BadInput, match="no node 'x'"):
        await store.flows.resume(made.id, nodes=["x"])
    with pytest.raises(FlowConflict, match="node 'a': it is succeeded"):
        await store.flows.resume(made.id, nodes=["a"])


async def test_a_cancelled_flow_is_resumed(store: Store) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a"), node("c", "b")]))
    await store.flows.cancel(made.id)
    done = await store.flows.resume(made.id)
    assert (list(done.jobs), done.waiting) == (["a"], 2)
    b = {one.name: one for one in await store.flows.nodes(made.id)}["b"]
    found = await store.flows.find_waiting(b.job_id or 0)
    assert found is not None
    assert found.node == b
    assert await run(store) == ["a", "b", "c"]
    assert (await store.flows.read(made.id)).state == "succeeded"


async def test_a_node_does_not_run_again_before_its_parents(store: Store, db: Harness) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a"), node("c", "b"), node("d")]))
    await store.flows.cancel(made.id)
    before = db.sql("select * from tenure.flow_node order by id")
    with pytest.raises(FlowConflict, match="node 'c': its parent 'b' is cancelled"):
        await store.flows.resume(made.id, nodes=["c"])
    assert db.sql("select * from tenure.flow_node order by id") == before
    done = await store.flows.resume(made.id, nodes=["c", "d"])
    assert (list(done.jobs), done.waiting, done.left) == (["d"], 0, {"c": "its parent 'b' is cancelled"})
    done = await store.flows.resume(made.id, nodes=["c", "a", "b"])
    assert (list(done.jobs), done.waiting, done.left) == (["a"], 2, {})
    assert await run(store) == ["d", "a", "b", "c"]
    assert (await store.flows.read(made.id)).state == "succeeded"
    assert (await audit(store)).violations == []


@pytest.mark.parametrize("live", [True, False])
async def test_no_policy_tolerates_a_cancel(store: Store, live: bool) -> None:
    nodes = [node("a"), node("b", "a"), node("undo", cleanup=True)]
    made = await store.flows.create(NewFlow("tolerant", nodes if not live else [nodes[0], nodes[2]], "continue"))
    await store.flows.cancel(made.id)
    assert await run(store) == ["undo"]
    assert (await store.flows.read(made.id)).state == "cancelled"
    assert (await audit(store)).violations == []


async def test_a_requeued_dead_letter_goes_on_with_its_flow(store: Store, db: Harness) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", inputs={"x": "a"})]))
    (a,) = await claim_all(store)
    await fail(store, a)
    assert await states(store, made) == {"a": "failed", "b": "skipped"}
    again = await store.requeue(a.id, actor="op")
    assert await states(store, made) == {"a": "started", "b": "waiting"}
    assert db.value("select flow_node from tenure.job where id = %s", again) == made.jobs["a"]
    (job,) = await claim_all(store)
    await store.succeed(job.held, 5)
    (b,) = await claim_all(store)
    assert b.payload == {"x": 5}
    await store.succeed(b.held)
    assert (await store.flows.read(made.id)).state == "succeeded"


async def test_a_dead_letter_from_before_a_resume_is_a_job_of_its_own(store: Store, db: Harness) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a")]))
    (first,) = await claim_all(store)
    await fail(store, first)
    await store.flows.resume(made.id)
    (second,) = await claim_all(store)
    await fail(store, second)
    before = db.sql("select * from tenure.flow_node order by id")
    again = await store.requeue(first.id, actor="op")
    assert db.value("select flow_node from tenure.job where id = %s", again) is None
    assert db.sql("select * from tenure.flow_node order by id") == before
    assert (await store.flows.read(made.id)).state == "failed"


async def test_a_requeue_after_a_resume_is_a_job_of_its_own(store: Store, db: Harness) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a")]))
    (a,) = await claim_all(store)
    await fail(store, a)
    await store.flows.resume(made.id)
    again = await store.requeue(a.id, actor="op")
    assert db.value("select flow_node from tenure.job where id = %s", again) is None
    assert len(await run(store)) == 3
    assert (await store.flows.read(made.id)).state == "succeeded"
