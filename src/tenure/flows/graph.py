"""The nodes of a flow as boxes to draw. A mapped node is one box with its members; a large flow is folded further."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final

from tenure.jobs.flow import FlowNode
from tenure.jobs.formats import to_one_line

#: The most boxes of a drawing of nodes, and of one of layers.
MAX_BOXES: Final = 60
MAX_LAYERS: Final = 12
#: (sign, sign in ASCII) of each state of a node; the order is that in which counts are written.
SIGNS: Final = {
    "succeeded": ("✓", "+"),
    "started": ("●", "*"),
    "waiting": ("○", "."),
    "failed": ("✗", "x"),
    "cancelled": ("⊘", "/"),
    "skipped": ("–", "-"),
}
#: A box of several nodes has the sign of the first of these states that one of them is in.
_FIRST: Final = ("failed", "cancelled", "started", "waiting", "succeeded", "skipped")


@dataclass(eq=False, slots=True)
class Box:
    """A node, or several that are drawn as one; mapped nodes with their members."""

    nodes: Sequence[FlowNode]
    members: Sequence[FlowNode] = ()
    #: The boxes before it, and those after it.
    parents: list[Box] = field(default_factory=list)
    children: list[Box] = field(default_factory=list)
    layer: int = 0
    #: The layers that it stands for: (first, last), or None where it stands for nodes.
    layers: tuple[int, int] | None = None

    @property
    def counted(self) -> Sequence[FlowNode]:
        """The nodes whose states the box shows: members stand for their mapped node."""
        return self.members or self.nodes

    @property
    def is_folded(self) -> bool:
        """Whether the box shows counts."""
        return bool(self.members) or len(self.nodes) > 1

    @property
    def state(self) -> str:
        """The state that its sign and its colour show."""
        if not self.is_folded:
            return self.nodes[0].state
        states = {node.state for node in self.counted}
        return next(state for state in _FIRST if state in states)

    @property
    def is_cleanup(self) -> bool:
        """Whether it stands for a clean-up node."""
        return self.nodes[0].is_cleanup


class Graph:
    """The nodes of a flow, sorted into layers: a node is one layer below the lowest of its parents."""

    def __init__(self, nodes: Sequence[FlowNode]) -> None:
        steps = {node.id: node for node in nodes if node.part_of is None}
        order = TopologicalSorter(
            {step.id: [parent for parent in step.parents if parent in steps] for step in steps.values()}
        ).static_order()
        #: The nodes without the members of mapped nodes, by id; each behind its parents.
        self.steps = {number: steps[number] for number in order}
        self.members: dict[int, list[FlowNode]] = defaultdict(list)
        for node in nodes:
            if node.part_of is not None:
                self.members[node.part_of].append(node)
        self.children: dict[int, list[int]] = defaultdict(list)
        self.layer: dict[int, int] = {}
        for number, step in self.steps.items():
            for parent in step.parents:
                self.children[parent].append(number)
            self.layer[number] = 1 + max((self.layer[parent] for parent in step.parents), default=-1)

    def boxes(self) -> list[Box]:
        """One box for each node; if these are too many, for nodes between the same others; else for whole layers."""
        if len(self.steps) <= MAX_BOXES:
            return self._connected([[step] for step in self.steps.values()])
        groups: dict[object, list[FlowNode]] = defaultdict(list)
        for number, step in self.steps.items():
            groups[frozenset(step.parents), frozenset(self.children[number]), step.is_cleanup].append(step)
        return self._connected(groups.values()) if len(groups) <= MAX_BOXES else self.layers()

    def layers(self) -> list[Box]:
        """One box for each layer, or for some layers one after the other; clean-up nodes have a box of their own."""
        rows: dict[int, list[FlowNode]] = defaultdict(list)
        cleanup = [step for step in self.steps.values() if step.is_cleanup]
        for number, step in self.steps.items():
            if not step.is_cleanup:
                rows[self.layer[number]].append(step)
        height = -(-len(rows) // MAX_LAYERS)
        boxes: list[Box] = []
        for top in range(0, len(rows), height):
            last = min(top + height, len(rows))
            box = self._box([step for row in range(top, last) for step in rows[row]])
            box.layer, box.layers = len(boxes), (top + 1, last)
            if boxes:
                _connect(boxes[-1], box)
            boxes.append(box)
        return [*boxes, *([self._box(cleanup)] if cleanup else [])]

    def _box(self, steps: Sequence[FlowNode]) -> Box:
        return Box(steps, [member for step in steps for member in self.members.get(step.id) or _itself(steps, step)])

    def _connected(self, groups: Iterable[Sequence[FlowNode]]) -> list[Box]:
        boxes = [self._box(group) for group in groups]
        box_of = {step.id: box for box in boxes for step in box.nodes}
        for box in boxes:
            box.layer = self.layer[box.nodes[0].id]
            for parent in dict.fromkeys(box_of[parent] for parent in box.nodes[0].parents):
                _connect(parent, box)
        return boxes


def _itself(steps: Sequence[FlowNode], step: FlowNode) -> Sequence[FlowNode]:
    """A node beside others counts once; a node alone, and a mapped node without items, show no count."""
    return [step] if len(steps) > 1 else ()


def _connect(parent: Box, child: Box) -> None:
    parent.children.append(child)
    child.parents.append(parent)


def name_of(box: Box) -> str:
    """The name of a box: of its node, of several nodes, or of layers."""
    if box.layers is None and len(box.nodes) == 1:
        node = box.nodes[0]
        times = f" × {len(box.members):,}" if box.members else " × each item" if node.is_mapped else ""
        return f"{to_one_line(node.name)}{times}"
    one_type = len({node.type for node in box.nodes}) == 1
    of_type = f" of type {to_one_line(box.nodes[0].type)}" if one_type else ""
    several = f"{len(box.counted):,} node{'s' * (len(box.counted) > 1)}{of_type}"
    if box.layers is None:
        return several
    first, last = box.layers
    return f"layer {first:,}: {several}" if first == last else f"layers {first:,} to {last:,}: {several}"


def state_word(node: FlowNode) -> str:
    """The state of a node; of a job that is live, in its contract's words."""
    return (node.job_state or node.state) if node.state == "started" else node.state


def counts(nodes: Iterable[FlowNode]) -> str:
    """`997 succeeded, 3 running`."""
    found = Counter((node.state, state_word(node)) for node in nodes)
    order = list(SIGNS)
    words = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return ", ".join(f"{found[key]:,} {key[1]}" for key in words)
