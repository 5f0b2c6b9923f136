"""Building a flow: what its nodes become, and which calls are refused before anything is stored."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import tenure
from tenure.errors import BadInput, FlowFailed
from tenure.flow import FlowGraph
from tenure.jobs.flow import NewNode, check_flow

app = tenure.App("postgresql://localhost/nothing-connects-here", embedded=False)


@app.task
async def extract(day: str) -> list[int]:
    return [len(day)]


@app.task(max_attempts=2)
async def transform(row: int, factor: int = 1) -> str:
    return str(row * factor)


@app.task(queue="db", contract="reliability")
async def load(rows: list[str], *, table: str = "t") -> int:
    return len(rows)


@app.task
async def merge(*parts: list[int], **more: list[int]) -> int:
    return len(parts)


@app.task
async def tidy(ctx: tenure.Context) -> None: ...


#: The tasks, for calls that a type checker would refuse.
any_: Any = SimpleNamespace(extract=extract, transform=transform, load=load, merge=merge, tidy=tidy)


def new(name: str = "nightly", **options: Any) -> FlowGraph:
    return app.flow(name, **options)


def nodes(flow: FlowGraph) -> dict[str, NewNode]:
    """The nodes of a flow whose shape is right."""
    return {node.name: node for node in check_flow(flow.new())}


def test_results_are_inputs_and_the_arguments_beside_them_are_the_payload() -> None:
    flow = new(on_failure="skip", key="2030-01-02", tenant="acme")
    rows = flow.node(extract.call("2030-01-02"))
    parts = flow.map(transform.options(priority=1).call(rows.each, factor=2), on_failure="continue")
    done = flow.node(load.call(parts.result, table="sums"), name="store")
    flow.node(tidy.call(), after=[done, rows, done])
    flow.cleanup(tidy.call(), name="sweep")
    made = flow.new()
    assert (made.name, made.on_failure, made.key, made.tenant_id) == ("nightly", "skip", "2030-01-02", "acme")
    found = nodes(flow)
    assert list(found) == ["extract", "transform", "store", "tidy", "sweep"]
    assert (found["extract"].job.payload, found["extract"].parents()) == ({"day": "2030-01-02"}, ())
    mapped = found["transform"]
    assert (mapped.inputs, mapped.each, mapped.on_failure) == ({"row": "extract"}, "row", "continue")
    assert (mapped.job.payload, mapped.job.priority, mapped.job.max_attempts) == ({"factor": 2}, 1, 2)
    store = found["store"]
    assert (store.inputs, store.each, store.job.payload) == ({"rows": "transform"}, None, {"table": "sums"})
    assert (store.job.type, store.job.queue, store.job.contract) == ("load", "db", "reliability")
    assert found["tidy"].after == ("store", "extract")
    assert found["sweep"].cleanup
    assert not found["sweep"].parents()


def test_a_list_of_results_is_one_input_of_several_nodes() -> None:
    flow = new()
    left, right = flow.node(extract.call("a"), name="left"), flow.node(extract.call("b"), name="right")
    flow.node(load.options(contract="standard").call([left.result, right.result]))  # type: ignore[list-item]
    flow.node(merge.call(right.result, left.result))
    flow.node(merge.call(left, right), name="without types")  # type: ignore[arg-type]
    found = nodes(flow)
    assert found["load"].inputs == {"rows": ["left", "right"]}
    assert found["merge"].inputs == {"parts": ["right", "left"]}
    assert found["without types"].inputs == {"parts": ["left", "right"]}


def test_a_chain_gives_each_task_the_result_of_the_one_before_and_lets_a_call_only_wait() -> None:
    flow = new()
    last = flow.chain(any_.extract.call("a"), transform.call(1), any_.transform, extract, extract.call("b"))
    found = nodes(flow)
    assert list(found) == ["extract", "transform", "transform-2", "extract-2", "extract-3"]
    assert last.name == "extract-3"
    assert (found["transform"].after, found["transform"].inputs) == (("extract",), {})
    assert (found["transform-2"].after, found["transform-2"].inputs) == ((), {"row": "transform"})
    assert (found["extract-2"].after, found["extract-2"].inputs) == ((), {"day": "transform-2"})
    assert (found["extract-3"].after, found["extract-3"].inputs) == (("extract-2",), {})


def test_a_group_is_beside_each_other_and_a_chord_takes_the_list_of_its_results() -> None:
    flow = new()
    first = flow.node(extract.call("a"))
    both = flow.group(transform.call(1), transform.call(2))
    flow.node(tidy.call(), after=[first, both])
    total = flow.chord([transform.call(n) for n in range(2)], load)
    found = nodes(flow)
    assert [node.name for node in both.nodes] == ["transform", "transform-2"]
    assert found["tidy"].after == ("extract", "transform", "transform-2")
    assert total.name == "load"
    assert found["load"].inputs == {"rows": ["transform-3", "transform-4"]}


def test_nodes_of_a_named_app_are_named_without_its_prefix() -> None:
    billing = tenure.App(name="billing", embedded=False)

    @billing.task
    async def send(to: str) -> None: ...

    flow = billing.flow("letters")
    flow.node(send.call("a"))
    flow.group(send.call("b"))
    assert [(node.name, node.job.type) for node in flow.new().nodes] == [
        ("send", "billing.send"),
        ("send-2", "billing.send"),
    ]


def grouped(flow: FlowGraph) -> Any:
    return flow.group(any_.extract.call("a"), any_.extract.call("b"))


ROWS = "argument 'row' of node 'transform' of flow 'nightly'"
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the same name twice": (
        lambda flow: [flow.node(any_.extract.call("a")) for _ in range(2)],
        "flow 'nightly' has a node 'extract' already. Next: give this one another name=",
    ),
    "a name of a job of a mapped node": (
        lambda flow: [
            flow.map(any_.transform.call(flow.node(any_.extract.call("a")).each), name="work"),
            flow.node(any_.tidy.call(), name="work[12]"),
        ],
        "flow 'nightly': 'work[12]' names a job of the mapped node 'work'. Next: give one of them another name",
    ),
    "a mapped node of which another node could be a job": (
        lambda flow: [
            flow.node(any_.tidy.call(), name="work[0]"),
            flow.map(any_.transform.call(flow.node(any_.extract.call("a")).each), name="work"),
        ],
        "flow 'nightly': 'work[0]' names a job of the mapped node 'work'",
    ),
    "a task in place of a call": (
        lambda flow: flow.node(any_.extract),
        "a node takes task.call(…), not Task",
    ),
    "a task in place of a call, what to do": (lambda flow: flow.node(any_.extract), "Next: extract.call(…)"),
    "a function as a step": (
        lambda flow: flow.chain(any_.extract.call("a"), len),
        "a step behind the first is a task or task.call(…), not <built-in function len>",
    ),
    "arguments that are missing": (lambda flow: flow.node(any_.load.call()), "missing 1 required positional argument"),
    "a step without the argument for the result": (
        lambda flow: flow.chain(any_.extract.call("a"), any_.tidy),
        "takes 0 positional arguments but 1 was given",
    ),
    "a node of another flow": (
        lambda flow: flow.node(any_.transform.call(new("daily").node(any_.extract.call("a")))),
        f"{ROWS}: node 'extract' belongs to another flow, 'daily'",
    ),
    "a parent of another flow": (
        lambda flow: flow.node(any_.transform.call(1), after=[new("daily").node(any_.extract.call("a"))]),
        "after of node 'transform' of flow 'nightly': node 'extract' belongs to another flow, 'daily'",
    ),
    "one node in place of a list": (
        lambda flow: flow.node(any_.transform.call(1), after=flow.node(any_.extract.call("a"))),
        "after of node 'transform' of flow 'nightly' is a list of nodes, as after=[rows]",
    ),
    "one group in place of a list": (
        lambda flow: flow.node(any_.transform.call(1), after=grouped(flow)),
        "after of node 'transform' of flow 'nightly' is a list of nodes, as after=[rows]",
    ),
    "a name in place of a node": (
        lambda flow: flow.node(any_.transform.call(1), after=["extract"]),
        "after of node 'transform' of flow 'nightly' takes what flow.node returned, not 'extract'",
    ),
    "each in one node": (
        lambda flow: flow.node(any_.transform.call(flow.node(any_.extract.call("a")).each)),
        f"{ROWS} is <each item of the result of node 'extract'>. Next: flow.map, or pass its .result",
    ),
    "a map without each": (
        lambda flow: flow.map(any_.transform.call(flow.node(any_.extract.call("a")))),
        "flow.map takes a call with one argument that is node.each; that of transform has none",
    ),
    "a map over two lists": (
        lambda flow: flow.map(
            any_.transform.call(
                flow.node(any_.extract.call("a")).each, flow.node(any_.extract.call("b"), name="b").each
            )
        ),
        "flow.map takes a call with one argument that is node.each; that of transform has 2",
    ),
    "a result deep inside of an argument": (
        lambda flow: flow.node(any_.load.call([["a"], {"b": flow.node(any_.extract.call("a"))}])),
        "argument 'rows[1].b' of task 'load' cannot be stored: <the result of node 'extract'> is not known yet",
    ),
    "a list of results and values": (
        lambda flow: flow.node(any_.load.call([flow.node(any_.extract.call("a")), "b"])),
        "argument 'rows[0]' of task 'load' cannot be stored: <the result of node 'extract'> is not known yet. "
        "Next: give it to flow.node(task.call(…)) as a whole argument, or in a list of nothing but results",
    ),
    "a result among the free keywords": (
        lambda flow: flow.node(any_.merge.call(x=flow.node(any_.extract.call("a")))),
        "argument 'more.x' of task 'merge' cannot be stored",
    ),
    "each in a list": (
        lambda flow: flow.map(any_.load.call([flow.node(any_.extract.call("a")).each])),
        "argument 'rows[0]' of task 'load' cannot be stored: <each item of the result of node 'extract'>",
    ),
    "another tenant": (
        lambda flow: flow.node(any_.extract.options(tenant="acme").call("a")),
        "node 'extract' of flow 'nightly' has the tenant 'acme', and the flow has 'default'. "
        "Next: app.flow('nightly', tenant='acme')",
    ),
    "an unknown option": (
        lambda flow: flow.node(any_.extract.call("a"), on_failur="stop"),
        "flow.node has no option 'on_failur'. Next: did you mean on_failure?",
    ),
}


@pytest.mark.parametrize(("build", "said"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_node_is_refused_when_it_is_added(build: Callable[[FlowGraph], Any], said: str) -> None:
    flow = new()
    with pytest.raises(BadInput) as refused:
        build(flow)
    assert said in str(refused.value)


def test_what_is_refused_is_not_added() -> None:
    flow = new()
    rows = flow.node(extract.call("a"))
    with pytest.raises(BadInput):
        flow.node(transform.call(rows.each))
    assert list(nodes(flow)) == ["extract"]


@pytest.mark.parametrize(
    "use",
    [
        lambda rows: transform.enqueue_sync(rows),
        lambda rows: asyncio.run(app.enqueue_many([transform.call(rows)])),
        lambda rows: transform.call(rows).job,
        lambda rows: app.every(minutes=5, args=[rows])(transform),
    ],
)
def test_a_result_of_a_node_is_no_argument_outside_of_the_flow(use: Callable[[Any], Any]) -> None:
    rows = new().node(extract.call("a"))
    with pytest.raises(BadInput, match="<the result of node 'extract'>"):
        use(rows)


def test_a_failed_flow_names_the_first_nodes_that_ended_badly_and_survives_pickle() -> None:
    failed = FlowFailed(7, "nightly", "failed", {f"n{n}": "dead" for n in range(5)})
    again = pickle.loads(pickle.dumps(failed))
    assert str(again) == str(failed)
    assert str(failed).startswith("flow 7 (nightly) ended failed (n0: dead, n1: dead, n2: dead, 2 more). Next: ")
    assert (again.flow_id, again.state, len(again.nodes)) == (7, "failed", 5)
