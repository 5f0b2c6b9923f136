"""The critical path is the chain of nodes that took longest, or is expected to take longest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tenure.flows.graph import Graph
from tenure.flows.path import CriticalPath, critical_path
from tenure.jobs.flow import FlowNode
from tests.flows.examples import NOW, at_random, extract_transform_load, node, running, waiting


def path_of(nodes: Sequence[FlowNode]) -> CriticalPath:
    found = critical_path(Graph(nodes), NOW)
    assert found is not None
    return found


def names(nodes: Sequence[FlowNode]) -> list[str]:
    return [one.name for one in path_of(nodes).nodes]


def test_the_path_leads_through_the_parent_that_took_longest() -> None:
    nodes = [
        node(1, "a"),
        node(2, "b", parents=[1], took=2),
        node(3, "c", parents=[1], took=3),
        node(4, "d", parents=[2, 3]),
    ]
    assert names(nodes) == ["a", "c", "d"]
    assert path_of(nodes)[1:] == (5000, False)


@pytest.mark.parametrize("seed", range(20))
def test_no_chain_took_longer(seed: int) -> None:
    nodes = [one._replace(finished_at=NOW) if one.id % 3 else one for one in at_random(seed, most=10)]
    by_id = {one.id: one for one in nodes}

    def longest(one: FlowNode) -> float:
        assert one.started_at is not None
        assert one.finished_at is not None
        own = (one.finished_at - one.started_at).total_seconds() * 1000
        return own + max((longest(by_id[parent]) for parent in one.parents), default=0)

    assert path_of(nodes).ms == max(longest(one) for one in nodes)


def test_a_mapped_node_takes_from_its_first_start_to_its_last_end() -> None:
    nodes = extract_transform_load(items=10, live=0)
    late = [one._replace(finished_at=NOW) if one.name == "transform[4]" else one for one in nodes]
    done = [one._replace(state="succeeded", job_state="succeeded") if one.id == 2 else one for one in late]
    assert path_of(done[:-2])[1:] == (1500 + 18_000, False)


def test_a_node_that_waits_counts_with_the_mean_of_its_type() -> None:
    nodes = [node(1, "a", took=2), node(2, "b", took=4), waiting(3, "c", [1, 2]), node(4, "d", took=6.5, type="other")]
    assert path_of(nodes)[1:] == (4000 + 3000, True)
    assert names(nodes) == ["b", "c"]
    assert path_of(nodes).describe() == "7 s expected: b → c"


def test_a_running_node_counts_with_its_time_until_now_if_that_is_longer() -> None:
    assert path_of([node(1, "a"), running(2, "b", [1], at=1)]).ms == 1000 + 19_000
    assert path_of([node(1, "a", took=9), running(2, "b", [1], at=19)]).ms == 9000 + 9000


def test_nodes_that_never_ran_and_cleanup_nodes_are_on_no_path() -> None:
    nodes = [
        node(1, "a"),
        node(2, "b", "skipped", [1]),
        node(3, "c", "cancelled", [1], at=None),
        node(4, "tidy", is_cleanup=True, took=9),
    ]
    assert names(nodes) == ["a"]


def test_there_is_no_path_while_no_node_has_ended() -> None:
    assert critical_path(Graph([running(1, "a"), waiting(2, "b", [1])]), NOW) is None


def test_a_long_path_is_described_without_its_middle() -> None:
    chain = [node(number, f"n{number}", parents=[number - 1] if number > 1 else []) for number in range(1, 13)]
    assert path_of(chain).describe() == "12 s: n1 → n2 → n3 → n4 → (5 more) → n10 → n11 → n12"
