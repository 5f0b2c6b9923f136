"""The contracts that an application declares itself: `App(contracts=[PURCHASE])`.

A database must know them before the application uses it. `tenure migrate --app module:app` registers them; the embedded
database and databases for tests get them without it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput, ContractChanged, UnknownContract


class Registered(Protocol):
    """A client that knows which contracts are registered."""

    async def registered(self, contract: Contract) -> Mapping[str, str]:
        """Version → digest of the registered versions of this contract that the client can tell."""


def contracts_by_name(declared: Iterable[Contract]) -> dict[str, Contract]:
    """Return the contracts by name; refuses what is none, the name of a built-in contract, and a name twice."""
    found: dict[str, Contract] = {}
    for contract in declared:
        given: object = contract
        if not isinstance(given, Contract):
            raise BadInput(f"contracts takes tenure.Contract objects, not {given!r}")
        if contract.name in BUILT_IN:
            raise BadInput(f"contract {contract.name} comes with Tenure. Next: give yours another name")
        if contract.name in found:
            raise BadInput(f"contract {contract.name} is given twice. Next: give its newest version only")
        found[contract.name] = contract
    return found


def import_target(value: object, module: str) -> str:
    """Return the name by which a command imports an object of this module, as `shop:app`."""
    for found in (module, "__main__"):
        names: Mapping[str, Any] = vars(sys.modules[found]) if found in sys.modules else {}
        for name, other in list(names.items()):
            if other is value:
                return f"{module}:{name}"
    return f"{module}:app"


async def require_registered(client: Registered, contracts: Mapping[str, Contract], target: str) -> None:
    """Refuse a database that does not know these contracts, or knows another one under their name and version."""
    for contract in contracts.values():
        versions = await client.registered(contract)
        if contract.version not in versions:
            other = f"; it has {contract.name} {', '.join(versions)}" if versions else ""
            raise UnknownContract(
                f"contract {contract.name} {contract.version} is not registered in this database{other}. "
                f"Next: tenure migrate --app {target}"
            )
        if versions[contract.version] != contract.digest():
            raise ContractChanged(
                f"contract {contract.name} {contract.version} is registered with another machine. "
                f"Next: give the changed contract a new version, then tenure migrate --app {target}"
            )
