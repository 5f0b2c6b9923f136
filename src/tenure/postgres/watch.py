"""The watch: one small question about everything that time asks for, so that idle upkeep costs next to nothing."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from tenure.postgres.engine import Engine
from tenure.postgres.statement import Plan, statement


class Pressing(NamedTuple):
    """What time asks for at one moment of the database's clock: which contracts have jobs for which part of upkeep."""

    at: datetime
    settle: frozenset[str]
    reap: frozenset[str]
    promote: frozenset[str]
    #: The shortest lease in force, in seconds.
    lease_sec: float
    #: Dead rows of the hot tables, and a number that is another one as soon as they were changed again.
    dead: int
    changed: int
    #: How long ago the table of live jobs was vacuumed, in seconds, by whomever.
    vacuumed_ago: float | None


class Watch:
    """What upkeep asks before it does anything; `store.watch`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registered = 0

    async def pressing(self) -> Pressing:
        """What time asks for right now, under every registered contract; one statement."""
        return await self._engine.run(self._pressing)

    def _pressing(self) -> Plan[Pressing]:
        registry = self._engine.registry
        while True:
            machines = [machine for contract in registry.contracts() for machine in registry.versions(contract.name)]
            known = [machine.claim for machine in machines]
            columns = {
                "contracts": "contract", "versions": "version", "missed": "missed", "heartbeats_ms": "heartbeat_ms",
                "reclaiming": "reclaims", "extras": "extra", "leases_ms": "default_lease_ms",
            }  # fmt: skip
            values = {column: [machine[name] for machine in known] for column, name in columns.items()}
            ((at, settle, reap, promote, lease, registered, *moved),) = yield statement("pressing", values)
            if registered == self._registered:
                return Pressing(at, frozenset(settle), frozenset(reap), frozenset(promote), lease or 0.0, *moved)
            # Somebody has registered a contract since: its jobs are looked for from now on, too.
            yield from registry.load()
            self._registered = registered
