"""The drawing of a flow for terminals shows its nodes, its dependencies and what happened, within the width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

import pytest

from tenure.flows.text import draw
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

UP, DOWN, LEFT, RIGHT = "│╯╰├┤┴┼", "│╮╭├┤┬┼", "─╮╯┤┴┬┼", "─╭╰├┴┬┼"
SIGNS = set("✓●○✗⊘–")


def drawn(nodes: Sequence[FlowNode], *, width: int | None = None, ascii_only: bool = False) -> list[str]:
    return list(draw(flow(nodes), nodes, NOW, width=width, ascii_only=ascii_only))


def body(nodes: Sequence[FlowNode], *, width: int | None = None, ascii_only: bool = False) -> list[str]:
    """The lines of the nodes: between the title and the notes."""
    lines = drawn(nodes, width=width, ascii_only=ascii_only)[2:]
    return lines[: lines.index("")] if "" in lines else lines


class Reader:
    """Follows the lines of a drawing as a person does: downwards, and sideways to a node or to another line."""

    def __init__(self, lines: Sequence[str], names: Sequence[str]) -> None:
        self.rows = [line[2:] for line in lines]
        self.names = [next((name for name in names if f" {name} " in f" {row} "), None) for row in self.rows]
        self.signs = [next((x for x, sign in enumerate(row) if sign in SIGNS), -2) for row in self.rows]

    def at(self, row: int, x: int) -> str:
        return self.rows[row][x] if row < len(self.rows) and 0 <= x < len(self.rows[row]) else " "

    def column(self, row: int) -> int:
        """The column of a node: of its sign, or of the line before the sign where it is one of several; -1: none."""
        x = self.signs[row] if row < len(self.rows) else -1
        return x - x % 2 if x >= 0 else -1

    def is_bundled(self, row: int) -> bool:
        return row < len(self.rows) and self.signs[row] % 2 == 1

    def dependencies(self) -> set[tuple[str, str]]:
        found = set()
        for row, name in enumerate(self.names):
            if name is not None:
                *_, last = self.bundle(row)
                column = self.column(row)
                # The line of several nodes goes on below the last of them, if it does.
                if not self.is_bundled(last) or self.at(last, column) in DOWN:
                    found |= {(name, child) for child in self.children(last + 1, column)}
        return found

    def bundle(self, row: int) -> Iterator[int]:
        """This row of a node, and those of the nodes below it at the same line."""
        yield row
        while self.is_bundled(row) and self.is_bundled(row + 1) and self.column(row + 1) == self.column(row):
            row += 1
            yield row

    def children(self, row: int, x: int) -> Iterator[str]:
        """The nodes that a line from above leads to."""
        here = self.at(row, x)
        if self.column(row) == x:
            yield from (self.names[each] or "" for each in self.bundle(row))
        elif here in UP:
            yield from self.sideways(row, x, 1) if here in RIGHT else ()
            yield from self.sideways(row, x, -1) if here in LEFT else ()
            yield from self.children(row + 1, x) if here in DOWN else ()

    def sideways(self, row: int, x: int, step: int) -> Iterator[str]:
        """The nodes that a line leads to, to the right (1) or to the left (-1)."""
        target = self.column(row)
        if target >= 0:
            if (target - x) * step > 0:
                yield from (self.names[each] or "" for each in self.bundle(row))
            return
        x += step
        while self.at(row, x) in "─│":
            x += step
        yield from self.children(row + 1, x) if self.at(row, x) in DOWN else ()


@pytest.mark.parametrize("seed", range(150))
def test_a_reader_of_the_lines_finds_exactly_the_dependencies(seed: int) -> None:
    nodes = at_random(seed, most=6 + seed % 12)
    lines = body(nodes)
    if any(line.lstrip(" ✓").startswith("layer") for line in lines):
        pytest.skip("needs more columns than a drawing has")
    reader = Reader(drawn(nodes)[2:-2], [one.name for one in nodes])
    assert {name for name in reader.names if name} == {one.name for one in nodes}
    assert reader.dependencies() == dependencies(nodes)


def test_a_mapped_node_is_one_line_with_counts() -> None:
    lines = body(extract_transform_load())
    assert lines == [
        "  ✓  extract            1.5 s  succeeded, job 1",
        "  ●  transform × 1,000  18 s   997 succeeded, 3 running",
        "  ○  load                      waits for transform × 1,000",
    ]


def test_a_cleanup_node_stands_apart_from_the_others() -> None:
    lines = drawn(extract_transform_load(items=5))
    place = lines.index("  ○  tidy                  waits for the end; runs if a node ends badly")
    assert lines[place - 1] == ""


def test_nodes_with_the_same_parents_and_children_stand_at_one_line() -> None:
    nodes = [node(1, "a"), *(node(number, f"b{number}", parents=[1]) for number in (2, 3)), waiting(4, "c", [2, 3])]
    assert body(nodes) == [
        "  ✓  a   1 s  succeeded, job 1",
        "  ├✓ b2  1 s  succeeded, job 2",
        "  ├✓ b3  1 s  succeeded, job 3",
        "  ○  c        waiting",
    ]


def test_the_title_says_how_far_the_flow_is() -> None:
    nodes = [node(1, "a"), node(2, "b", "failed"), running(3, "c")]
    assert drawn(nodes)[0] == "flow 7, nightly: running for 20 s; 2 of 3 nodes ended, 1 badly"
    ended = nodes[:2]
    assert drawn(ended)[0] == "flow 7, nightly: running after 20 s; 2 of 2 nodes ended, 1 badly"


def test_a_waiting_node_names_the_parents_that_have_not_ended() -> None:
    parents = [node(1, "done"), *(running(number, f"p{number}") for number in range(2, 7))]
    line = body([*parents, waiting(9, "last", range(1, 7))])[-1]
    assert line.endswith("waits for p2, p3, p4 and 2 more")


def test_failed_members_are_named_with_their_reason() -> None:
    nodes = extract_transform_load(items=30, live=15)
    failed = [
        one._replace(state="failed", error="lost its disk") if one.part_of and one.state == "started" else one
        for one in nodes
    ]
    lines = drawn(failed)
    assert "  ✗ transform[15]: failed, job 25: lost its disk" in lines
    assert "  and 5 more failed nodes" in lines
    assert sum("lost its disk" in line for line in lines) == 10


def test_twenty_nodes_have_a_line_each() -> None:
    nodes = [node(number, f"step {number}", parents=[number - 1] if number > 1 else []) for number in range(1, 21)]
    assert [line.split("  ")[2] for line in body(nodes)] == [one.name for one in nodes]


def test_many_siblings_are_folded_to_a_count() -> None:
    nodes = [node(1, "a"), *(node(number, f"b{number}", parents=[1]) for number in range(2, 102))]
    nodes += [waiting(200, "c", range(2, 102))]
    assert body(nodes) == [
        "  ✓  a                       1 s  succeeded, job 1",
        "  ✓  100 nodes of type work  1 s  100 succeeded",
        "  ○  c                            waiting",
    ]


def test_ten_thousand_nodes_are_drawn_as_a_few_layers() -> None:
    lines = body(layered(100, 100))
    assert len(lines) == 12
    assert lines[0] == "  ✓  layers 1 to 9: 900 nodes of type work    9 s  900 succeeded"
    assert lines[5].endswith("layers 46 to 54: 900 nodes of type work  5 s  500 succeeded, 400 waiting")
    counted = [re.search(r": ([\d,]+) nodes", line) for line in lines]
    assert sum(int(found[1].replace(",", "")) for found in counted if found) == 10_000


def test_a_flow_whose_lines_need_many_columns_is_drawn_as_layers() -> None:
    nodes = [node(number, f"a{number}") for number in range(1, 26)]
    nodes += [
        node(30 + number, f"b{number}", parents=[(number * step) % 25 + 1 for step in (1, 3, 7)])
        for number in range(1, 26)
    ]
    assert [line.split("  ")[2] for line in body(nodes)] == [f"layer {n}: 25 nodes of type work" for n in (1, 2)]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    nodes = [
        node(1, "日本語" * 30),
        *extract_transform_load(items=3)[1:],
        node(50, "x" * 200, "failed", error="y" * 500),
    ]
    for line in drawn(nodes, width=width):
        wide = sum(1 + (unicodedata.east_asian_width(sign) in "WF") for sign in line)
        assert wide <= width
    whole = drawn(nodes)
    assert any("y" * 200 in line for line in whole)


def test_names_are_aligned_by_their_width_and_cannot_command_the_terminal() -> None:
    lines = body([node(1, "日本"), node(2, "\x1b[31mred\n\u202e"), node(3, "e\u0301")])
    starts = [line.index("1 s") + sum(unicodedata.east_asian_width(sign) in "WF" for sign in line) for line in lines]
    starts[2] -= 1  # a combining accent takes no column
    assert len(set(starts)) == 1
    assert "[31mred " in lines[1]
    assert "\x1b" not in "".join(lines)


def test_without_utf_8_every_line_is_ascii() -> None:
    nodes = [*at_random(3), node(90, "naïve → 日本", "failed")]
    lines = drawn(nodes, ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert any("+-" in line for line in lines)
    assert "x" in next(line for line in lines if "na?ve -> ??" in line).split()


def test_one_node() -> None:
    assert drawn([waiting(1, "only")]) == [
        "flow 7, nightly: running for 20 s; 0 of 1 nodes ended",
        "",
        "  ○  only    waiting",
    ]
