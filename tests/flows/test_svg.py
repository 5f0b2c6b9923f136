"""The picture of a flow shows its nodes, their states and every dependency, with nothing overlapping or cut off."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import combinations
from xml.etree import ElementTree

import pytest

from tenure.flows.svg import to_svg
from tenure.jobs.flow import FlowNode
from tests.flows.examples import (
    NOW,
    at_random,
    dependencies,
    extract_transform_load,
    flow,
    layered,
    node,
    running,
    waiting,
)

Element = ElementTree.Element
Box = tuple[float, float, float, float]


class Picture:
    """What stands in an SVG."""

    def __init__(self, nodes: Sequence[FlowNode], name: str = "nightly") -> None:
        self.text = to_svg(flow(nodes, name=name), nodes, NOW)
        self.root = ElementTree.fromstring(self.text)
        groups = [each for each in self.root if each.tag.endswith("}g")]
        self.nodes = {words(each)[0]: each for each in groups if "node" in kinds(each)}
        self.arrows = [each for each in groups if "arrow" in kinds(each)]

    def size(self) -> tuple[float, float]:
        return float(self.root.get("width", "")), float(self.root.get("height", ""))

    def boxes(self) -> dict[str, Box]:
        found = {}
        for name, group in self.nodes.items():
            (rect,) = [each for each in group if each.tag.endswith("}rect")]
            x, y, width, height = (float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
            found[name] = (x, y, x + width, y + height)
        return found

    def dependencies(self) -> set[tuple[str, str]]:
        """What the arrows connect."""
        return {self.ends(arrow) for arrow in self.arrows}

    def ends(self, arrow: Element) -> tuple[str, str]:
        """The box at the right of which an arrow begins, and the one at the left of which it ends."""
        points = line(arrow)
        boxes = self.boxes()
        start = [
            name for name, box in boxes.items() if abs(box[2] - points[0][0]) < 0.3 and box[1] < points[0][1] < box[3]
        ]
        end = [
            name for name, box in boxes.items() if abs(box[0] - points[-1][0]) < 0.3 and box[1] < points[-1][1] < box[3]
        ]
        assert len(start) == len(end) == 1
        return start[0], end[0]


def kinds(element: Element) -> list[str]:
    return (element.get("class") or "").split()


def words(element: Element) -> list[str]:
    return [each.text or "" for each in element if each.tag.endswith("}text")]


def line(arrow: Element) -> list[tuple[float, float]]:
    """The ends of the curves of an arrow, and their control points."""
    (path,) = arrow
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def curve(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Many points of an arrow."""
    found = []
    for start in range(0, len(points) - 1, 3):
        a, b, c, d = points[start : start + 4]
        for step in range(21):
            t = step / 20
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            x, y = (sum(w * p[axis] for w, p in zip(weights, (a, b, c, d), strict=True)) for axis in (0, 1))
            found.append((x, y))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_every_dependency_is_an_arrow_that_crosses_no_box(seed: int) -> None:
    nodes = at_random(seed)
    picture = Picture(nodes)
    assert picture.nodes.keys() == {one.name for one in nodes}
    assert picture.dependencies() == dependencies(nodes)
    assert len(picture.arrows) == len(dependencies(nodes))
    boxes, (width, height) = picture.boxes(), picture.size()
    for one, other in combinations(boxes.values(), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert all(0 < box[0] < box[2] < width and 0 < box[1] < box[3] < height for box in boxes.values())
    for arrow in picture.arrows:
        for x, y in curve(line(arrow)):
            assert not any(box[0] + 1 < x < box[2] - 1 and box[1] < y < box[3] for box in boxes.values())


def test_a_box_shows_the_state_and_the_duration() -> None:
    picture = Picture([node(1, "a", took=1.5), node(2, "b", "failed"), running(3, "c", at=5), waiting(4, "d", [3])])
    assert {name: words(each)[1] for name, each in picture.nodes.items()} == {
        "a": "✓ succeeded · 1.5 s",
        "b": "✗ failed · 1 s",
        "c": "● running · 15 s",
        "d": "○ waiting",
    }
    assert {name: kinds(each)[1] for name, each in picture.nodes.items()} == {
        "a": "succeeded",
        "b": "failed",
        "c": "started",
        "d": "waiting",
    }


def test_the_critical_path_is_marked() -> None:
    nodes = [
        node(1, "a"),
        node(2, "b", parents=[1], took=2),
        node(3, "c", parents=[1], took=3),
        node(4, "d", parents=[2, 3]),
    ]
    picture = Picture(nodes)
    assert {name for name, each in picture.nodes.items() if "critical" in kinds(each)} == {"a", "c", "d"}
    marked = {picture.ends(arrow) for arrow in picture.arrows if "critical" in kinds(arrow)}
    assert marked == {("a", "c"), ("c", "d")}
    assert "Critical path: 5 s: a → c → d" in words(picture.root)


def test_a_mapped_node_is_one_box_with_counts_and_a_cleanup_node_stands_below() -> None:
    picture = Picture(extract_transform_load())
    assert words(picture.nodes["transform × 1,000"])[1] == "● 997 succeeded, 3 running · 18 s"
    boxes = picture.boxes()
    assert boxes["tidy"][1] > max(box[3] for name, box in boxes.items() if name != "tidy")


def test_ten_thousand_nodes_are_a_small_picture_made_quickly() -> None:
    nodes = layered(100, 100)
    Picture(layered(2, 2))
    began = time.process_time()
    picture = Picture(nodes)
    assert len(picture.nodes) == 12
    assert len(picture.text) < 40_000
    assert time.process_time() - began < 10


def test_many_long_arrows_are_folded() -> None:
    chain = [node(number, f"n{number}", parents=range(1, number)) for number in range(1, 61)]
    assert len(Picture(chain).nodes) == 12


def test_odd_names_are_escaped_and_shortened() -> None:
    nodes = [node(1, '<script>alert("x")</script> & co'), node(2, "日本語\x01\x1b[31m" + "y" * 150)]
    picture = Picture(nodes, name="<b>&\x00")
    names = [words(each)[0] for each in picture.nodes.values()]
    assert names[0].startswith("<script>alert")
    assert all(len(name) <= 32 for name in names)
    assert not [each for each in picture.root.iter() if each.tag.endswith("}script")]
    whole = [each.text for group in picture.nodes.values() for each in group if each.tag.endswith("}title")]
    assert whole == [nodes[0].name, "日本語 [31m" + "y" * 150]


def test_the_picture_needs_nothing_else_and_suits_light_and_dark_pages() -> None:
    text = Picture(extract_transform_load(items=4)).text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "url(#" in text
    assert "url(h" not in text


def test_only_a_cleanup_node() -> None:
    picture = Picture([node(1, "tidy", is_cleanup=True)])
    (box,) = picture.boxes().values()
    assert box[3] < picture.size()[1]
