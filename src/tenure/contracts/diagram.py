"""A diagram of a contract, drawn from its declaration: Mermaid text, or a self-contained SVG.

The SVG flows downwards. States are in rows, below the states that lead to them; a row of labels is between two rows
of states. Every edge has its own lane through each row that it crosses, so no line crosses a box or a label. An edge
that leads back uses such a lane upwards and is dashed. The border and the text of a box show the role.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from tenure.contracts.declaration import Contract
from tenure.contracts.diagram_layout import BOX, LINE, MARGIN, Layout, Pair, Route, Slot, state_note, text_width

#: How far an edge leads straight away from a box.
_STUB = 9.0
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
    return "\n".join(_render(contract, Layout(contract))) + "\n"


class CountedDrawing:
    """A drawing with numbers: it is laid out once, with room for any number, and rendered again and again."""

    def __init__(self, contract: Contract) -> None:
        self._contract, self._layout = contract, Layout(contract, with_counts=True)

    def to_svg(self, counts: Counts) -> str:
        """Return the lifecycle with these numbers; states and edges are links."""
        return "\n".join(_render(self._contract, self._layout, counts)) + "\n"


def short_number(number: int) -> str:
    """Return a number in at most six characters: up to 9,999 as it is, else in thousands or millions."""
    if number < 10_000:
        return f"{number:,}"
    size, unit = (1_000, "k") if number < 1_000_000 else (1_000_000, "M")
    return f"{number / size:.1f} {unit}" if number < 100 * size else f"{number // size:,} {unit}"


@dataclass(frozen=True, slots=True)
class Counts:
    """What a drawing with numbers shows, and where its states and edges lead."""

    #: How many jobs are in a state now; a state that is missing shows no number.
    live: Mapping[str, int]
    #: How many jobs moved along an edge, and when: `in the last hour`.
    moves: Mapping[Pair, int]
    time: str
    state_link: Callable[[str], str]
    edge_link: Callable[[Pair], str]


def _render(contract: Contract, layout: Layout, counts: Counts | None = None) -> Iterator[str]:
    mark = f"tenure-{contract.name}"
    subtitle = f"contract {contract.name}, version {contract.version}"
    width = max(layout.width, text_width(contract.title, 15) + 2 * MARGIN, text_width(subtitle, 11) + 2 * MARGIN)
    ends = ", ".join(state for state, roles in contract.states.items() if "done" in roles)
    ways = "; ".join(f"{a} to {b} by {', '.join(triggers)}" for (a, b), triggers in contract.edges().items())
    # Not every SVG viewer knows custom properties, so the style writes each colour out, for light and dark mode.
    style = files("tenure.contracts").joinpath("diagram.css").read_text(encoding="utf-8")
    size = f'viewBox="0 0 {width:.0f} {layout.height:.0f}" width="{width:.0f}" height="{layout.height:.0f}"'
    role = "img" if counts is None else "group"  # an image may hold no links
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="tenure-diagram" role="{role}" {size}'
    yield f'     aria-labelledby="{mark}-title {mark}-desc">'
    yield f'<title id="{mark}-title">{escape(contract.title)}</title>'
    yield f'<desc id="{mark}-desc">A job begins {contract.initial} and can end {ends}. {escape(ways)}.</desc>'
    yield f"<style>\n{style}</style>"
    yield f'<marker id="{mark}-arrow" refX="8.5" refY="4.5" markerWidth="9" markerHeight="9" orient="auto"'
    yield '     markerUnits="userSpaceOnUse"><path class="head" d="M0 0 L9 4.5 L0 9 z"/></marker>'
    yield '<rect class="paper" width="100%" height="100%"/>'
    yield f'<text class="title" x="{MARGIN:.0f}" y="{MARGIN + 8:.0f}">{escape(contract.title)}</text>'
    yield f'<text class="note" x="{MARGIN:.0f}" y="{MARGIN + 26:.0f}">{escape(subtitle)}</text>'
    yield f'<g transform="translate({(width - layout.width) / 2:.1f} 0)">'
    first, top = layout.boxes[contract.initial], layout.tops[0][0]
    yield f'<circle class="head" cx="{first.x:.1f}" cy="{top - 28:.1f}" r="5"/>'
    yield f'<path class="line" d="M{first.x:.1f} {top - 23:.1f} V{top:.1f}" marker-end="url(#{mark}-arrow)"/>'
    for route in layout.routes:
        yield from _edge(layout, route, mark, counts)
    for state in layout.loops:
        yield from _loop(layout, state, mark, counts)
    for state, slot in layout.boxes.items():
        yield from _state(state, contract.states[state], slot, layout.tops[slot.row][0], counts)
    yield "</g>\n</svg>"


def _edge(layout: Layout, route: Route, mark: str, counts: Counts | None) -> Iterator[str]:
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
    (slot,) = [slot for slot in route.slots if slot.lines]
    line = f'<path class="line" d="{way}" marker-end="url(#{mark}-arrow)"/>'
    moves = None if counts is None else counts.moves.get(route.pair, 0)
    label = _label(slot.lines, slot.x, sum(layout.tops[slot.row]) / 2, slot.left, moves)
    yield from _edge_group(route.pair, [line, *label], counts, back=route.back)


def _edge_group(pair: Pair, parts: Sequence[str], counts: Counts | None, *, back: bool) -> Iterator[str]:
    yield f'<g class="edge{" back" * back}" data-from="{pair[0]}" data-to="{pair[1]}">'
    if counts is not None:
        # The table below the drawing has the same links for the keyboard.
        yield f'<a href="{escape(counts.edge_link(pair))}" tabindex="-1">'
        yield f"<title>{pair[0]} to {pair[1]}: {counts.moves.get(pair, 0):,} {counts.time}</title>"
    yield from parts
    yield "</g>" if counts is None else "</a></g>"


def _label(lines: Sequence[str], x: float, middle: float, half: float, moves: int | None) -> Iterator[str]:
    """A label on paper. With moves, its last line is kept for their number; none stands there for 0."""
    top, size = middle - len(lines) * LINE / 2 - 2, f'width="{2 * half:.1f}" height="{len(lines) * LINE + 4:.1f}"'
    yield f'<rect class="paper" x="{x - half:.1f}" y="{top:.1f}" {size}/>'
    for number, line in enumerate(lines):
        y = middle + (number - (len(lines) - 1) / 2) * LINE + 4
        kind = "label"
        if moves is not None and number == len(lines) - 1:
            kind, line = "label count", short_number(moves) if moves else ""
        yield f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>'


def _loop(layout: Layout, state: str, mark: str, counts: Counts | None) -> Iterator[str]:
    slot, pair = layout.boxes[state], (state, state)
    half = (slot.right - slot.left - 44) / 2
    side, middle = slot.x + slot.left, sum(layout.tops[slot.row]) / 2
    line = f'<path class="line" d="M{side:.1f} {middle - 11:.1f} c40 -11 40 33 0 22" marker-end="url(#{mark}-arrow)"/>'
    moves = None if counts is None else counts.moves.get(pair, 0)
    label = _label(layout.lines(layout.loops[state]), side + 34 + half, middle, half, moves)
    yield from _edge_group(pair, [line, *label], counts, back=True)


def _state(state: str, roles: Sequence[str], slot: Slot, top: float, counts: Counts | None) -> Iterator[str]:
    note = state_note(roles, short_number(counts.live[state]) if counts and state in counts.live else None)
    left, width = slot.x - slot.left, 2 * slot.left
    yield f'<g class="state {" ".join(roles)}" data-state="{state}">'
    if counts is not None:
        yield f'<a href="{escape(counts.state_link(state))}" aria-label="{state}, {note}: its jobs">'
    yield f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX:.0f}" rx="10"/>'
    if "done" in roles:
        yield f'<rect class="inner" x="{left + 4:.1f}" y="{top + 4:.1f}" width="{width - 8:.1f}" height="38" rx="7"/>'
    yield f'<text class="name" x="{slot.x:.1f}" y="{top + 21:.1f}" text-anchor="middle">{state}</text>'
    yield f'<text class="note" x="{slot.x:.1f}" y="{top + 36:.1f}" text-anchor="middle">{note}</text>'
    yield "</g>" if counts is None else "</a></g>"
