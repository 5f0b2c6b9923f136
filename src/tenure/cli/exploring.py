"""`tenure contracts verify`: explore every reachable history, and tell the shortest one that breaks a promise."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli.finding import NAMING, contracts

if TYPE_CHECKING:
    from tenure.contract import Contract
    from tenure.explore import Report

_Names = typer.Argument(None, metavar="[NAME]...", help=f"{NAMING} Default: all that come with Tenure.")
_Workers = typer.Option(2, "--workers", min=2, max=3, help="How many workers.")
_Depth = typer.Option(30, "--depth", min=1, max=200, help="How many steps a history has at most.")
_Database = typer.Option(None, "--database-url", help="Also what is registered there; default DATABASE_URL, else none.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")


def verify(
    names: list[str] | None = _Names,
    workers: int = _Workers,
    depth: int = _Depth,
    database_url: str | None = _Database,
    as_json: bool = _Json,
) -> None:
    """Explore every history of contracts and check what each must promise; exits 1 when a promise is broken."""
    reports = []
    for contract, faults in _wanted(names, database_url):
        report, seconds = _explored(contract, workers, depth)
        reports.append({**_said(report, seconds), "unsound": faults})
        if not as_json:
            print("\n".join(_told(report, faults, seconds)))
    broken = any(report["broken"] or report["unsound"] for report in reports)
    if as_json:
        print(json.dumps({"held": not broken, "contracts": reports}))
    if broken:
        raise typer.Exit(1)


def _wanted(names: list[str] | None, database_url: str | None) -> Iterator[tuple[Contract, list[str]]]:
    """Each contract with its faults; one that is not sound is explored all the same, to tell what it leads to."""
    from tenure.contract import Contract
    from tenure.contracts import BUILT_IN
    from tenure.errors import Unsound

    for name in names or list(BUILT_IN):
        try:
            yield contracts([name], database_url)[0], []
        except Unsound as error:
            if not isinstance(error.declared, Contract):
                raise
            yield error.declared, error.faults


def _explored(contract: Contract, workers: int, depth: int) -> tuple[Report, float]:
    from tenure.explore import explore

    begun = time.perf_counter()
    report = explore(contract, workers, depth, _progress(contract.name, depth) if sys.stderr.isatty() else None)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return report, time.perf_counter() - begun


def _progress(name: str, depth: int) -> Callable[[int, int], None]:
    def tell(at: int, worlds: int) -> None:
        bar = "█" * (20 * at // depth)
        print(f"\r{name:<12} {bar:<20} {at}/{depth} steps, {worlds:,} worlds", end="", file=sys.stderr, flush=True)

    return tell


def _told(report: Report, faults: list[str], seconds: float) -> Iterator[str]:
    extent = "all of them" if report.complete else f"those within {report.depth} steps; there are more"
    yield f"{report.contract}: {report.states:,} worlds with {report.workers} workers ({extent}), {seconds:.1f} s"
    yield f"    {report.steps:,} steps tried, {report.refused:,} refused; {_many(report.histories)} histories"
    for fault in faults:
        yield f"    not sound: {fault}"
    if report.held:
        yield f"    held: {', '.join(report.held)}"
    for story in report.broken:
        yield f"    BROKEN: {story.invariant}. The shortest story:"
        yield from (f"        {line}" for line in story.told())


def _many(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"{count:.1e}".replace("e+", " · 10^").replace("^0", "^")


def _said(report: Report, seconds: float) -> dict[str, Any]:
    stories = [{"invariant": story.invariant, "what": story.what, "story": story.told()} for story in report.broken]
    return {
        "contract": report.contract, "workers": report.workers, "depth": report.depth, "complete": report.complete,
        "states": report.states, "steps": report.steps, "refused": report.refused,
        "histories": str(report.histories), "seconds": round(seconds, 2), "held": report.held, "broken": stories,
    }  # fmt: skip
