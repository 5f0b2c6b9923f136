"""`tenure contracts verify`: explore every reachable history and print the shortest one that breaks a promise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, command
from tenure.cli.contracts.find import NAME_HELP, RegistryUrl, find_contracts, import_contracts
from tenure.cli.import_target import TARGET
from tenure.cli.options import Json
from tenure.cli.output import progress
from tenure.errors import Unsound

if TYPE_CHECKING:
    from tenure.contracts.declaration import Contract
    from tenure.model.explore import Report


@command
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help=f"{NAME_HELP} Default: all built-in ones.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=2, max=3, help="Workers in the model.")] = 2,
    runs: Annotated[int, typer.Option("--runs", min=1, max=10, help="Most runs of a job.")] = 3,
    depth: Annotated[int | None, typer.Option("--depth", min=1, max=500, help="Most steps; default: 10 a run.")] = None,
    database_url: RegistryUrl = None,
    in_json: Json = False,
) -> Output:
    """Explore every history of contracts and check every promise; exits 1 when a promise is broken."""
    from tenure.model.explore import explore, is_explorable

    results: list[dict[str, Any]] = []
    for contract, faults in list(_find(names, database_url)):  # refuse a wrong name before exploring anything
        fault_lines = [f"    not sound: {fault}" for fault in faults]
        if is_explorable(contract):
            begun = time.perf_counter()
            report = explore(contract, workers, depth, _show_progress(contract.name), runs=runs)
            progress()
            seconds = time.perf_counter() - begun
            result = {**report.to_json(), "seconds": round(seconds, 2)}
            lines = _lines(report, fault_lines, seconds)
        else:
            result = {"contract": contract.name, "held": [], "broken": []}
            lines = iter([f"{contract.name}: cannot be explored", *fault_lines])
        results.append({**result, "unsound": faults})
        if not in_json:
            print("\n".join(lines), flush=True)
    broken = any(result["broken"] or result["unsound"] for result in results)
    return Output({"held": not broken, "contracts": results}, failed=broken)


def _find(names: list[str] | None, database_url: str | None) -> Iterator[tuple[Contract, list[str]]]:
    """Each contract with its faults; an unsound contract is explored too, to show what its faults lead to."""
    from tenure.contracts import BUILT_IN
    from tenure.contracts.declaration import Contract

    for name in names or list(BUILT_IN):
        if TARGET.match(name):
            try:
                yield from ((contract, []) for contract in import_contracts(name))
            except Unsound as error:
                if not isinstance(error.declared, Contract):
                    raise
                yield error.declared, error.faults
            continue
        try:
            yield find_contracts([name], database_url)[0], []
        except Unsound as error:
            if not isinstance(error.declared, Contract):
                raise
            yield error.declared, error.faults


def _show_progress(name: str) -> Callable[[int, int, int], None]:
    def show(step: int, depth: int, worlds: int) -> None:
        progress(f"{name:<12} {'█' * (20 * step // depth):<20} {step}/{depth} steps, {worlds:,} worlds")

    return show


def _lines(report: Report, fault_lines: list[str], seconds: float) -> Iterator[str]:
    found = f"all {report.states:,} worlds" if report.complete else f"{report.states:,} worlds, of more,"
    runs = "1 run" if report.runs == 1 else f"up to {report.runs} runs"
    yield f"{report.contract}: {found} of a job with {runs} and {report.workers} workers, in {seconds:.1f} s"
    tried = f"{report.steps:,} steps tried, {report.refused:,} refused"
    yield f"    {tried}; {_large(report.histories)} histories of up to {report.depth} steps"
    yield from fault_lines
    if report.held:
        yield f"    held: {', '.join(report.held)}"
    if report.unknown:
        yield f"    not known: {', '.join(report.unknown)}, because there are more worlds. Next: a greater --depth"
    for story in report.broken:
        yield f"    BROKEN: {story.invariant}. The shortest story:"
        yield from (f"        {line}" for line in story.lines())


def _large(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"{count:.1e}".replace("e+", " · 10^").replace("^0", "^")
