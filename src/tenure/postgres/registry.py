"""The registry: the contracts that `migrate` registered, bound to values for statements.

A job keeps the contract name and version that it was enqueued under, and is moved by that version. A process that meets
an unknown version reads the registry again. The numbers (lease, limit, backoff) are this process's settings.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.contracts.stored_form import from_description
from tenure.errors import UnknownContract
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.statement import Plan, statement

_log = logging.getLogger("tenure")

#: Contract → the numbers that this process sets for it: lease, heartbeat, limit, backoff.
ContractNumbers = Mapping[str, Mapping[str, int]]


class Registry:
    """Bound contracts by (name, version), and the newest version of each name."""

    def __init__(self, numbers: ContractNumbers | None = None) -> None:
        #: The numbers that this process sets.
        self.numbers = numbers or {}
        for name, given in self.numbers.items():  # refuses a bad number at start, before a job needs it
            if name in BUILT_IN:
                BUILT_IN[name].with_numbers(given)
        self._bound: dict[tuple[str, str], BoundContract] = {}
        self._newest: dict[str, str] = {}
        self._unreadable: dict[tuple[str, str], str] = {}
        self._unknown: set[str] = set()
        self.installation = ""

    def load(self) -> Plan[None]:
        """Read the registered contracts."""
        for name, version, declaration, installation in (yield statement("list_contracts", {})):
            self.installation = installation
            if (name, version) not in self._bound:
                try:
                    self.add(from_description(json.loads(declaration)))
                except (TypeError, KeyError, ValueError, AttributeError) as error:
                    # From a newer release, or this process's numbers do not fit. Other contracts still work.
                    if (name, version) not in self._unreadable:
                        _log.warning("%s", _unusable(name, version, str(error)))
                    self._unreadable[name, version] = str(error)
                    continue
            self._newest[name] = version  # rows come oldest first
        for name in self.numbers.keys() - self._newest.keys() - self._unknown:
            self._unknown.add(name)
            _log.warning(
                "TENURE_%s_… sets numbers of contract %s, which is not registered. Next: correct it, or register that",
                name.upper(), name,
            )  # fmt: skip

    def add(self, contract: Contract) -> None:
        """Add a contract, with this process's numbers."""
        ours = contract.with_numbers(self.numbers.get(contract.name, {}))
        self._bound[contract.name, contract.version] = BoundContract(ours, self.installation)
        self._newest[contract.name] = contract.version

    def bound_contract(self, name: str, version: str | None = None) -> Plan[BoundContract]:
        """Return a bound contract, by default its newest version; reads the database before it refuses."""
        if (found := self.find(name, version)) is None:
            yield from self.load()
            found = self.find(name, version)
        if found is None:
            known = ", ".join(f"{known} {at}" for known, at in sorted(self._bound)) or "none: run tenure migrate"
            wanted = name if version is None else f"{name} version {version}"
            for (other, at), why in self._unreadable.items():
                if other == name and version in (None, at):
                    raise UnknownContract(_unusable(name, at, why))
            raise UnknownContract(
                f"no contract {wanted!r} is registered; registered are: {known}. "
                "Next: for a contract of your own, tenure migrate --app module:app"
            )
        return found

    def versions(self, name: str) -> list[BoundContract]:
        """Return every known version of a contract: upkeep moves old jobs by their own version."""
        return [bound for (known, _), bound in self._bound.items() if known == name]

    def reclaiming(self) -> dict[str, list[Any]]:
        """Return the states from which a claim takes expired jobs, and how many claims beyond the limit are allowed."""
        rows = [
            (name, version, state, bound.contract.budget.extra)
            for (name, version), bound in self._bound.items()
            for path in bound.contract.paths
            if path.trigger == "reclaim"
            for state in path.sources
        ]
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        names = ("reclaim_contracts", "reclaim_versions", "reclaim_states", "reclaim_extras")
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    def contracts(self) -> list[Contract]:
        """Return every known contract, in its newest version."""
        return [self._bound[name, version].contract for name, version in self._newest.items()]

    def all(self) -> dict[tuple[str, str], Contract]:
        """Return every known contract by name and version."""
        return {key: bound.contract for key, bound in self._bound.items()}

    def find(self, name: str, version: str | None = None) -> BoundContract | None:
        """Return a bound contract that this process already knows, or None."""
        return self._bound.get((name, version or self._newest.get(name, "")))


def _unusable(name: str, version: str, why: str) -> str:
    return (
        f"contract {name} {version} is registered, but this process cannot use it ({why}) and takes none of its jobs. "
        "Next: upgrade tenure here, or correct the settings"
    )
