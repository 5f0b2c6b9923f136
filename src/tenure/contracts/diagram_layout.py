"""Where the boxes, labels and lanes of a drawing stand, so that no line crosses a box or a label."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tenure.contracts.declaration import Contract

Pair = tuple[str, str]

BOX, LINE, MARGIN = 46.0, 15.0, 24.0
_LANE, _GAP = 14.0, 32.0
_STARTS, _SWEEPS = 40, 4
#: The widest number that `short_number` returns.
_WIDEST = "99.9 M"


class Placed(Protocol):
    """A thing that takes room to both sides of its place."""

    left: float
    right: float


@dataclass(eq=False, slots=True)
class Slot:
    """A place in a row: the box of a state, the label of an edge, or a lane that an edge passes through."""

    row: int
    left: float
    right: float
    state: str | None = None
    lines: Sequence[str] = ()
    x: float = 0.0
    place: float = 0.0  # position in its row, from 0 to 1
    up: list[Route] = field(default_factory=list)
    down: list[Route] = field(default_factory=list)

    def middle(self, side: int) -> float:
        """Return the average place of the connected slots above (-1) or below (1)."""
        near = [route.step(self, side).place for route in (self.up if side < 0 else self.down)] or [self.place]
        return sum(near) / len(near)


@dataclass(eq=False, slots=True)
class Route:
    """The slots of an edge, from the upper state to the lower one; a `back` edge is drawn upwards."""

    pair: Pair
    back: bool
    slots: list[Slot] = field(default_factory=list)

    def step(self, slot: Slot, by: int) -> Slot:
        """Return the slot before (-1) or after (1) this one."""
        return self.slots[self.slots.index(slot) + by]


class Layout:
    """The position of every box, label and lane."""

    def __init__(self, contract: Contract, *, with_counts: bool = False) -> None:
        self._with_counts = with_counts
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

    def _box(self, contract: Contract, state: str, row: int) -> Slot:
        note = state_note(contract.states[state], _WIDEST if self._with_counts else None)
        half = math.ceil(max(92.0, text_width(state, 14) + 28, text_width(note, 11) + 28)) / 2
        loop = 2 * self._half_label(self.lines(self.loops[state])) + 36 if state in self.loops else 0.0
        return Slot(row, half, half + loop, state)

    def _route(self, pair: Pair, triggers: Sequence[str], back: bool) -> Route:
        upper, lower = (self.boxes[state] for state in (reversed(pair) if back else pair))
        route = Route(pair, back, [upper])
        label_row = lower.row - 1 if back else upper.row + 1  # the label is near the start of the edge
        for row in range(upper.row + 1, lower.row):
            lines = self.lines(triggers) if row == label_row else ()
            half = self._half_label(lines) if lines else _LANE / 2
            self.rows[row].append(Slot(row, half, half, None, lines, up=[route], down=[route]))
            route.slots.append(self.rows[row][-1])
        route.slots.append(lower)
        upper.down.append(route)
        lower.up.append(route)
        return route

    def lines(self, triggers: Sequence[str]) -> list[str]:
        """The lines of a label; with counts, the last one is for the number."""
        return [*_wrapped(triggers), *([_WIDEST] if self._with_counts else [])]

    @staticmethod
    def _half_label(lines: Sequence[str]) -> float:
        return max(text_width(line, 12) / 2 + 4 for line in lines)

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
            slot.x += MARGIN - first
        self.width = max(slot.x + slot.right for slot in slots) + MARGIN

    def _wanted(self, slot: Slot) -> tuple[float, float]:
        """Return the x that a slot prefers, and the weight of that preference; lanes prefer to be straight."""
        pulls: list[tuple[float, float]] = []
        for side, routes in ((-1, slot.up), (1, slot.down)):
            for route in routes:
                near = route.step(slot, side)
                weight = (1.0 if slot.state else 5.0) * (1.0 if near.state else 5.0)
                pulls.append((self.port(route, near, -side) - self.port(route, slot, side) + slot.x, weight))
        total = sum(weight for _, weight in pulls)
        return sum(x * weight for x, weight in pulls) / total, total

    def port(self, route: Route, slot: Slot, side: int) -> float:
        """Return the x where a route touches a slot: at its lower side (1) or its upper side (-1)."""
        routes = slot.down if side > 0 else slot.up
        room = min(26.0, (2 * slot.left - 24) / len(routes)) if slot.state else 0.0
        return slot.x + (routes.index(route) - (len(routes) - 1) / 2) * room

    def _tops(self) -> tuple[list[tuple[float, float]], float]:
        tops, at = [], MARGIN + 78  # below the title and the start marker
        for number, row in enumerate(self.rows):
            high = BOX if number % 2 == 0 else max((len(slot.lines) * LINE + 6 for slot in row), default=LINE)
            tops.append((at, at + high))
            at += high + _GAP
        return tops, at - _GAP + MARGIN


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


def _set_order(row: list[Slot], ordered: Sequence[Slot]) -> None:
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


def state_note(roles: Sequence[str], number: str | None) -> str:
    """The second line of a state: its roles, and how many jobs are in it."""
    return " or ".join(roles) + ("" if number is None or "done" in roles else f": {number}")
