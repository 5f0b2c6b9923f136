"""Find a contract by name, in a file, or in a Python module of the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import call_store
from tenure.cli.import_target import TARGET, import_target
from tenure.errors import BadInput, UnknownContract, Unsound

if TYPE_CHECKING:
    from tenure.contracts.declaration import Contract

_NAME = re.compile(r"([a-z][a-z0-9_]*)(?:@(.+))?\Z")

NAME_HELP = "NAME, NAME@VERSION, a file made by `show --json`, or module:NAME for your own: a contract or an App."
RegistryUrl = Annotated[str | None, typer.Option("--database-url", help="Add its contracts; default: DATABASE_URL.")]


@dataclass(frozen=True, slots=True)
class KnownContract:
    """A version of a contract that is built in, registered, or both."""

    name: str
    version: str
    declaration: Mapping[str, Any]
    built_in: bool
    registered_at: str | None = None

    def fields(self) -> dict[str, Any]:
        """The contract as JSON shows it in a list."""
        return {
            "name": self.name, "version": self.version, "title": self.declaration.get("title"),
            "states": list(self.declaration.get("states", ())), "built_in": self.built_in,
            "registered_at": self.registered_at,
        }  # fmt: skip


def known_contracts(database_url: str | None, targets: Sequence[str] = ()) -> list[KnownContract]:
    """The registered contracts, oldest first, then those that are only built in, or only in these modules."""
    from tenure.contracts import BUILT_IN
    from tenure.settings import Settings

    built_in = {(contract.name, contract.version): contract.describe() for contract in BUILT_IN.values()}
    found: list[KnownContract] = []
    if address := database_url or Settings.load().database_url:
        for row in call_store(address, lambda store: store.registered_contracts()):
            is_built_in = built_in.pop((row.name, row.version), None) is not None
            at = f"{row.registered_at:%Y-%m-%dT%H:%M:%SZ}"
            found.append(KnownContract(row.name, row.version, row.declaration, is_built_in, at))
    found += [KnownContract(*key, declaration, True) for key, declaration in built_in.items()]
    for contract in (one for target in targets for one in import_contracts(target)):
        if not any((one.name, one.version) == (contract.name, contract.version) for one in found):
            found.append(KnownContract(contract.name, contract.version, contract.describe(), False))
    return found


def find_contracts(names: Sequence[str], database_url: str | None) -> list[Contract]:
    """The contracts with these names, modules or files; reads the database only for a name."""
    known = known_contracts(database_url) if any(map(_NAME.match, names)) else []
    return [
        _by_name(name, known) if _NAME.match(name) else _in_module(name) if TARGET.match(name) else _in_file(name)
        for name in names
    ]


def import_contracts(target: str) -> list[Contract]:
    """The contract, or those of the application, that module:NAME is; refuses an application that declares none."""
    from tenure.app import App
    from tenure.contracts import BUILT_IN
    from tenure.contracts.declaration import Contract

    found = import_target(target)
    if isinstance(found, App):
        own = [contract for name, contract in found.contracts.items() if name not in BUILT_IN]
        if not own:
            raise BadInput(f"{target} declares no contract of its own. Next: App(contracts=[…])")
        return own
    if not isinstance(found, Contract):
        raise BadInput(f"{target} is of the type {type(found).__name__}, not a tenure Contract or App")
    return [found]


def _in_module(target: str) -> Contract:
    found = import_contracts(target)
    if len(found) > 1:
        names = ", ".join(contract.name for contract in found)
        raise BadInput(f"{target} has several contracts: {names}. Next: name one of them, as module:NAME")
    return found[0]


def _by_name(wanted: str, known: Sequence[KnownContract]) -> Contract:
    from tenure.contracts.stored_form import from_description

    name, _, version = wanted.partition("@")
    found = [contract for contract in known if contract.name == name and version in ("", contract.version)]
    if not found:
        names = ", ".join(f"{contract.name}@{contract.version}" for contract in known)
        raise UnknownContract(f"no contract {wanted!r} is known; known are: {names}. Next: tenure contracts list")
    # The newest registered one; without a database there is one of each name.
    newest = ([contract for contract in found if contract.registered_at] or found)[-1]
    try:
        return from_description(newest.declaration)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UnknownContract(
            f"contract {name} {newest.version} is registered, but this release cannot read it ({error}). "
            "Next: upgrade tenure here"
        ) from None


def _in_file(name: str) -> Contract:
    from tenure.contracts.stored_form import from_description

    try:
        return from_description(json.loads(Path(name).read_text(encoding="utf-8")))
    except Unsound:
        raise
    except OSError as error:
        raise BadInput(
            f"{name!r} is no contract's name, and as a file it cannot be read: {error.strerror or error}. "
            "Next: tenure contracts list"
        ) from None
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise BadInput(
            f"the file {name} is no contract's description ({type(error).__name__}: {error}). "
            "Next: make one with: tenure contracts show NAME --json"
        ) from None
