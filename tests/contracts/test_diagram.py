"""A drawn contract shows exactly its declaration: every edge and trigger, with nothing overlapping or cut off."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.contracts.diagram import CountedDrawing, Counts, short_number, to_mermaid, to_svg
from tenure.contracts.notation import path, states

_STATES = states(todo="ready", taken="leased", doing="active", later="waiting", end="done", given_up="done")
#: A state named as a word of Mermaid's, an edge from a state to itself, a path asked for by name.
ERRANDS = replace(
    BUILT_IN["phase27"],
    name="errands",
    title="Errands & <chores>",
    states=_STATES,
    initial="todo",
    events=(),
    views=BUILT_IN["phase27"].views[:1],
    paths=(
        path("claim", "todo > taken"),
        path("start", "taken > doing"),
        path("reclaim", "taken|doing > taken"),
        path("succeed", "doing > end"),
        path("retry", "doing > later", due="backoff"),
        path("promote", "later > todo", due="now"),
        path("exhaust", "doing > given_up"),
        path("exhaust", "doing > end", choice="end"),
        path("expire_at_cap", "taken|doing > given_up"),
    ),
)

#: The widest numbers.
FULL = Counts(
    dict.fromkeys([state for one in (*BUILT_IN.values(), ERRANDS) for state in one.states], 99_900_000),
    dict.fromkeys([pair for one in (*BUILT_IN.values(), ERRANDS) for pair in one.edges()], 99_900_000),
    "in the last hour", lambda state: f"/jobs?state={state}&x=1", lambda pair: f"/moves?to={pair[1]}",
)  # fmt: skip


def counted(contract: Contract) -> str:
    """A drawing with numbers, as wide as they can be."""
    return CountedDrawing(contract).to_svg(FULL)


drawn_with_and_without_counts = pytest.mark.parametrize("to_svg", [to_svg, counted])
every_contract = pytest.mark.parametrize("contract", [*BUILT_IN.values(), ERRANDS], ids=lambda one: one.name)


class Rect(NamedTuple):
    """Where a rectangle stands, without the shift of the whole drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rect) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Drawing:
    """What stands in an SVG."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        # The first group holds everything but the title.
        (self.all,) = [each for each in self.root if each.tag.endswith("}g")]
        # With counts, a link stands around what a group holds.
        self.groups = [*self.all]
        for each in self.groups:
            for link in [part for part in each if part.tag.endswith("}a")]:
                each.extend(link)
                each.remove(link)
        self.states = {name: each for each in self.groups if (name := each.get("data-state"))}
        self.edges = {
            (source, target): each
            for each in self.groups
            if (source := each.get("data-from")) and (target := each.get("data-to"))
        }

    def boxes(self) -> dict[str, Rect]:
        return {name: rect(each, "box") for name, each in self.states.items()}

    def said(self) -> dict[tuple[str, str], Rect]:
        return {pair: rect(each, "paper") for pair, each in self.edges.items()}


def rect(group: ElementTree.Element, kind: str) -> Rect:
    (found,) = [each for each in group if each.tag.endswith("}rect") and each.get("class") == kind]
    x, y, width, height = (float(found.get(name, "")) for name in ("x", "y", "width", "height"))
    assert width > 6 * max(len(line) for line in words(group)), "too narrow for its words"
    assert height > 13 * len(words(group)), "too low for its words"
    return Rect(x, y, x + width, y + height)


def words(element: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in element.iter() if each.tag.endswith("}text")]


def walked(edge: ElementTree.Element) -> list[tuple[float, float]]:
    """Many points of an edge's line."""
    (line,) = [each for each in edge if each.tag.endswith("}path")]
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", line.get("d", ""))]
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    if " c" in line.get("d", ""):  # a loop is drawn by steps from its beginning
        points = [points[0], *((points[0][0] + x, points[0][1] + y) for x, y in points[1:])]
    found: list[tuple[float, float]] = []
    for start in range(0, len(points) - 1, 3):
        a, b, c, d = points[start : start + 4]
        for step in range(21):
            t = step / 20
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            x, y = (sum(w * p[axis] for w, p in zip(weights, (a, b, c, d), strict=True)) for axis in (0, 1))
            found.append((x, y))
    return found


