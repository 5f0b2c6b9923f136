"""A diagram of a contract, drawn from its declaration: Mermaid text, or a self-contained SVG.

The SVG flows downwards. States are in rows, below the states that lead to them; a row of labels is between two rows
of states. Every edge has its own lane through each row that it crosses, so no line crosses a box or a label. An edge
that leads back uses such a lane upwards and is dashed. The border and the text of a box show the role.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from random import Random
from typing import Protocol

from tenure.contracts.declaration import Contract

Pair = tuple[str, str]

_BOX, _LINE, _LANE, _GAP, _STUB, _MARGIN = 46.0, 15.0, 14.0, 32.0, 9.0, 24.0
_STARTS, _SWEEPS = 40, 4
#: Reserved words of a Mermaid state diagram.
_RESERVED = frozenset({"as", "class", "classdef", "default", "direction", "end", "hide", "note", "scale", "state"})


def to_mermaid(contract: Contract) -> str:
    """Return the lifecycle as a Mermaid state diagram."""
    # A state name has at most 40 characters, so a name of 41 characters is free.
    names = {state: state.ljust(41, "_") if state.lower() in _RESERVED else state for state in contract.states}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state}" as {known}' for state, known in names.items() if state != known]
    lines.append(f"    [*] --> {names[contract.initial]}")
    for (source, target), triggers in contract.edges().items():
        # Mermaid ends a label at a colon or a semicolon.
        label = ", ".join(triggers).replace(":", " ").replace(";", " ")
        lines.append(f"    {names[source]} --> {names[target]}: {label}")
    lines += [f"    {names[state]} --> [*]" for state, roles in contract.states.items() if "done" in roles]
    return "\n".join(lines) + "\n"


def to_svg(contract: Contract) -> str:
    """Return the lifecycle as an SVG without scripts or fonts, for light and dark mode."""
    return "\n".join(_render(contract, _Layout(contract))) + "\n"


class Placed(Protocol):
    """A thing that takes room to both sides of its place."""

    left: float
    right: float


@dataclass(eq=False, slots=True)
class _Slot:
    """A place in a row: the box of a state, the label of an edge, or a lane that an edge passes through."""

    row: int
    left: float
    right: float
    state: str | None = None
    lines: Sequence[str] = ()
    x: float = 0.0
    place: float = 0.0  # position in its row, from 0 to 1
    up: list[_Route] = field(default_factory=list)
    down: list[_Route] = field(default_factory=list)

    def middle(self, side: int) -> float:
        """Return the average place of the connected slots above (-1) or below (1)."""
        near = [route.step(self, side).place for route in (self.up if side < 0 else self.down)] or [self.place]
        return sum(near) / len(near)


@dataclass(eq=False, slots=True)
class _Route:
    """The slots of an edge, from the upper state to the lower one; a `back` edge is drawn upwards."""

    pair: Pair
    back: bool
    slots: list[_Slot] = field(default_factory=list)

    def step(self, slot: _Slot, by: int) -> _Slot:
        """Return the slot before (-1) or after (1) this one."""
        return self.slots[self.slots.index(slot) + by]


class _Layout:
    """The position of every box, label and lane."""

    def __init__(self, contract: Contract) -> None:
        drawn = contract.edges()
        ranks, back = _ranks(contract, drawn)
        self.loops = {source: triggers for (source, target), triggers in drawn.items() if source == target}
        self.boxes = {state: self._box(contract, state, 2 * rank) for state, rank in ranks.items()}
        numbers = range(2 * max(ranks.values()) + 1)
        self.rows = [[slot for slot in self.boxes.values() if slot.row == number] for number in numbers]
        self.routes = [
            self._route(pair, triggers, pair in back) for pair, triggers in drawn.items() if pair[0] != pair[1]
        ]
        self._order()
        self._place()
        self.tops, self.height = self._tops()

    def _box(self, contract: Contract, state: str, row: int) -> _Slot:
        half = max(92.0, text_width(state, 14) + 28, text_width(" or ".join(contract.states[state]), 11) + 28) / 2
        loop = max(text_width(line, 12) for line in _wrapped(self.loops[state])) + 44 if state in self.loops else 0.0
        return _Slot(row, half, half + loop, state)

    def _route(self, pair: Pair, triggers: Sequence[str], back: bool) -> _Route:
        upper, lower = (self.boxes[state] for state in (reversed(pair) if back else pair))
        route = _Route(pair, back, [upper])
        label_row = lower.row - 1 if back else upper.row + 1  # the label is near the start of the edge
        for row in range(upper.row + 1, lower.row):
            lines = _wrapped(triggers) if row == label_row else ()
            half = max((text_width(line, 12) / 2 + 4 for line in lines), default=_LANE / 2)
            self.rows[row].append(_Slot(row, half, half, None, lines, up=[route], down=[route]))
            route.slots.append(self.rows[row][-1])
        route.slots.append(lower)
        upper.down.append(route)
        lower.up.append(route)
        return route

    def _order(self) -> None:
        """Order each row so that few lines cross: from many random starts, sort by the neighbours' average."""
        random = Random(0)  # the same picture every time
        found = []
        for _ in range(_STARTS):
            for side in (0, *(-1, 1) * _SWEEPS):
                for row in self.rows if side < 0 else reversed(self.rows):
                    _set_order(row, sorted(row, key=lambda slot: slot.middle(side)) if side else row)
                found.append((self._tangle(), [list(row) for row in self.rows]))
            for row in self.rows:
                random.shuffle(row)
        for row, best in zip(self.rows, min(found, key=lambda one: one[0])[1], strict=True):
            _set_order(row, best)
        for slot in itertools.chain(*self.rows):
            slot.up.sort(key=lambda route: route.step(slot, -1).place)
            slot.down.sort(key=lambda route: route.step(slot, 1).place)

    def _tangle(self) -> tuple[int, float]:
        """Return how many lines cross, and how far they lead aside."""
        crossed, aside = 0, 0.0
        for row in self.rows[:-1]:
            ends = [(slot.place, route.step(slot, 1).place) for slot in row for route in slot.down]
            crossed += sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in itertools.combinations(ends, 2))
            aside += sum(abs(start - end) for start, end in ends)
        return crossed, aside

    def _place(self) -> None:
        """Set the x of each slot: as near to its connected slots as its neighbours allow."""
        for sweep in range(160):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                for slot, x in zip(row, spread(row, [self._wanted(slot) for slot in row]), strict=True):
                    slot.x = x
        slots = list(itertools.chain(*self.rows))
        first = min(slot.x - slot.left for slot in slots)
        for slot in slots:
            slot.x += _MARGIN - first
        self.width = max(slot.x + slot.right for slot in slots) + _MARGIN

    def _wanted(self, slot: _Slot) -> tuple[float, float]:
        """Return the x that a slot prefers, and the weight of that preference; lanes prefer to be straight."""
        pulls: list[tuple[float, float]] = []
        for side, routes in ((-1, slot.up), (1, slot.down)):
            for route in routes:
                near = route.step(slot, side)
                weight = (1.0 if slot.state else 5.0) * (1.0 if near.state else 5.0)
                pulls.append((self.port(route, near, -side) - self.port(route, slot, side) + slot.x, weight))
        total = sum(weight for _, weight in pulls)
        return sum(x * weight for x, weight in pulls) / total, total

    def port(self, route: _Route, slot: _Slot, side: int) -> float:
        """Return the x where a route touches a slot: at its lower side (1) or its upper side (-1)."""
        routes = slot.down if side > 0 else slot.up
        room = min(26.0, (2 * slot.left - 24) / len(routes)) if slot.state else 0.0
        return slot.x + (routes.index(route) - (len(routes) - 1) / 2) * room

    def _tops(self) -> tuple[list[tuple[float, float]], float]:
        tops, at = [], _MARGIN + 78  # below the title and the start marker
        for number, row in enumerate(self.rows):
            high = _BOX if number % 2 == 0 else max((len(slot.lines) * _LINE + 6 for slot in row), default=_LINE)
            tops.append((at, at + high))
            at += high + _GAP
        return tops, at - _GAP + _MARGIN


