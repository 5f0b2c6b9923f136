"""The registered contracts: what `migrate` wrote, as machines that statements can be bound to.

Rows keep the name and version they were made under, and are moved by that version's machine. A process that meets a
version it does not know reads the registry again. The numbers (lease, limit, backoff) are this process's settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenure.contract import Contract
from tenure.contracts import BUILT_IN
from tenure.errors import UnknownContract
from tenure.postgres.machine import Machine
from tenure.postgres.statement import Plan, statement
from tenure.versions import from_description


class Registry:
    """Machines by (name, version), and the newest version of each name."""

    def __init__(self, numbers: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self._numbers = numbers or {}
        for name, given in self._numbers.items():  # a bad number is refused at start, not when a job first needs it
            if name in BUILT_IN:
                BUILT_IN[name].with_numbers(given)
        self._machines: dict[tuple[str, str], Machine] = {}
        self._newest: dict[str, str] = {}
        self._unreadable: dict[tuple[str, str], str] = {}
        self.installation = ""

    def load(self) -> Plan[None]:
        """Read what is registered."""
        for name, version, declaration, installation in (yield statement("contracts", {})):
            self.installation = installation
            if (name, version) not in self._machines:
                try:
                    self.add(from_description(declaration))
                except (TypeError, KeyError, ValueError, AttributeError) as error:
                    # A newer release's words, or numbers of ours that do not fit: no reason to stop the others.
                    self._unreadable[name, version] = str(error)
                    continue
            self._newest[name] = version  # rows come oldest first

    def add(self, contract: Contract) -> None:
        """Know a contract, with this process's numbers."""
        ours = contract.with_numbers(self._numbers.get(contract.name, {}))
        self._machines[contract.name, contract.version] = Machine(ours)
        self._newest[contract.name] = contract.version

    def machine(self, name: str, version: str | None = None) -> Plan[Machine]:
        """The machine of a contract, by default its newest version; asks the database before it says unknown."""
        if (found := self.find(name, version)) is None:
            yield from self.load()
            found = self.find(name, version)
        if found is None:
            known = ", ".join(f"{known} {at}" for known, at in sorted(self._machines)) or "none: run tenure migrate"
            wanted = name if version is None else f"{name} version {version}"
            for (other, at), why in self._unreadable.items():
                if other == name and version in (None, at):
                    raise UnknownContract(
                        f"contract {name} {at} is registered, but this process cannot use it ({why}). "
                        "Next: upgrade tenure here, or correct the settings"
                    )
            raise UnknownContract(f"no contract {wanted!r} is registered; registered are: {known}")
        return found

    def versions(self, name: str) -> list[Machine]:
        """The machines of every known version of a contract: upkeep moves old rows by their own."""
        return [machine for (known, _), machine in self._machines.items() if known == name]

    def contracts(self) -> list[Contract]:
        """Every known contract, in its newest version."""
        return [self._machines[name, version].contract for name, version in self._newest.items()]

    def all(self) -> dict[tuple[str, str], Contract]:
        """Every known contract by name and version."""
        return {key: machine.contract for key, machine in self._machines.items()}

    def find(self, name: str, version: str | None = None) -> Machine | None:
        """The machine of a contract if this process knows it already."""
        return self._machines.get((name, version or self._newest.get(name, "")))
