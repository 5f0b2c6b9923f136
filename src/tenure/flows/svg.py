"""A flow as a self-contained SVG, for light and dark mode: a box for each node, from left to right, and arrows.

A box shows the state of its node and how long it took. The boxes and arrows of the critical path are drawn bold. An
arrow that passes other layers has a place of its own between their boxes, so it crosses no box.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from importlib.resources import files
from typing import Final

from tenure.contracts.diagram_layout import spread, text_width
from tenure.flows.graph import SIGNS, Box, Graph, counts, name_of, state_word
from tenure.flows.path import critical_path, span_ms
from tenure.flows.text import title
from tenure.jobs.flow import Flow, FlowNode
from tenure.jobs.formats import format_duration, to_one_line

_BOX, _ACROSS, _MARGIN, _LANE = 44.0, 56.0, 24.0, 10.0
_SWEEPS: Final = 12
#: A flow with more arrows and passed layers is drawn as layers.
_MOST_SLOTS: Final = 1_500
_LONGEST_NAME: Final = 32


def to_svg(flow: Flow, nodes: Sequence[FlowNode], now: datetime) -> str:
    """Return the picture of a flow and its nodes as they are now."""
    graph = Graph(nodes)
    boxes = graph.boxes()
    if sum(box.layer - parent.layer for box in boxes for parent in box.parents) > _MOST_SLOTS:
        boxes = graph.layers()
    path = critical_path(graph, now)
    critical = [] if path is None else [node.id for node in path.nodes]
    layout = _Layout(boxes, now)
    heading = [title(flow, now), "" if path is None else f"Critical path: {path.describe()}"]
    return "\n".join(_render(flow, heading, layout, critical)) + "\n"


@dataclass(eq=False, slots=True)
class _Slot:
    """A place in a layer: a box, or the place where an arrow passes the layer."""

    layer: int
    left: float  # the room above its middle: the layers are columns
    right: float  # the room below
    box: Box | None = None
    y: float = 0.0
    place: int = 0
    before: list[_Slot] = field(default_factory=list)
    after: list[_Slot] = field(default_factory=list)


class _Layout:
    """The position of every box and of every arrow."""

    def __init__(self, boxes: Sequence[Box], now: datetime) -> None:
        self.words = {box: _words(box, now) for box in boxes}
        main = [box for box in boxes if not box.is_cleanup]
        cleanup = [box for box in boxes if box.is_cleanup]
        self.layers: list[list[_Slot]] = [[] for _ in range(max((box.layer for box in main), default=-1) + 1)]
        self.slots = {box: self._add(box.layer, _BOX / 2, box) for box in main}
        self.arrows = [self._arrow(parent, box) for box in main for parent in box.parents]
        self._order()
        self._place()
        self.lowest = max((slot.y + slot.right for slot in itertools.chain(*self.layers)), default=0.0)
        self._add_cleanup(cleanup)
        self.columns = self._columns()

    def _add(self, layer: int, half: float, box: Box | None = None) -> _Slot:
        slot = _Slot(layer, half, half, box, place=len(self.layers[layer]))
        self.layers[layer].append(slot)
        return slot

    def _arrow(self, parent: Box, box: Box) -> list[_Slot]:
        passed = [self._add(layer, _LANE / 2) for layer in range(parent.layer + 1, box.layer)]
        slots = [self.slots[parent], *passed, self.slots[box]]
        for one, other in itertools.pairwise(slots):
            one.after.append(other)
            other.before.append(one)
        return slots

    def _order(self) -> None:
        """Order each layer so that few arrows cross: sort by the mean place of the slots before or after."""
        best, found = self._crossings(), [list(layer) for layer in self.layers]
        for sweep in range(_SWEEPS):
            forward = sweep % 2 == 0
            for layer in self.layers if forward else reversed(self.layers):
                layer.sort(key=lambda slot: _mean_place(slot, slot.before if forward else slot.after))
                for place, slot in enumerate(layer):
                    slot.place = place
            crossings = self._crossings()
            if crossings < best:
                best, found = crossings, [list(layer) for layer in self.layers]
        self.layers = found

    def _crossings(self) -> int:
        crossed = 0
        for layer in self.layers:
            ends: list[int] = []
            for slot in layer:
                places = sorted(other.place for other in slot.after)
                crossed += sum(end > place for place in places for end in ends)
                ends += places
        return crossed

    def _place(self) -> None:
        """Set the y of each slot: as near to its connected slots as its neighbours allow."""
        for layer in self.layers:
            for slot, y in zip(layer, spread(layer, [(0.0, 1.0)] * len(layer)), strict=True):
                slot.y = y
        for sweep in range(4 * _SWEEPS):
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                for slot, y in zip(layer, spread(layer, [_wanted(slot) for slot in layer]), strict=True):
                    slot.y = y
        top = min((slot.y - slot.left for slot in itertools.chain(*self.layers)), default=0.0)
        for slot in itertools.chain(*self.layers):
            slot.y += _MARGIN + 52 - top

    def _add_cleanup(self, boxes: Sequence[Box]) -> None:
        """Clean-up nodes stand below the others, at the left."""
        if boxes and not self.layers:
            self.layers, self.lowest = [[]], _MARGIN + 52
        for box in boxes:
            self.lowest += 24
            self.slots[box] = self._add(0, _BOX / 2, box)
            self.slots[box].y = self.lowest + _BOX / 2
            self.lowest += _BOX

    def _columns(self) -> list[tuple[float, float]]:
        """The left and the right side of each layer."""
        columns, x = [], _MARGIN
        for layer in self.layers:
            width = max((_box_width(self.words[slot.box]) for slot in layer if slot.box), default=0.0)
            columns.append((x, x + width))
            x += width + _ACROSS
        return columns


def _mean_place(slot: _Slot, near: Sequence[_Slot]) -> float:
    return sum(other.place for other in near) / len(near) if near else float(slot.place)


def _wanted(slot: _Slot) -> tuple[float, float]:
    """The y that a slot prefers, and the weight of that; a long arrow prefers to be straight."""
    near = [*slot.before, *slot.after]
    if not near:
        return slot.y, 1.0
    weights = [1.0 if other.box or slot.box else 8.0 for other in near]
    return sum(other.y * weight for other, weight in zip(near, weights, strict=True)) / sum(weights), sum(weights)


def _words(box: Box, now: datetime) -> tuple[str, str]:
    """The two lines of a box: its name; its state with how long it took."""
    name = name_of(box)
    ms = span_ms(box.counted, now)
    took = "" if ms is None else f" · {format_duration(ms)}"
    state = counts(box.counted) if box.is_folded else state_word(box.nodes[0])
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return short, f"{SIGNS[box.state][0]} {to_one_line(state)}{took}"


def _box_width(words: tuple[str, str]) -> float:
    return max(96.0, text_width(words[0], 13) + 24, text_width(words[1], 11) + 24)


def _render(flow: Flow, heading: Sequence[str], layout: _Layout, critical: Sequence[int]) -> Iterator[str]:
    mark = f"tenure-flow-{flow.id}"
    bold = set(itertools.pairwise(critical))
    right = layout.columns[-1][1] if layout.columns else 0.0
    width = max(right, _MARGIN + text_width(heading[0], 15), _MARGIN + text_width(heading[1], 11)) + _MARGIN
    height = layout.lowest + _MARGIN
    # Not every SVG viewer knows custom properties, so the style writes each colour out, for light and dark mode.
    style = files("tenure.flows").joinpath("flow.css").read_text(encoding="utf-8")
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="tenure-flow" role="img" {size}'
    yield f'     aria-labelledby="{mark}-title {mark}-desc">'
    yield f'<title id="{mark}-title">{escape(heading[0])}</title>'
    nodes = "; ".join(f"{name} {state}" for name, state in layout.words.values())
    yield f'<desc id="{mark}-desc">{escape(nodes)}. {escape(heading[1])}</desc>'
    yield f"<style>\n{style}</style>"
    for name in ("", "critical"):
        yield f'<marker id="{mark}-arrow{name}" class="{name}" refX="8.5" refY="4.5" markerWidth="9" markerHeight="9"'
        yield '     orient="auto" markerUnits="userSpaceOnUse"><path class="head" d="M0 0 L9 4.5 L0 9 z"/></marker>'
    yield '<rect class="paper" width="100%" height="100%"/>'
    yield f'<text class="title" x="{_MARGIN:.0f}" y="{_MARGIN + 8:.0f}">{escape(heading[0])}</text>'
    yield f'<text class="note" x="{_MARGIN:.0f}" y="{_MARGIN + 26:.0f}">{escape(heading[1])}</text>'
    arrows = [(arrow, _is_critical(arrow, bold)) for arrow in layout.arrows]
    for arrow, is_critical in sorted(arrows, key=lambda pair: pair[1]):  # the bold ones above the others
        yield _arrow(layout, arrow, mark, "critical" * is_critical)
    for box, slot in layout.slots.items():
        yield from _box(layout, box, slot, any(node.id in critical for node in box.nodes))
    yield "</svg>"


def _is_critical(arrow: Sequence[_Slot], bold: set[tuple[int, int]]) -> bool:
    ends = [slot.box.nodes for slot in (arrow[0], arrow[-1]) if slot.box is not None]
    return any((one.id, other.id) in bold for one, other in itertools.product(*ends))


def _arrow(layout: _Layout, arrow: Sequence[_Slot], mark: str, kind: str) -> str:
    points: list[tuple[float, float]] = []
    for slot in arrow:
        left, right = layout.columns[slot.layer]
        if slot.box is not None:
            right = left + _box_width(layout.words[slot.box])
        points += [(left, slot.y), (right, slot.y)]
    points = points[1:-1]
    way = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = max((x + to_x) / 2, to_x - _ACROSS / 2)
        way += f" C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<g class="arrow {kind}"><path class="line" d="{way}" marker-end="url(#{mark}-arrow{kind})"/></g>'


def _box(layout: _Layout, box: Box, slot: _Slot, is_critical: bool) -> Iterator[str]:
    left, top, words = layout.columns[slot.layer][0], slot.y - _BOX / 2, layout.words[box]
    place = f'x="{left:.1f}" y="{top:.1f}" width="{_box_width(words):.1f}" height="{_BOX:.0f}"'
    yield f'<g class="node {box.state}{" critical" * is_critical}">'
    yield f"<title>{escape(name_of(box))}</title>"
    yield f'<rect class="box" {place} rx="{0 if box.is_cleanup else 8}"/>'
    yield f'<text class="name" x="{left + 12:.1f}" y="{top + 19:.1f}">{escape(words[0])}</text>'
    yield f'<text class="note" x="{left + 12:.1f}" y="{top + 35:.1f}">{escape(words[1])}</text>'
    yield "</g>"