def _ranks(contract: Contract, drawn: Mapping[Pair, object]) -> tuple[dict[str, int], set[Pair]]:
    """Return the row of each state (the longest path from the initial state), and the edges that lead back."""
    back, seen = set[Pair](), set[str]()

    def walk(state: str, above: frozenset[str]) -> None:
        seen.add(state)
        for source, target in drawn:
            if source == state and target in above | {state}:
                back.add((source, target))
            elif source == state and target not in seen:
                walk(target, above | {state})

    walk(contract.initial, frozenset())
    ranks = dict.fromkeys(contract.states, 0)
    for _ in contract.states:
        for source, target in drawn:
            if (source, target) not in back:
                ranks[target] = max(ranks[target], ranks[source] + 1)
    return ranks, back


def _set_order(row: list[_Slot], ordered: Sequence[_Slot]) -> None:
    row[:] = ordered
    for number, slot in enumerate(row):
        slot.place = (number + 0.5) / len(row)


def spread(row: Sequence[Placed], wanted: Sequence[tuple[float, float]]) -> Iterator[float]:
    """Yield the positions nearest to the wanted ones that keep the order of the row and do not overlap."""
    room = [0.0]
    for one, other in itertools.pairwise(row):
        room.append(room[-1] + one.right + other.left + 12)
    groups: list[tuple[float, float, int]] = []  # runs of touching slots: wanted position, weight, count
    for (want, weight), before in zip(wanted, room, strict=True):
        mean, count = want - before, 1
        while groups and groups[-1][0] > mean:
            last, heavy, many = groups.pop()
            mean = (mean * weight + last * heavy) / (weight + heavy)
            weight, count = weight + heavy, count + many
        groups.append((mean, weight, count))
    means = itertools.chain.from_iterable([mean] * count for mean, _, count in groups)
    return (mean + before for mean, before in zip(means, room, strict=True))


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text, rather too wide, because fonts differ."""
    narrow, broad = set("fijlrt.,:;[]() |"), set("mwMW—@")
    return size * sum(
        0.46 if c in narrow else 1.0 if c in broad or c >= "\u2e80" else 0.8 if c.isupper() else 0.67 for c in text
    )


def _wrapped(words: Sequence[str], most: int = 20) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= most:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def _render(contract: Contract, layout: _Layout) -> Iterator[str]:
    mark = f"tenure-{contract.name}"
    subtitle = f"contract {contract.name}, version {contract.version}"
    width = max(layout.width, text_width(contract.title, 15) + 2 * _MARGIN, text_width(subtitle, 11) + 2 * _MARGIN)
    ends = ", ".join(state for state, roles in contract.states.items() if "done" in roles)
    ways = "; ".join(f"{a} to {b} by {', '.join(triggers)}" for (a, b), triggers in contract.edges().items())
    # Not every SVG viewer knows custom properties, so the style writes each colour out, for light and dark mode.
    style = files("tenure.contracts").joinpath("diagram.css").read_text(encoding="utf-8")
    size = f'viewBox="0 0 {width:.0f} {layout.height:.0f}" width="{width:.0f}" height="{layout.height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="tenure-diagram" role="img" {size}'
    yield f'     aria-labelledby="{mark}-title {mark}-desc">'
    yield f'<title id="{mark}-title">{escape(contract.title)}</title>'
    yield f'<desc id="{mark}-desc">A job begins {contract.initial} and can end {ends}. {escape(ways)}.</desc>'
    yield f"<style>\n{style}</style>"
    yield f'<marker id="{mark}-arrow" refX="8.5" refY="4.5" markerWidth="9" markerHeight="9" orient="auto"'
    yield '     markerUnits="userSpaceOnUse"><path class="head" d="M0 0 L9 4.5 L0 9 z"/></marker>'
    yield '<rect class="paper" width="100%" height="100%"/>'
    yield f'<text class="title" x="{_MARGIN:.0f}" y="{_MARGIN + 8:.0f}">{escape(contract.title)}</text>'
    yield f'<text class="note" x="{_MARGIN:.0f}" y="{_MARGIN + 26:.0f}">{escape(subtitle)}</text>'
    yield f'<g transform="translate({(width - layout.width) / 2:.1f} 0)">'
    first, top = layout.boxes[contract.initial], layout.tops[0][0]
    yield f'<circle class="head" cx="{first.x:.1f}" cy="{top - 28:.1f}" r="5"/>'
    yield f'<path class="line" d="M{first.x:.1f} {top - 23:.1f} V{top:.1f}" marker-end="url(#{mark}-arrow)"/>'
    for route in layout.routes:
        yield from _edge(layout, route, mark)
    for state, triggers in layout.loops.items():
        yield from _loop(layout, state, triggers, mark)
    for state, slot in layout.boxes.items():
        yield from _state(state, contract.states[state], slot, layout.tops[slot.row][0])
    yield "</g>\n</svg>"


def _edge(layout: _Layout, route: _Route, mark: str) -> Iterator[str]:
    points: list[tuple[float, float]] = []
    for upper, lower in itertools.pairwise(route.slots):
        points.append((layout.port(route, upper, 1), layout.tops[upper.row][1]))
        points.append((layout.port(route, lower, -1), layout.tops[lower.row][0]))
    if route.back:
        points.reverse()
    down = -_STUB if route.back else _STUB  # a straight stub at both ends of the edge
    (x, y), (to_x, to_y) = points[0], points[-1]
    points = [(x, y), (x, y + down), *points[1:-1], (to_x, to_y - down), (to_x, to_y)]
    way = f"M{x:.1f} {y:.1f}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = (y + to_y) / 2
        way += f" C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    yield f'<g class="edge{" back" * route.back}" data-from="{route.pair[0]}" data-to="{route.pair[1]}">'
    yield f'<path class="line" d="{way}" marker-end="url(#{mark}-arrow)"/>'
    (slot,) = [slot for slot in route.slots if slot.lines]
    yield from _label(slot.lines, slot.x, sum(layout.tops[slot.row]) / 2, slot.left)
    yield "</g>"


def _label(lines: Sequence[str], x: float, middle: float, half: float) -> Iterator[str]:
    top, size = middle - len(lines) * _LINE / 2 - 2, f'width="{2 * half:.1f}" height="{len(lines) * _LINE + 4:.1f}"'
    yield f'<rect class="paper" x="{x - half:.1f}" y="{top:.1f}" {size}/>'
    for number, line in enumerate(lines):
        y = middle + (number - (len(lines) - 1) / 2) * _LINE + 4
        yield f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>'


def _loop(layout: _Layout, state: str, triggers: Sequence[str], mark: str) -> Iterator[str]:
    slot = layout.boxes[state]
    half = (slot.right - slot.left - 44) / 2
    side, middle = slot.x + slot.left, sum(layout.tops[slot.row]) / 2
    yield f'<g class="edge back" data-from="{state}" data-to="{state}">'
    yield f'<path class="line" d="M{side:.1f} {middle - 11:.1f} c40 -11 40 33 0 22" marker-end="url(#{mark}-arrow)"/>'
    yield from _label(_wrapped(triggers), side + 34 + half, middle, half)
    yield "</g>"


def _state(state: str, roles: Sequence[str], slot: _Slot, top: float) -> Iterator[str]:
    left, width = slot.x - slot.left, 2 * slot.left
    yield f'<g class="state {" ".join(roles)}" data-state="{state}">'
    yield f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_BOX:.0f}" rx="10"/>'
    if "done" in roles:
        yield f'<rect class="inner" x="{left + 4:.1f}" y="{top + 4:.1f}" width="{width - 8:.1f}" height="38" rx="7"/>'
    yield f'<text class="name" x="{slot.x:.1f}" y="{top + 21:.1f}" text-anchor="middle">{state}</text>'
    yield f'<text class="note" x="{slot.x:.1f}" y="{top + 36:.1f}" text-anchor="middle">{" or ".join(roles)}</text>'
    yield "</g>"
