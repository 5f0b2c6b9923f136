"""The shape of a flow: what is refused before anything is written, with the path that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import BadInput
from tenure.jobs.flow import NewFlow, NewNode, check_flow, flow_fingerprint
from tenure.jobs.job import NewJob


def node(name: str, *after: str, payload: Any = None, **fields: Any) -> NewNode:
    """A node that runs a task of its own name."""
    return NewNode(name, NewJob(name, {} if payload is None else payload), after, **fields)


def order(*nodes: NewNode, **fields: Any) -> list[str]:
    """The names of the nodes as the check orders them."""
    return [each.name for each in check_flow(NewFlow("f", nodes, **fields))]


def test_each_node_stands_behind_its_parents_and_clean_up_nodes_last() -> None:
    found = order(node("c", "b", "a"), node("tidy", cleanup=True), node("b", "a"), node("a"))
    assert found == ["a", "b", "c", "tidy"]


def test_the_nodes_whose_results_it_needs_are_parents_too() -> None:
    load = node("load", "a", inputs={"rows": "b", "parts": ["c", "b"]})
    assert load.parents() == ("a", "b", "c")
    assert order(load, node("c"), node("b"), node("a"))[-1] == "load"


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node("a"), node("a")], "nodes[1].name: flow 'f' has two nodes 'a'"),
        (
            [node("a"), node("b[0]"), node("b", inputs={"x": "a"}, each="x")],
            "nodes[1].name: 'b[0]' names a job of the mapped node 'b'. Next: give one of them another name",
        ),
        ([node("a", "b"), node("b", "c"), node("c", "a")], "flow 'f' has a cycle: "),
        ([node("a", "a")], "nodes[0].after[0]: node 'a' is after itself"),
        (
            [node("extract"), node("b", "extrakt")],
            "nodes[1].after[0]: there is no node 'extrakt' in this flow. Next: did",
        ),
        ([node("b", inputs={"x": "a"})], "nodes[0].inputs.x: there is no node 'a' in this flow. Next: add a node 'a'"),
        ([node("a"), node("b", inputs={"x": ["a", "c"]})], "nodes[1].inputs.x[1]: there is no node 'c'"),
        ([node("a"), node("b", inputs={"x": "a"}, payload={"x": 1})], "nodes[1].inputs.x: the payload has 'x' too"),
        ([node("a"), node("b", inputs={"x": "a"}, payload=[1])], "nodes[1].inputs: the payload is no object"),
        ([node("a"), node("b", each="x")], "nodes[1].each: 'x' is no input"),
        ([node("a"), node("b", inputs={"x": ["a"]}, each="x")], "nodes[1].each: 'x' has several parents"),
        ([node("a"), node("b", "a", cleanup=True)], "nodes[1]: a clean-up node runs after all others"),
        ([node("a", cleanup=True), node("b", "a")], "nodes[1].after[0]: 'a' is a clean-up node"),
        ([node("a", on_failure="retry")], "nodes[0].on_failure must be one of stop, skip, continue; got 'retry'"),
        ([], "flow 'f' has 0 nodes; it must have 1 to 100000"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_path_that_is_wrong(nodes: list[NewNode], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        order(*nodes)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("name", ["b[00]", "b[-1]", "b[]", "b[0] ", "b[0][1]", "a[0]", "c[0]", "[0]"])
def test_a_name_that_no_job_of_a_mapped_node_can_have_is_allowed(name: str) -> None:
    assert name in order(node("a"), node("b", inputs={"x": "a"}, each="x"), node(name))


def test_a_cycle_is_told_in_the_order_in_which_its_nodes_would_run() -> None:
    with pytest.raises(BadInput, match="a cycle: ") as refused:
        order(node("start"), node("a", "start", "c"), node("b", "a"), node("c", "b"))
    names = str(refused.value).split("a cycle: ")[1].split(". Next")[0].split(" → ")
    assert names[0] == names[-1]
    at = names.index("a")
    assert [*names[at:-1], *names[:at]] == ["a", "b", "c"]


@pytest.mark.parametrize(("field", "value"), [("key", "k"), ("unique", object())])
def test_a_job_of_a_node_has_no_key_and_is_not_unique(field: str, value: Any) -> None:
    one = node("a")
    setattr(one.job, field, value)
    with pytest.raises(BadInput, match=rf"nodes\[0\]: the job of a node cannot have {field}"):
        order(one)


def test_the_fingerprint_is_that_of_the_work_and_not_of_the_order_in_which_it_was_written() -> None:
    nodes = [node("a"), node("b", inputs={"x": ("a",)}, payload={"y": 1})]
    same = flow_fingerprint(NewFlow("f", nodes, key="k"))
    assert same == flow_fingerprint(NewFlow("f", [node("b", inputs={"x": ["a"]}, payload={"y": 1}), node("a")]))
    assert same != flow_fingerprint(NewFlow("f", [node("b", inputs={"x": "a"}, payload={"y": 1}), node("a")]))
    assert same != flow_fingerprint(NewFlow("f", [*nodes, node("c")]))
