"""Render the statements that have variants: `python -m tests.postgres.render` writes them from queries/templates/.

A template is SQL with two kinds of marked lines:

    --word: text       the line is `text` in variants that have this word; other variants do not have the line
    --include: name    the lines of templates/name.part

Every rendered file is whole, valid SQL and is checked in. A test compares it with its template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

QUERIES = Path(__file__).parents[2] / "src" / "tenure" / "postgres" / "queries"

_MARKED = re.compile(r"(\s*)--([a-z_]+): ?(.*)")
_NOTE = "-- Rendered from templates/{}.template by `python -m tests.postgres.render`: change the template.\n"

#: Whether a statement waits for locked rows or skips them, and how that ends its name.
_LOCKS = {"waiting": "", "skip_locked": "_skip_locked"}
_TENANTS = {"any_tenant": "", "of_tenant": "_of_tenant"}


def variants() -> Mapping[str, tuple[str, frozenset[str]]]:
    """Rendered name -> its template, and the words that its lines have."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    families = {"finish": {"finish"}, "expire": {"expire", "others"}, "operate": {"operate", "others"}}
    for name, words in {**families, "claim_by_id": set[str](), "note": set[str]()}.items():
        for lock, suffix in _LOCKS.items():
            found[name + suffix] = (name, frozenset({*words, lock}))
    for name, template, word in (
        ("succeed", "succeed", "outside"),
        ("succeed_in_flow", "succeed", "in_flow"),
        ("succeed_in_one_pass", "succeed_in_one_pass", "outside"),
        ("find_live", "find", "live"),
        ("find_held", "find", "held"),
        ("find_finished", "find", "finished"),
        ("find_finished_by_id", "find", "named"),
    ):
        found[name] = (template, frozenset({word}))
    for tenant, suffix in _TENANTS.items():
        found[f"claimable{suffix}"] = ("claimable", frozenset({tenant}))
    callers, reclaims = {"alone": "", "shared": "_shared"}, {"plain": "", "reclaiming": "_reclaiming"}
    for (caller, one), (reclaim, two), (tenant, three) in product(callers.items(), reclaims.items(), _TENANTS.items()):
        found[f"claim{one}{two}{three}"] = ("claim", frozenset({caller, reclaim, tenant, "any_path"}))
    found["claim_plain"] = ("claim_plain", frozenset({"alone", "plain", "any_tenant", "one_path"}))
    return found


def rendered(name: str, queries: Path = QUERIES) -> str:
    """The text of one variant."""
    template, words = variants()[name]
    lines = list(_lines(queries / "templates", f"{template}.template", words))
    return "".join([lines[0], _NOTE.format(template), *lines[1:]])


def _lines(folder: Path, name: str, words: frozenset[str]) -> Iterator[str]:
    for line in (folder / name).read_text(encoding="utf-8").splitlines():
        text: str | None = line
        while text is not None and (marked := _MARKED.fullmatch(text)):
            indent, word, rest = marked.groups()
            if word == "include":
                yield from _lines(folder, f"{rest}.part", words)
            text = indent + rest if word in words else None
        if text is not None:
            yield text + "\n"


def render(queries: Path = QUERIES) -> None:
    """Write every variant."""
    for name in variants():
        (queries / f"{name}.sql").write_text(rendered(name, queries), encoding="utf-8")


if __name__ == "__main__":
    render()
