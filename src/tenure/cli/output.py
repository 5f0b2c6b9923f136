"""The output of commands: JSON or text on stdout, notes and progress on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tenure.jobs.formats import code_and_message, to_one_line, traceback_lines
from tenure.jobs.formats import dump_json as dump_json

if TYPE_CHECKING:
    from tenure.errors import TenureError
    from tenure.jobs.job import Job

WIDTH = 110
#: A table on a terminal is made no narrower than this.
_NARROWEST = 60


def terminal_width() -> int | None:
    """The width of the terminal that stdout is; None: it is none, and nothing may be cut."""
    if not sys.stdout.isatty():
        return None
    return max(_NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def note(text: str) -> None:
    """Print lines for people on stderr; an empty text prints nothing."""
    print(text, end="\n" if text else "", file=sys.stderr, flush=True)


def note_error(error: TenureError) -> None:
    """Print the code and the message of an error on stderr."""
    note(": ".join(code_and_message(error)))


def progress(text: str = "") -> None:
    """Replace the progress line on stderr, or clear it; does nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def refusal_fields(job_id: int | None, error: TenureError) -> dict[str, Any]:
    """A refusal of one job, as JSON shows it."""
    code, message = code_and_message(error)
    return {"id": str(job_id), "code": code, "message": message}


def job_summary(job: Job) -> dict[str, Any]:
    """The fields that name a job and its state, as JSON shows them."""
    return {
        "id": str(job.id), "contract": job.contract, "state": job.state, "queue": job.queue, "type": job.type,
        "tenant_id": job.tenant_id,
    }  # fmt: skip


def document(value: Any) -> str | None:
    """A JSON document in one line, cut when it is long; None for None."""
    return None if value is None else to_one_line(json.dumps(value, ensure_ascii=False), 2_000)


def timestamp(moment: datetime) -> str:
    """A time in UTC to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def card(title: str, rows: Iterable[tuple[str, str | None]], steps: Sequence[str], error: Any = None) -> Iterator[str]:
    """One item in full: title, named values, the traceback of its error, and the next steps."""
    yield to_one_line(title)
    yield from columns([(name, to_one_line(text, 2_100)) for name, text in rows if text])
    yield from traceback(error)
    yield from (f"{'Next:' if number == 0 else '     '} {step}" for number, step in enumerate(steps))


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows whose columns are aligned and whose last column is wrapped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        start = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=False))
        # A long word (a path, a token) stays whole, so that people can copy it.
        lines = textwrap.wrap(
            last, max((terminal_width() or WIDTH) - len(start), 40), break_long_words=False, break_on_hyphens=False
        )
        for number, line in enumerate(lines or [""]):
            yield f"{start if number == 0 else ' ' * len(start)}{line}".rstrip()


def traceback(error: Any) -> Iterator[str]:
    """The traceback of a failure as Python printed it, indented."""
    return (f"  {line}".rstrip() for line in traceback_lines(error))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Rows under their column names, in full. On a terminal, columns that do not fit stand below their row."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    width = terminal_width()
    ends = accumulate(each + 2 for each in widths)
    fits = len(widths) if width is None else max(1, sum(end - 2 <= width for end in ends))
    for number, row in enumerate(cells):
        yield "  ".join(f"{cell:<{each}}" for cell, each in zip(row[:fits], widths[:fits], strict=True)).rstrip()
        if number and width is not None:
            below = "  ".join(f"{name}: {cell}" for name, cell in zip(head[fits:], row[fits:], strict=True) if cell)
            lines = textwrap.wrap(below, width - 4, break_long_words=False, break_on_hyphens=False)
            yield from (f"    {line}" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return timestamp(value) if isinstance(value, datetime) else to_one_line(str(value))
