"""`tenure stats`: what the jobs of each type did, with sparklines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.command import Output, Store, command
from tenure.cli.output import table
from tenure.jobs.formats import format_duration

if TYPE_CHECKING:
    from tenure.jobs.stats import Slice, Stats

_BARS = "▁▂▃▄▅▆▇█"
#: The widest sparkline.
_WIDTH = 30
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

Since = Annotated[str, typer.Option(metavar="TIME", help="From so long ago: 90s, 15m, 6h, 7d; a minute to 400 days.")]


@command
async def stats(store: Store, since: Since = "1h") -> Output:
    """Show by type: jobs made and ended, failures, waits and run times, and a sparkline; then the live jobs."""
    found = await store.counts.stats(seconds_of(since))
    data = found.to_json()
    if not found.types and not found.levels:
        return Output(data, notes=[f"nothing happened in the last {since}, and no job lives"])
    return Output(data, list(stats_lines(found)))


def seconds_of(text: str) -> float:
    """The seconds of a time like 15m; refuses other texts."""
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise typer.BadParameter(f"{text!r} is no time; write 90s, 15m, 6h or 7d") from None
    if not 60 <= seconds <= 400 * 86_400:
        raise typer.BadParameter(f"{text} is not within a minute and 400 days")
    return seconds


def stats_lines(found: Stats) -> Iterator[str]:
    """The tables of statistics."""
    slices: dict[tuple[str | None, str | None], list[Slice]] = {}
    for one in found.slices:
        slices.setdefault((one.contract, one.type), []).append(one)
    starts = sorted({one.start for one in found.slices})
    rows = []
    for kind in found.types:
        names = ("enqueued", "claims", "failures", "lease_expiries", "dlq_count")
        times = (_pair(one.quantile(0.5), one.quantile(0.95)) for one in (kind.wait, kind.run))
        line = sparkline(_ended(slices.get((kind.contract, kind.type), ()), starts))
        rows.append((kind.contract, kind.type, *(kind.counters[name] for name in names), *times, line))
    head = ("contract", "type", "made", "claims", "failures", "expired", "dead", "wait p50/p95", "run p50/p95", "ended")
    yield from table(head, rows)
    if found.levels:
        yield ""
        yield from table(("contract", "queue", "state", "jobs"), found.levels)
    if (now := found.figures) is not None:
        yield ""
        yield f"{now.workers} workers, {now.busy} of {now.slots} slots busy"


def _pair(half: float | None, most: float | None) -> str:
    return "" if half is None or most is None else f"{format_duration(half * 1000)}/{format_duration(most * 1000)}"


def _ended(slices: Sequence[Slice], starts: Sequence[datetime]) -> list[int]:
    by_start = {one.start: one.ended for one in slices}
    return [by_start.get(start, 0) for start in starts[-_WIDTH:]]


def sparkline(numbers: Sequence[int]) -> str:
    """Bars as high as the numbers, the highest one full; a zero is the lowest bar."""
    most = max(numbers, default=0)
    return "".join(_BARS[0 if not most else -(-number * (len(_BARS) - 1) // most)] for number in numbers)
