"""Flows to draw: values as the store returns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from tenure.jobs.flow import Flow, FlowNode, FlowState, NodeState

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOW = START + timedelta(seconds=20)


def node(
    number: int,
    name: str,
    state: NodeState = "succeeded",
    parents: Iterable[int] = (),
    *,
    at: float | None = 0,
    took: float | None = 1,
    job_state: str | None = "succeeded",
    part_of: int | None = None,
    is_mapped: bool = False,
    is_cleanup: bool = False,
    error: str | None = None,
    type: str = "work",
) -> FlowNode:
    """A node that started so many seconds after the flow, and took so many."""
    has_run = state not in ("waiting", "skipped") and at is not None
    started = START + timedelta(seconds=at or 0) if has_run else None
    ended = started + timedelta(seconds=took) if started and took is not None and state != "started" else None
    return FlowNode(
        id=number,
        name=name,
        state=state,
        job_id=None if is_mapped else number,
        type=type,
        contract="standard",
        queue="default",
        open=0,
        parents=tuple(parents),
        on_failure=None,
        is_mapped=is_mapped,
        is_cleanup=is_cleanup,
        part_of=part_of,
        error=error,
        job_state=job_state if has_run and not is_mapped else None,
        started_at=started,
        finished_at=ended,
    )


def waiting(number: int, name: str, parents: Iterable[int] = ()) -> FlowNode:
    """A node whose job is not made."""
    return node(number, name, "waiting", parents)


def running(number: int, name: str, parents: Iterable[int] = (), *, at: float = 0) -> FlowNode:
    """A node whose job is live."""
    return node(number, name, "started", parents, at=at, job_state="running")


def flow(nodes: Sequence[FlowNode], state: FlowState = "running", name: str = "nightly") -> Flow:
    """The flow of these nodes."""
    is_open = sum(one.state in ("waiting", "started") for one in nodes)
    failed = sum(one.state == "failed" for one in nodes)
    ended_at = None if is_open else NOW
    return Flow(7, name, "default", state, "stop", len(nodes), is_open, failed, START, ended_at, "ann")


def extract_transform_load(items: int = 1000, live: int = 3) -> list[FlowNode]:
    """A mapped node between two others, and a clean-up node."""
    members = [
        running(10 + place, f"transform[{place}]", at=2)
        if place >= items - live
        else node(10 + place, f"transform[{place}]", at=2, took=9)
        for place in range(items)
    ]
    return [
        node(1, "extract", took=1.5),
        node(2, "transform", "started", [1], at=2, is_mapped=True),
        *(member._replace(part_of=2) for member in members),
        waiting(3, "load", [2]),
        waiting(4, "tidy")._replace(is_cleanup=True),
    ]


def layered(layers: int, width: int) -> list[FlowNode]:
    """A flow in which each node needs two of the layer before it; the first half has ended."""
    return [
        node(
            1 + layer * width + place,
            f"work {layer}-{place}",
            "succeeded" if layer < layers // 2 else "waiting",
            {1 + (layer - 1) * width + (place + step) % width for step in (0, 1)} if layer else (),
            at=layer,
        )
        for layer in range(layers)
        for place in range(width)
    ]


def at_random(seed: int, most: int = 20) -> list[FlowNode]:
    """A flow in which each node needs none, some or many of the nodes before it."""
    random = Random(seed)
    return [
        node(
            number,
            f"n{number}",
            parents=random.sample(range(1, number), min(number - 1, random.choice((0, 1, 1, 2, 4)))),
        )
        for number in range(1, random.randint(2, most) + 1)
    ]


def dependencies(nodes: Sequence[FlowNode]) -> set[tuple[str, str]]:
    """Parent and child, by name."""
    names: Mapping[int, str] = {one.id: one.name for one in nodes}
    return {(names[parent], child.name) for child in nodes for parent in child.parents}
