"""A flow as a drawing for terminals: a line for each node, with the arrows as lines at the left, downwards.

    ✓ extract              1.2 s   succeeded, job 11
    ● transform × 1,000    14 s    997 succeeded, 3 running
    ○ load                         waits for transform

Nodes with the same parents and the same children stand below each other at one line. Nodes in one column with nothing
between them run one after the other.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tenure.flows.graph import SIGNS, Box, Graph, counts, name_of, state_word
from tenure.flows.path import critical_path, span_ms
from tenure.jobs.flow import Flow, FlowNode
from tenure.jobs.formats import elapsed, format_duration, to_one_line

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final = " │││─╯╮┤─╰╭├─┴┬┼"
_ASCII_LINES: Final = " |||-+++-+++-+++"
#: A longer name is cut; a flow that needs more columns for its lines is drawn as layers.
_NAME, _COLUMNS = 48, 12
#: Failed nodes that are named below a drawing that shows them as a count.
_NAMED = 10


def draw(
    flow: Flow, nodes: Sequence[FlowNode], now: datetime, *, width: int | None = None, ascii_only: bool = False
) -> Iterator[str]:
    """Yield the lines of the drawing: a title, the nodes, what has failed, and the critical path."""
    graph = Graph(nodes)
    boxes = graph.boxes()
    lines = _lines(boxes)
    if any(column >= _COLUMNS for line in lines for column in line.ways):
        boxes = graph.layers()
        lines = _lines(boxes)
    text = [title(flow, now), "", *_rows(lines, now, ascii_only), *_below(graph, boxes, now)]
    for line in text:
        yield _cut(_to_ascii(line) if ascii_only else line, width)


def title(flow: Flow, now: datetime) -> str:
    """`flow 7, nightly: failed after 12 s; 5 of 5 nodes ended, 1 badly`."""
    since, duration = "after" if flow.ended_at else "for", elapsed(flow.created_at, flow.ended_at or now)
    ended = f"{flow.nodes - flow.open:,} of {flow.nodes:,} nodes ended"
    badly = f", {flow.failed:,} badly" if flow.failed else ""
    return f"flow {flow.id}, {to_one_line(flow.name)}: {flow.state} {since} {duration}; {ended}{badly}"


@dataclass(slots=True)
class _Line:
    """A line of the drawing: the directions of the lines in each column, and the box whose text follows."""

    ways: dict[int, int]
    box: Box | None = None
    #: The column of the box's sign.
    column: int = -1
    #: The columns between which a line leads sideways.
    across: tuple[int, int] = (0, 0)


@dataclass(eq=False, slots=True)
class _Bundle:
    """Boxes with the same parents and the same children: they stand below each other at one line."""

    boxes: list[Box]
    children: set[_Bundle] = field(default_factory=set)
    #: How many bundles before it are not drawn yet.
    open: int = 0


def _lines(boxes: Sequence[Box]) -> list[_Line]:
    lanes = _Lanes()
    for bundle in _depth_first(_bundles([box for box in boxes if not box.is_cleanup])):
        lanes.draw(bundle)
    for bundle in _bundles([box for box in boxes if box.is_cleanup]):
        lanes.draw(bundle)
    return lanes.lines


def _bundles(boxes: Sequence[Box]) -> list[_Bundle]:
    groups: dict[object, list[Box]] = defaultdict(list)
    for box in boxes:
        groups[frozenset(box.parents), frozenset(box.children)].append(box)
    bundles = [_Bundle(group) for group in groups.values()]
    bundle_of = {box: bundle for bundle in bundles for box in bundle.boxes}
    for bundle in bundles:
        bundle.children = {bundle_of[child] for child in bundle.boxes[0].children}
        for child in bundle.children:
            child.open += 1
    return bundles


def _depth_first(bundles: Sequence[_Bundle]) -> Iterator[_Bundle]:
    """Yield each bundle behind its parents, and soon behind the last of them, so that few lanes are open at once."""
    place = {bundle: number for number, bundle in enumerate(bundles)}
    ready = [bundle for bundle in reversed(bundles) if not bundle.open]
    while ready:
        bundle = ready.pop()
        yield bundle
        for child in sorted(bundle.children, key=place.__getitem__, reverse=True):
            child.open -= 1
            if not child.open:
                ready.append(child)


class _Lanes:
    """Draws the lines at the left. A lane leads down from a bundle to those of its children that are not drawn yet."""

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        #: By column: the bundles that the lane leads to. An empty lane has ended.
        self._lanes: list[set[_Bundle]] = []

    def draw(self, bundle: _Bundle) -> None:
        """Add the lines of a bundle, whose parents are drawn."""
        incoming = [column for column, lane in enumerate(self._lanes) if bundle in lane]
        for column in incoming:
            self._lanes[column].discard(bundle)
        ended = [column for column in incoming if not self._lanes[column]]
        column = ended[0] if ended else self._free_column(incoming)
        if self._would_mislead(column, bundle, is_child=bool(ended)):
            self.lines.append(_Line(self._passing() | dict.fromkeys(incoming, _UP | _DOWN)))
        line = _Line(self._passing(), across=(min([*incoming, column]), max([*incoming, column])))
        line.ways[column] = _UP if ended else 0
        for each in incoming:
            self._join(line, each, column, _UP | (_DOWN if self._lanes[each] else 0))
        self._lanes[column] = set(bundle.children)
        for number, box in enumerate(bundle.boxes):
            if number:
                line = _Line(self._passing() | {column: _UP})
            line.box, line.column = box, column
            if len(bundle.boxes) == 1:
                line.ways[column] = 0  # the sign stands here
            else:
                line.ways[column] |= _RIGHT
                if number < len(bundle.boxes) - 1 or bundle.children:
                    line.ways[column] |= _DOWN
            self.lines.append(line)
        self._merge(column)

    def _would_mislead(self, column: int, bundle: _Bundle, is_child: bool) -> bool:
        """Whether the box above would look like a parent, or like one of the same bundle."""
        if not self.lines or self.lines[-1].column != column:
            return False
        return not is_child or (len(bundle.boxes) > 1 and self.lines[-1].ways[column] != 0)

    def _free_column(self, incoming: Sequence[int]) -> int:
        """The first free column to the right of a lane that leads here."""
        for column in range(min(incoming, default=-1) + 1, len(self._lanes)):
            if not self._lanes[column]:
                return column
        self._lanes.append(set())
        return len(self._lanes) - 1

    def _merge(self, column: int) -> None:
        """Let this lane end in another one that leads to the same bundles."""
        lane = self._lanes[column]
        same = [other for other, others in enumerate(self._lanes) if other != column and others and others == lane]
        if same:
            line = _Line(self._passing(), across=(min(column, same[0]), max(column, same[0])))
            self._join(line, column, same[0], _UP)
            self.lines.append(line)
            self._lanes[column] = set()

    def _join(self, line: _Line, lane: int, target: int, ways: int) -> None:
        """Lead a lane sideways to another column."""
        if lane == target:
            return
        line.ways[lane] = ways | (_RIGHT if lane < target else _LEFT)
        if line.across[0] < lane < line.across[1]:
            line.ways[lane] |= _LEFT | _RIGHT
        line.ways[target] |= _LEFT if lane < target else _RIGHT

    def _passing(self) -> dict[int, int]:
        return {column: _UP | _DOWN for column, lane in enumerate(self._lanes) if lane}


def _rows(lines: Sequence[_Line], now: datetime, ascii_only: bool) -> Iterator[str]:
    """The lines with the names, the times and the states, aligned."""
    rows = [(_left(line, ascii_only), *(_cells(line.box, now) if line.box else ("", "", ""))) for line in lines]
    widths = [max(_width(row[column]) for row in rows) for column in range(3)]
    for *cells, last in rows:
        left, name, time = (cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))
        yield f"  {left} {name}  {time}  {last}".rstrip()


def _left(line: _Line, ascii_only: bool) -> str:
    """The lines and the sign at the left of a row."""
    lines = _ASCII_LINES if ascii_only else _LINES
    sign = SIGNS[line.box.state][ascii_only] if line.box else ""
    left = ""
    for column in range(max([*line.ways, line.column], default=-1) + 1):
        ways = line.ways.get(column, 0)
        between = line.across[0] <= column < line.across[1]
        here = lines[ways] if ways or not between else lines[_LEFT | _RIGHT]
        behind = lines[_LEFT | _RIGHT] if between else " "
        if column == line.column:
            here, behind = (here, sign) if ways else (sign, behind)
        left += here + behind
    return left


def _cells(box: Box, now: datetime) -> tuple[str, str, str]:
    """The name of a box, how long it took, and its state."""
    ms = span_ms(box.counted, now)
    return _cut(name_of(box), _NAME), "" if ms is None else format_duration(ms), _state(box)


def _state(box: Box) -> str:
    if box.is_folded:
        return counts(box.counted)
    node = box.nodes[0]
    if node.state == "waiting":
        if node.is_cleanup:
            return "waits for the end; runs if a node ends badly"
        waiting = [name_of(parent) for parent in box.parents if parent.state in ("waiting", "started")]
        more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        return f"waits for {', '.join(waiting[:3])}{more}" if waiting else "waiting"
    return f"{state_word(node)}{_job(node)}"


def _job(node: FlowNode) -> str:
    """The job of a node, or why it has none."""
    job = f", job {node.job_id}" if node.job_state is not None else ""
    return f"{job}: {to_one_line(node.error)}" if node.error else job


def _below(graph: Graph, boxes: Sequence[Box], now: datetime) -> Iterator[str]:
    """The failed nodes that are shown only as a count, and the critical path."""
    failed = [node for box in boxes if box.is_folded for node in box.counted if node.state == "failed"]
    if failed:
        yield ""
    for node in failed[:_NAMED]:
        yield f"  {SIGNS['failed'][0]} {to_one_line(node.name)}: failed{_job(node)}"
    if len(failed) > _NAMED:
        yield f"  and {len(failed) - _NAMED:,} more failed nodes"
    path = critical_path(graph, now)
    if path is not None:
        yield ""
        yield f"  critical path: {path.describe()}"


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF") for sign in text)


def _cut(text: str, width: int | None) -> str:
    """The text without what does not fit."""
    if width is None or _width(text) <= width:
        return text
    while text and _width(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def _to_ascii(text: str) -> str:
    """The text with a question mark in place of each character that is not ASCII."""
    for sign, instead in (("×", "x"), ("→", "->"), ("…", "..."), *SIGNS.values()):
        text = text.replace(sign, instead)
    return text.encode("ascii", "replace").decode()
