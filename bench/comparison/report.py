"""The results as rows for JSON and as tables for people: medians, with the range of the repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

from bench.comparison.measurements import Drained, Side


def row(side: Side) -> dict[str, Any]:
    """The figures of one peer, as `--json` gives them; None for what could not be measured."""
    return {
        "name": side.peer.name,
        "version": side.peer.version,
        "enqueue_per_s": _whole(each(side, lambda one: one.enqueue_per_s)),
        "drain_per_s": _whole(each(side, lambda one: one.drain_per_s)),
        "p50_ms": _middle(halves(side), 2),
        "p99_ms": _middle(tails(side), 2),
        "sustained_per_s": [round(rate) for rate in side.lasting or slices(side)],
        "wal_bytes": _whole(each(side, lambda one: one.wal_bytes)),
    }


def each(side: Side, figure: Callable[[Drained], float | None]) -> list[float]:
    """One figure of draining, of every repetition that has it."""
    return [value for one in side.drained if (value := figure(one)) is not None]


def halves(side: Side) -> list[float]:
    """The median latency of each repetition."""
    return [statistics.median(one) for one in side.latencies]


def tails(side: Side) -> list[float]:
    """The 99th percentile of each repetition."""
    return [statistics.quantiles(one, n=100)[98] for one in side.latencies if len(one) > 1]


def slices(side: Side) -> list[float]:
    """The median of each slice over the repetitions."""
    return [
        statistics.median(rate for rate in one if rate is not None) for one in zip_longest(*side.sustained)
    ]  # fmt: skip


def speeds(sides: Sequence[Side]) -> str:
    """The main table."""
    heads = (
        "", "version", "jobs", "enqueue/s", "drain/s", "p50 ms", "p99 ms", "WAL B/job", "client CPU s/1000",
        "server CPU s/1000", "peak MB",
    )  # fmt: skip
    lines = [
        (
            side.peer.name, side.peer.version, f"{side.drained[0].jobs:,}" if side.drained else "–",
            _ranged(each(side, lambda one: one.enqueue_per_s)), _ranged(each(side, lambda one: one.drain_per_s)),
            _ranged(halves(side), ".1f"), _ranged(tails(side), ".1f"), _ranged(each(side, lambda one: one.wal_bytes)),
            _ranged(each(side, lambda one: _thousand(one.client_s, one.jobs)), ".3f"),
            _ranged(each(side, lambda one: _thousand(one.server_s, one.jobs)), ".3f"),
            _ranged(each(side, lambda one: one.peak_mb)),
        )
        for side in sides
    ]  # fmt: skip
    return table(heads, lines)


def sustained(sides: Sequence[Side], slice_s: float) -> str:
    """Jobs finished a second in each slice."""
    longest = max((len(slices(side)) for side in sides), default=0)
    heads = ("", *(f"{slice_s * (n + 1):.0f} s" for n in range(longest)))
    return table(heads, [(side.peer.name, *(f"{rate:,.0f}" for rate in slices(side))) for side in sides])


def lasting(sides: Sequence[Side], slice_s: float) -> str:
    """The long run: every sixth slice, and how the last compares with the first."""
    lines = []
    for side in sides:
        if side.lasting:
            rates = [f"{rate:,.0f}" for rate in (*side.lasting[::6], side.lasting[-1])]
            lines.append((side.peer.name, ", ".join(rates), f"{side.lasting[-1] / side.lasting[0]:.2f}"))
    return table(("", f"finished/s, every {6 * slice_s:.0f} s and the last", "last / first"), lines)


def deeds(sides: Sequence[Side]) -> str:
    """What each does, and how it was set up."""
    lines = [
        (side.peer.name, side.peer.fenced, side.peer.log, side.peer.crash, side.peer.configuration) for side in sides
    ]
    return table(("", "fenced", "log of every transition", "crash spends an attempt", "configuration"), lines)


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heads = tuple(heads)
    shown = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*shown, *(f"| {' | '.join(line)} |" for line in lines)])


def _ranged(values: Sequence[float], form: str = ",.0f") -> str:
    if not values:
        return "–"
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}–{max(values):{form}})"


def _middle(values: Sequence[float], digits: int) -> float | None:
    return round(statistics.median(values), digits) if values else None


def _whole(values: Sequence[float]) -> int | None:
    return round(statistics.median(values)) if values else None


def _thousand(seconds: float | None, jobs: int) -> float | None:
    return None if seconds is None else seconds * 1_000 / jobs
