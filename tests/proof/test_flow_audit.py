"""`tenure verify` and flows: sound ones are found sound, and each way to break one is named, and nothing else is."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from tenure.jobs.flow import NewFlow
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_nodes import claim_all, fail, node, states
from tests.harness import Harness
from tests.upkeep.running import until


async def _ran(store: Store, flow: NewFlow, *fails: str, keep: tuple[str, ...] = ()) -> int:
    """Run a flow: these jobs fail, and these are left live. Returns its id."""
    made = await store.flows.create(flow)
    while jobs := await claim_all(store):
        for job in jobs:
            if job.type in fails:
                await fail(store, job)
            elif job.type not in keep:
                await store.succeed(job.held, [1, 2] if job.type == "list" else None)
    return made.id


@pytest.fixture
async def flows(store: Store) -> dict[str, int]:
    """Flows in every state, with nodes in every state."""
    mapped = [node("list"), node("work", inputs={"n": "list"}, each="n"), node("sum", inputs={"ns": "work"})]
    diamond = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"), node("undo", cleanup=True)]
    made = {
        "done": await _ran(store, NewFlow("done", diamond)),
        "failed": await _ran(store, NewFlow("failed", diamond), "b"),
        "skipped": await _ran(store, NewFlow("skipped", diamond, on_failure="skip"), "b"),
        "tolerated": await _ran(store, NewFlow("tolerated", diamond, on_failure="continue"), "b"),
        "mapped": await _ran(store, NewFlow("mapped", mapped)),
        "running": await _ran(store, NewFlow("running", diamond), keep=("b",)),
        "members": await _ran(store, NewFlow("members", mapped), keep=("work",)),
        "cancelled": await _ran(store, NewFlow("cancelled", diamond), keep=("b", "c")),
        "cancelling": await _ran(store, NewFlow("cancelling", [node("a"), node("b", "a")]), keep=("b",)),
        "resumed": await _ran(store, NewFlow("resumed", diamond, on_failure="continue"), "b"),
        "empty": await _ran(store, NewFlow("empty", [node("none"), node("map", inputs={"n": "none"}, each="n")])),
    }
    await store.flows.cancel(made["cancelled"], mode="hard")
    made["last"] = await _ran(store, NewFlow("last", [node("last")]))  # and the clean-up node
    await store.flows.cancel(made["cancelling"])
    await store.flows.resume(made["resumed"])
    return made


async def test_flows_in_every_state_are_sound(store: Store, db: Harness, flows: dict[str, int]) -> None:
    report = await audit(store)
    assert (report.violations, report.flows) == ([], len(flows))
    assert {row["state"] for row in db.sql("select state from tenure.flow")} == {
        "running", "cancelling", "succeeded", "failed", "cancelled",
    }  # fmt: skip
    assert {row["state"] for row in db.sql("select state from tenure.flow_node")} == {
        "waiting", "started", "succeeded", "failed", "cancelled", "skipped",
    }  # fmt: skip


_NODE = "from tenure.flow where flow.id = flow_node.flow_id and flow.name = '{flow}' and flow_node.name = '{node}'"
_JOB = (
    "(select job_id from tenure.flow_node join tenure.flow on flow.id = flow_id"
    " where flow.name = '{}' and flow_node.name = '{}')"
)


def _node(flow: str, name: str, change: str) -> str:
    return f"update tenure.flow_node set {change} {_NODE.format(flow=flow, node=name)}"


def _flow(name: str, change: str) -> str:
    return f"update tenure.flow set {change} where name = '{name}'"


#: A change by SQL, and the words of each violation.
BREAKS = [
    (_flow("done", "nodes = 4"), ["nodes is 4 in the row, and 5 by the nodes"]),
    (_flow("running", "open = 1"), ["open is 1 in the row, and 3 by the nodes"]),
    (_flow("running", "cleanups = 0"), ["cleanups is 0 in the row, and 1 by the nodes"]),
    (_flow("failed", "failed = 2"), ["failed is 2 in the row, and 1 by the nodes"]),
    (_flow("failed", "tolerated = 1"), ["tolerated is 1 in the row, and 0 by the nodes"]),
    (_flow("done", "state = 'running', ended_at = null"), ["it is running, and 0 of its nodes have not ended"]),
    (_flow("running", "state = 'failed', ended_at = now()"), ["it is failed, and 3 of its nodes have not ended"]),
    (_flow("failed", "state = 'succeeded'"), ["it is succeeded, and 1 nodes ended badly, 0 of them tolerated"]),
    (_flow("tolerated", "state = 'failed'"), ["it is failed, and 1 nodes ended badly, 1 of them tolerated"]),
    (_flow("done", "state = 'cancelled'"), ["it is cancelled, and 0 nodes ended badly"]),
    (_flow("failed", "state = 'running', ended_at = null, open = 1, cleanups = 1, nodes = 6")
     + "; insert into tenure.flow_node (id, flow_id, open, is_cleanup, name, state, contract, queue, type)"
       " select -id, id, 0, true, 'last', 'waiting', 'standard', 'default', 't' from tenure.flow where name = 'failed'",
     ["it is running, and only clean-up nodes that wait have not ended"]),
    (_node("running", "d", "open = 2"), ["node 'd' of flow {running}: the number of parents that it waits for"]),
    (_node("running", "d", "open = 0"), ["the number of parents that it waits for"]),
    (_node("running", "d", "parents = '{{}}', open = 0"), ["it waits, and all its parents have ended"]),
    (_node("running", "c", "state = 'failed'") + ";" + _flow("running", "failed = 1"),
     ["node 'd' of flow {running}: it waits, and a parent ended so that it will not start",
      "the job is succeeded, and its node ended badly"]),
    (_node("done", "d", "started_at = flow_node.started_at - interval '1 hour'"),
     ["node 'd' of flow {done}: it was started before its parents had ended"]),
    (_node("members", "work", "open = 3"), ["node 'work' of flow {members}: the number of members"]),
    (_node("members", "work[0]", "part_of = null") + ";" + _node("members", "work[1]", "part_of = null") + ";"
     + _node("members", "work", "open = 0"), ["node 'work' of flow {members}: its members have ended, and it has not"]),
    (f"update tenure.job set flow_node = null where id = {_JOB.format('running', 'b')}",
     ["node 'b' of flow {running}: it is started, and its job is not live and has left no end"]),
    ("insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state)"
     " select flow_id, job_id, flow_node.id, now(), 'succeeded', 'succeeded' from tenure.flow_node"
     " join tenure.flow on flow.id = flow_id where flow.name = 'running' and flow_node.name = 'b'",
     ["node 'b' of flow {running}: its job is live, and has left an end"]),
    (_node("done", "d", "finished_at = null"), ["its times are not those of a node that is succeeded"]),
    (_node("done", "d", "job_state = 'dead'"), ["the node that it runs is not succeeded as this job"]),
    (_node("done", "d", "state = 'failed'") + ";" + _flow("done", "state = 'failed', failed = 1"),
     ["the job is succeeded, and its node ended badly"]),
    (f"update tenure.job set flow_node = {_JOB.format('done', 'a')} where id = {_JOB.format('running', 'b')}",
     ["node 'b' of flow {running}: it is started, and its job is not live", "the node that it runs is not running"]),
    ("insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state)"
     " select flow_id, job_id, flow_node.id, now() - interval '11 minutes', 'succeeded', 'succeeded' from"
     " tenure.flow_node join tenure.flow on flow.id = flow_id where flow.name = 'done' and flow_node.name = 'b'",
     ["it ended more than 10 minutes ago, and flow {done} did not go on"]),
    ("insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state)"
     " select flow_id, job_id, 0, now(), 'succeeded', 'succeeded' from tenure.flow_node"
     " join tenure.flow on flow.id = flow_id where flow.name = 'done' and flow_node.name = 'b'",
     ["it ended as a node that flow {done} does not have"]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "says"), BREAKS, ids=range(len(BREAKS)))
async def test_what_was_broken_is_named_and_nothing_else(
    store: Store, db: Harness, flows: dict[str, int], sql: str, says: list[str]
) -> None:
    db.sql(sql)
    found = [violation.what for violation in (await audit(store)).violations]
    assert len(found) == len(says), found
    for words in says:
        assert any(words.format(**flows) in what for what in found), found


async def test_an_end_that_is_about_to_be_taken_is_sound(dsn: str, store: Store, db: Harness) -> None:
    made = await store.flows.create(NewFlow("chain", [node("a"), node("b", "a")]))
    (job,) = await claim_all(store)
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.flow where id = %s for update", [made.id])
        ending = asyncio.create_task(store.succeed(job.held))
        await until(lambda: db.value("select count(*) from tenure.flow_end") == 1)
        assert (await audit(store)).violations == []
        await ending  # it waits for no flow that another transaction works on
    await store.flows.advance()
    assert await states(store, made) == {"a": "succeeded", "b": "started"}
    assert (await audit(store)).violations == []


async def test_since_leaves_out_flows_that_ended_before(store: Store, db: Harness, flows: dict[str, int]) -> None:
    db.sql("update tenure.flow set ended_at = ended_at - interval '2 hours' where name = 'done'")
    assert (await audit(store, since=timedelta(hours=1))).flows == len(flows) - 1


async def test_pages_of_any_size_find_the_same(store: Store, db: Harness, flows: dict[str, int]) -> None:
    db.sql("update tenure.flow set nodes = nodes + 1")
    after, seen = 0, []
    while page := (await store.audit.flows(after, 100, 6))[0]:
        assert len(page) < len(flows)
        seen += [flow.id for flow in page]
        after = page[-1].id
    assert seen == sorted(flows.values())
