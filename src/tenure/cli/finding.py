"""Which contract is meant? One that is known by name, one in a file, or one of the user's own in a Python module."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.cli.importing import IN_MODULE, imported

if TYPE_CHECKING:
    from tenure.contract import Contract

_NAMED = re.compile(r"([a-z][a-z0-9_]*)(?:@(.+))?\Z")

NAMING = "NAME, NAME@VERSION, a file made by `show --json`, or module:NAME for your own."


@dataclass(frozen=True, slots=True)
class Known:
    """A version of a contract, and where it comes from."""

    name: str
    version: str
    declaration: Mapping[str, Any]
    built_in: bool
    registered_at: str | None = None

    def row(self) -> dict[str, Any]:
        """What a list says of it."""
        said = {"title": self.declaration.get("title"), "states": list(self.declaration.get("states", ()))}
        origin = {"built_in": self.built_in, "registered_at": self.registered_at}
        return {"name": self.name, "version": self.version, **said, **origin}


def known(database_url: str | None) -> list[Known]:
    """What is registered, oldest first, then what is only built in."""
    from tenure.contracts import BUILT_IN
    from tenure.settings import Settings

    ours = {(one.name, one.version): one.describe() for one in BUILT_IN.values()}
    found: list[Known] = []
    if address := database_url or Settings.load().database_url:
        from tenure.postgres.registered import registered

        for row in registered(address):
            built_in = ours.pop((row.name, row.version), None) is not None
            at = f"{row.registered_at:%Y-%m-%dT%H:%M:%SZ}"
            found.append(Known(row.name, row.version, row.declaration, built_in, at))
    return found + [Known(*key, declared, True) for key, declared in ours.items()]


def contracts(wanted: Sequence[str], database_url: str | None) -> list[Contract]:
    """The contracts of these names, modules or files; the database is asked only when there is a name."""
    there = known(database_url) if any(_NAMED.match(one) for one in wanted) else []
    return [_meant(one, there) for one in wanted]


def _meant(wanted: str, there: Sequence[Known]) -> Contract:
    if _NAMED.match(wanted):
        return _named(wanted, there)
    if IN_MODULE.match(wanted):
        return _from_module(wanted)
    return _from_file(wanted)


def _from_module(wanted: str) -> Contract:
    from tenure.contract import Contract
    from tenure.errors import BadInput

    found = imported(wanted)
    if not isinstance(found, Contract):
        raise BadInput(f"{wanted} is of the type {type(found).__name__}, not a tenure Contract")
    return found


def _named(wanted: str, there: Sequence[Known]) -> Contract:
    from tenure.errors import UnknownContract
    from tenure.versions import from_description

    name, _, version = wanted.partition("@")
    found = [one for one in there if one.name == name and version in ("", one.version)]
    if not found:
        names = ", ".join(f"{one.name}@{one.version}" for one in there)
        raise UnknownContract(f"no contract {wanted!r} is known; known are: {names}. Next: tenure contracts list")
    # The newest registered one; without a database there is one of each name.
    newest = ([one for one in found if one.registered_at] or found)[-1]
    try:
        return from_description(newest.declaration)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UnknownContract(
            f"contract {name} {newest.version} is registered, but this release cannot read it ({error}). "
            "Next: upgrade tenure here"
        ) from None


def _from_file(name: str) -> Contract:
    from tenure.errors import BadInput, Unsound
    from tenure.versions import from_description

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
