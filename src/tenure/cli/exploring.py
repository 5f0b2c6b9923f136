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
_Runs = typer.Option(3, "--runs", min=1, max=10, help="How often a job may be run at most, if its contract allows it.")
_Depth = typer.Option(None, "--depth", min=1, max=500, help="How many steps a history has at most; default 10 a run.")
_Database = typer.Option(None, "--database-url", help="Also what is registered there; default DATABASE_URL, else none.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")


def verify(
    names: list[str] | None = _Names,
    workers: int = _Workers,
    runs: int = _Runs,
    depth: int | None = _Depth,
    database_url: str | None = _Database,
    as_json: bool = _Json,
) -> None:
    """Explore every history of contracts and check what each must promise; exits 1 when a promise is broken."""
    from tenure.explore import is_walkable

    said: list[dict[str, Any]] = []
    for contract, faults in list(_wanted(names, database_url)):  # a wrong name is refused before anything is explored
        if is_walkable(contract):
            report, seconds = _explored(contract, workers, runs, depth)
            said.append({**_said(report, seconds), "unsound": faults})
            lines = _told(report, faults, seconds)
        else:
            said.append({"contract": contract.name, "held": [], "broken": [], "unsound": faults})
            lines = iter([f"{contract.name}: cannot be explored", *_unsound(faults)])
        if not as_json:
            print("\n".join(lines), flush=True)
    broken = any(one["broken"] or one["unsound"] for one in said)
    if as_json:
        print(json.dumps({"held": not broken, "contracts": said}, ensure_ascii=False))
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


def _explored(contract: Contract, workers: int, runs: int, depth: int | None) -> tuple[Report, float]:
    from tenure.explore import explore

    begun = time.perf_counter()
    report = explore(contract, workers, depth, _progress(contract.name) if sys.stderr.isatty() else None, runs=runs)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return report, time.perf_counter() - begun


def _progress(name: str) -> Callable[[int, int, int], None]:
    def tell(at: int, depth: int, worlds: int) -> None:
        bar = "█" * (20 * at // depth)
        print(f"\r{name:<12} {bar:<20} {at}/{depth} steps, {worlds:,} worlds", end="", file=sys.stderr, flush=True)

    return tell


def _told(report: Report, faults: list[str], seconds: float) -> Iterator[str]:
    found = f"all {report.states:,} worlds" if report.complete else f"{report.states:,} worlds, of more,"
    runs = "1 run" if report.runs == 1 else f"up to {report.runs} runs"
    yield f"{report.contract}: {found} of a job with {runs} and {report.workers} workers, in {seconds:.1f} s"
    tried = f"{report.steps:,} steps tried, {report.refused:,} refused"
    yield f"    {tried}; {_many(report.histories)} histories of up to {report.depth} steps"
    yield from _unsound(faults)
    if report.held:
        yield f"    held: {', '.join(report.held)}"
    if report.unknown:
        yield f"    not known: {', '.join(report.unknown)}, because there are more worlds. Next: a greater --depth"
    for story in report.broken:
        yield f"    BROKEN: {story.invariant}. The shortest story:"
        yield from (f"        {line}" for line in story.told())


def _unsound(faults: list[str]) -> Iterator[str]:
    return (f"    not sound: {fault}" for fault in faults)


def _many(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"{count:.1e}".replace("e+", " · 10^").replace("^0", "^")


def _said(report: Report, seconds: float) -> dict[str, Any]:
    stories = [{"invariant": story.invariant, "what": story.what, "story": story.told()} for story in report.broken]
    return {
        "contract": report.contract, "workers": report.workers, "runs": report.runs, "depth": report.depth,
        "complete": report.complete, "states": report.states, "steps": report.steps, "refused": report.refused,
        "histories": str(report.histories), "seconds": round(seconds, 2), "held": report.held,
        "unknown": report.unknown, "broken": stories,
    }  # fmt: skip
