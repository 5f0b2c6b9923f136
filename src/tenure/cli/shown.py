"""How commands show what they found: JSON for programs, cards and tables for people, refusals with their code."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tenure.rendered import as_json as as_json
from tenure.rendered import ids_as_text as ids_as_text
from tenure.rendered import refusal as refusal
from tenure.wording import plain

WIDTH = 110


def as_text(value: Any) -> str:
    """A document in one line, cut when it is long."""
    return plain(json.dumps(value, ensure_ascii=False), 2_000)


def card(title: str, rows: Iterable[tuple[str, str | None]], steps: Sequence[str]) -> Iterator[str]:
    """One thing in full: its title, what is known under its names, and what can be done next."""
    yield plain(title)
    known = [(name, text) for name, text in rows if text]
    wide = max(len(name) for name, _ in known)
    for name, text in known:
        start = f"  {name:<{wide}}  "
        # A long word (a path, a token) is not broken: it could not be copied any more.
        lines = textwrap.wrap(plain(text, 2_100), WIDTH - len(start), break_long_words=False, break_on_hyphens=False)
        yield from (f"{start if n == 0 else ' ' * len(start)}{line}" for n, line in enumerate(lines))
    yield from (f"{'Next:' if n == 0 else '     '} {step}" for n, step in enumerate(steps))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows under their names, each column as wide as it must be; nothing is cut but the spaces at the end."""
    cells = [head, *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