def mermaid_edges(text: str) -> dict[tuple[str, str], list[str]]:
    """The edges of a Mermaid text, by the names that people see."""
    names = {known: state for state, known in re.findall(r'state "(\w+)" as (\w+)', text)}
    return {
        (names.get(source, source), names.get(target, target)): triggers.split(", ")
        for source, target, triggers in re.findall(r"^ +(\w+) --> (\w+): (.+)$", text, re.MULTILINE)
    }


@every_contract
def test_mermaid_has_every_edge_with_its_triggers_and_no_other(contract: Contract) -> None:
    edges = mermaid_edges(to_mermaid(contract))
    assert edges.keys() == contract.edges().keys()
    assert {said.split(" [")[0] for triggers in edges.values() for said in triggers} == contract.triggers()
    for way in contract.paths:
        said = f"{way.trigger} [{way.choice}]" if way.choice else way.trigger
        for source in way.sources:
            assert said in edges[source, way.hops[0].state]
        for before, after in pairwise(way.hops):
            assert said in edges[before.state, after.state]


@every_contract
def test_mermaid_begins_at_the_initial_state_and_ends_at_the_done_ones(contract: Contract) -> None:
    text = to_mermaid(contract)
    assert text.startswith("stateDiagram-v2\n")
    assert re.findall(r"\[\*\] --> (\w+)", text) == [contract.initial]
    done = [state for state, roles in contract.states.items() if "done" in roles]
    assert [found.rstrip("_") for found in re.findall(r"(\w+) --> \[\*\]", text)] == done


def test_mermaid_never_uses_a_word_of_its_own_as_a_state() -> None:
    text = to_mermaid(ERRANDS)
    assert 'state "end" as end_' in text
    assert not re.search(r"\bend\b(?!\")", text.replace("[end]", ""))


@every_contract
def test_svg_shows_every_state_with_its_role_and_every_edge_with_its_triggers(contract: Contract) -> None:
    drawing = Drawing(to_svg(contract))
    assert drawing.states.keys() == contract.states.keys()
    for state, roles in contract.states.items():
        assert words(drawing.states[state]) == [state, " or ".join(roles)]
    assert drawing.edges.keys() == contract.edges().keys()
    for pair, triggers in contract.edges().items():
        assert " ".join(words(drawing.edges[pair])) == ", ".join(triggers)


@drawn_with_and_without_counts
@every_contract
def test_svg_nothing_overlaps(contract: Contract, to_svg: Callable[[Contract], str]) -> None:
    drawing = Drawing(to_svg(contract))
    rects = [*drawing.boxes().items(), *drawing.said().items()]
    for (one, here), (other, there) in combinations(rects, 2):
        assert not here.overlaps(there), f"{one} lies on {other}"


@drawn_with_and_without_counts
@every_contract
def test_svg_no_line_runs_through_a_box_or_another_label(contract: Contract, to_svg: Callable[[Contract], str]) -> None:
    drawing = Drawing(to_svg(contract))
    for pair, edge in drawing.edges.items():
        foreign = {**drawing.boxes(), **{str(other): said for other, said in drawing.said().items() if other != pair}}
        for x, y in walked(edge):
            point = Rect(x - 0.01, y - 0.01, x + 0.01, y + 0.01)
            for name, space in foreign.items():
                inside = Rect(space.left + 0.1, space.top + 0.1, space.right - 0.1, space.bottom - 0.1)
                assert not point.overlaps(inside), f"{pair} runs through {name}"


@drawn_with_and_without_counts
@every_contract
def test_svg_lines_begin_and_end_at_their_states(contract: Contract, to_svg: Callable[[Contract], str]) -> None:
    drawing = Drawing(to_svg(contract))
    boxes = drawing.boxes()
    for (source, target), edge in drawing.edges.items():
        for state, (x, y) in ((source, walked(edge)[0]), (target, walked(edge)[-1])):
            box = boxes[state]
            assert box.left - 0.1 <= x <= box.right + 0.1
            assert box.top - 0.1 <= y <= box.bottom + 0.1


