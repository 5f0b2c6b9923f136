"""`tenure contracts`: list, show, draw, compare and verify contracts.

Without a database these are the built-in contracts, and no database is started. With one, the registered contracts
come first. A contract in a file is the output of `tenure contracts show --json`.
"""

from __future__ import annotations

import json
import textwrap
from enum import StrEnum
from typing import Annotated

import typer

from tenure.cli.command import Output, command
from tenure.cli.contracts.find import NAME_HELP, RegistryUrl, find_contracts, known_contracts
from tenure.cli.options import Json
from tenure.cli.output import WIDTH


class Format(StrEnum):
    """The format of a diagram."""

    mermaid = "mermaid"
    svg = "svg"


_Name = Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP)]
_Version = Annotated[str | None, typer.Option("--version", help="The version; default: the newest.")]


@command
def list_(
    own: Annotated[
        list[str] | None, typer.Argument(metavar="[MODULE:NAME]...", help="Also yours: a contract or an App.")
    ] = None,
    database_url: RegistryUrl = None,
) -> Output:
    """List the built-in contracts, yours that you name and, with a database, those registered there."""
    found = known_contracts(database_url, own or ())
    lines = []
    for contract in found:
        origins = ["built in"] * contract.built_in + [f"registered {at}" for at in [contract.registered_at] if at]
        lines.append(f"{contract.name} {contract.version} ({', '.join(origins) or 'not registered'})")
        for line in (contract.declaration.get("title", ""), ", ".join(contract.declaration.get("states", ()))):
            lines.append(textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="    "))
    return Output({"contracts": [contract.fields() for contract in found]}, lines)


@command
def show(name: _Name, version: _Version = None, database_url: RegistryUrl = None, in_json: Json = False) -> None:
    """Show a contract: its states, paths, numbers, events and views."""
    from tenure.cli.contracts.describe import describe

    (contract,) = find_contracts([f"{name}@{version}" if version else name], database_url)
    print(json.dumps(contract.describe(), indent=2) if in_json else "\n".join(describe(contract)))


@command
def diagram(
    name: _Name,
    version: _Version = None,
    form: Annotated[Format, typer.Option("--format", help="Mermaid text, or an SVG picture.")] = Format.mermaid,
    database_url: RegistryUrl = None,
) -> Output:
    """Draw a contract from its declaration."""
    from tenure.contracts.diagram import to_mermaid, to_svg

    (contract,) = find_contracts([f"{name}@{version}" if version else name], database_url)
    drawn = to_svg(contract) if form is Format.svg else to_mermaid(contract)
    data = {"name": contract.name, "version": contract.version, "format": form.value, "diagram": drawn}
    return Output(data, drawn.removesuffix("\n"))


@command
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="The old contract: NAME, file, or module:NAME.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The new contract: NAME, file, or module:NAME.")],
    database_url: RegistryUrl = None,
) -> Output:
    """Show what an upgrade from A to B removes, adds and alters; exits 1 when it removes something."""
    from tenure.cli.contracts.compare import additions, alterations
    from tenure.contracts.versions import breaking_changes

    old, new = find_contracts([before, after], database_url)
    lost, added, altered = list(breaking_changes(old, new)), list(additions(old, new)), list(alterations(old, new))
    ends = {name: {"name": end.name, "version": end.version} for name, end in (("from", old), ("to", new))}
    summary = "not additive" if lost else "additive" if added or altered else "nothing changes"
    lines = [
        f"{old.name} {old.version} → {new.name} {new.version}: {summary}",
        *(f"takes away: {change}" for change in lost),
        *(f"adds: {change}" for change in added),
        *(f"alters: {change}" for change in altered),
    ]
    if (old.name, old.version) == (new.name, new.version) and old.digest() != new.digest():
        lost.append("nothing, but both have the same version")
        lines.append(f"version {new.version} cannot be registered twice. Next: give the changed contract a new version")
    data = {**ends, "additive": not lost, "takes_away": lost, "adds": added, "alters": altered}
    return Output(data, lines, failed=bool(lost))
