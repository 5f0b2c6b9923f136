"""Job types: declared once, kept in `tenure.job_type`, so that no application code is needed to honour them."""

from __future__ import annotations

from collections.abc import Sequence

from tenure import intake
from tenure.errors import BadInput
from tenure.job_type import JobType, check
from tenure.postgres.engine import Engine, ask


class Types:
    """The verbs on job types; `store.types`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def declare(self, types: Sequence[JobType]) -> int:
        """Keep these types' numbers, from their next enqueue and claim on; how many were new or changed."""
        given: object = types
        if not isinstance(given, (list, tuple)) or not all(isinstance(declared, JobType) for declared in given):
            raise BadInput(f"give a list of JobType, not {given!r}")
        intake.whole("number of types", len(types), 0, intake.MAX_BATCH)
        for declared in types:
            check((await self._engine.machine(declared.contract)).contract, declared)
        names = [(declared.contract, declared.type) for declared in types]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"job type {twice[0][1]} of contract {twice[0][0]} is declared twice")
        values = {
            "contracts": [one.contract for one in types],
            "types": [one.type for one in types],
            "leases": [one.lease_ttl_sec for one in types],
            "heartbeats": [one.heartbeat_sec for one in types],
            "slas": [one.sla_sec for one in types],
            "renewals": [one.renews for one in types],
            "limits": [one.max_attempts for one in types],
            "bases": [one.backoff_base_ms for one in types],
            "caps": [one.backoff_cap_ms for one in types],
            "ends": [one.on_exhausted for one in types],
        }
        return len(await self._engine.run(lambda: ask("declare_types", values)))

    async def list(self, contract: str | None = None) -> list[JobType]:
        """What was declared, of one contract or of all."""
        return [JobType(*row) for row in await self._engine.run(lambda: ask("types", {"contract": contract}))]
