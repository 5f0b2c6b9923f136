"""`tenure top`: the figures of `tenure stats` in the terminal, drawn again and again."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.command import call_store
from tenure.cli.options import DatabaseUrl
from tenure.cli.stats import Since, seconds_of, stats_lines
from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.postgres.store import Store

#: Another screen of the terminal, its end, which brings back what was there; the top left; clear a line, a screen.
_BEGIN, _END, _HOME, _CLEAR_LINE, _CLEAR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H", "\x1b[K", "\x1b[J"

_Every = Annotated[float, typer.Option("--every", min=0.2, max=3_600, help="Seconds between two reads.")]


def top(since: Since = "1h", every: _Every = 2.0, database_url: DatabaseUrl = None) -> None:
    """Show the figures of `tenure stats` until Ctrl-C, read again every two seconds."""
    since_s = seconds_of(since)
    if not sys.stdout.isatty():
        raise BadInput("tenure top draws on a terminal, and stdout is none. Next: tenure stats, or tenure stats --json")

    async def draw(store: Store) -> None:
        try:
            while True:
                found = await store.counts.stats(since_s)
                width, height = shutil.get_terminal_size()
                lines = [
                    f"tenure top: the last {since}, read every {every:g} s; Ctrl-C ends it",
                    "",
                    *stats_lines(found),
                ]
                rows = [line[: width - 1] + _CLEAR_LINE for line in lines[: height - 1]]
                print(_HOME + "\r\n".join(rows) + _CLEAR, end="", flush=True)
                await asyncio.sleep(every)
        except asyncio.CancelledError:  # Ctrl-C
            return

    print(_BEGIN, end="", flush=True)
    try:
        call_store(database_url, draw)
    finally:
        print(_END, end="", flush=True)