@drawn_with_and_without_counts
@every_contract
def test_svg_nothing_is_cut_off(contract: Contract, to_svg: Callable[[Contract], str]) -> None:
    drawing = Drawing(to_svg(contract))
    _, _, width, height = (float(number) for number in drawing.root.get("viewBox", "").split())
    (shift,) = re.findall(r"translate\(([\d.]+) 0\)", drawing.all.get("transform", ""))
    points = [point for edge in drawing.edges.values() for point in walked(edge)]
    rects = [*drawing.boxes().values(), *drawing.said().values()]
    across = [x for x, _ in points] + [x for each in rects for x in (each.left, each.right)]
    down = [y for _, y in points] + [y for each in rects for y in (each.top, each.bottom)]
    assert min(across) + float(shift) >= 0
    assert max(across) + float(shift) <= width
    assert min(down) >= 50, "under the title"
    assert max(down) <= height


@every_contract
def test_svg_stands_by_itself_in_light_and_dark_and_has_a_name(contract: Contract) -> None:
    text = to_svg(contract)
    drawing = Drawing(text)
    assert drawing.root.get("role") == "img"
    named = (drawing.root.get("aria-labelledby") or "").split()
    texts = {each.get("id"): each.text or "" for each in drawing.root if each.get("id") in named}
    assert texts[named[0]] == contract.title
    assert all(state in texts[named[1]] for state in contract.states)
    assert "prefers-color-scheme: dark" in text
    rest = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"<script|https?:|href|@import|@font-face|url\((?!#)", rest)


def test_svg_roles_differ_by_more_than_colour() -> None:
    """Borders: thick, dashed, dotted; a done state has a second one."""
    text = to_svg(BUILT_IN["simple"])
    for role, border in {
        "active": "stroke-width: 3",
        "waiting": "dasharray: 7 4",
        "settling": "dasharray: 2 3",
    }.items():
        assert re.search(rf"\.{role} \.box {{ [^}}]*{border}", text)
    inner = {
        name for name, each in Drawing(text).states.items() if [part for part in each if part.get("class") == "inner"]
    }
    assert inner == {"SUCCESS", "FAILED", "CANCELLED"}


def test_svg_is_the_same_every_time_and_two_can_share_a_page() -> None:
    one, other = to_svg(BUILT_IN["standard"]), to_svg(BUILT_IN["simple"])
    assert to_svg(BUILT_IN["standard"]) == one
    assert not set(re.findall(r'id="([^"]+)"', one)) & set(re.findall(r'id="([^"]+)"', other))


def test_numbers_stand_on_states_and_edges_which_are_links() -> None:
    drawing = Drawing(counted(BUILT_IN["standard"]))
    assert drawing.root.get("role") == "group"
    assert words(drawing.states["queued"]) == ["queued", "ready: 99.9 M"]
    assert words(drawing.states["succeeded"]) == ["succeeded", "done"], "nobody counts what has ended"
    assert words(drawing.edges["queued", "running"]) == ["claim", "99.9 M"]
    some = CountedDrawing(BUILT_IN["standard"]).to_svg(
        Counts({"queued": 3}, {("queued", "running"): 1_234}, "now", FULL.state_link, FULL.edge_link)
    )
    assert "queued to running: 1,234 now" in some
    assert 'href="/jobs?state=queued&amp;x=1" aria-label="queued, ready: 3: its jobs"' in some
    assert words(Drawing(some).states["running"]) == ["running", "active"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10.0 k"), (99_949, "99.9 k"), (123_456, "123 k"), (999_999, "999 k"),
     (1_250_000, "1.2 M"), (450_000_000, "450 M")],
)  # fmt: skip
def test_number_in_a_drawing_has_at_most_six_characters(number: int, text: str) -> None:
    assert short_number(number) == text
