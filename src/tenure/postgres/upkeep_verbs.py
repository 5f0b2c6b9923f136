"""Verbs of upkeep: close expired leases (`reap`), make due jobs ready (`promote`), settle jobs at a commit point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg

from tenure.errors import Refused, TenureError
from tenure.jobs import validation
from tenure.jobs.expiry import EXPIRED
from tenure.jobs.job import UPKEEP
from tenure.jobs.outcome import Moved, Outcome
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.engine import EngineUser
from tenure.postgres.flow_advance import advance_after
from tenure.postgres.lost_lease_warnings import warn_of_closed, warn_of_lost
from tenure.postgres.move import Batch, is_row_error, move, not_logged
from tenure.postgres.quarantine import quarantine
from tenure.postgres.ranges import group_by_range
from tenure.postgres.settle import settle_after, settle_plan
from tenure.postgres.statement import Atomic, Plan, statement


class UpkeepVerbs(EngineUser):
    """The verbs of upkeep, for every version of a contract; part of the store."""

    async def reap(
        self, contract: str, limit: int = 1000, *, until: datetime | None = None, jumped: datetime | None = None
    ) -> list[Outcome]:
        """Close expired leases; none after the time `until`, nor within the first lease after the clock `jumped`."""
        return await self._each_version(
            contract, limit, lambda bound, limit: reap_plan(bound, limit, until=until, jumped=jumped)
        )

    async def warn_of_closed(self, contract: str, outcomes: Sequence[Outcome]) -> None:
        """Log the attempts whose leases `reap` closed, one record each; without job details if they cannot be read."""
        try:
            await self._engine.run(lambda: warn_of_closed(contract, outcomes))
        except TenureError:
            for outcome in outcomes:
                if isinstance(outcome, Moved):
                    warn_of_lost(contract, outcome, None)

    async def promote(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """Make this contract's waiting jobs ready that are due."""
        outcomes = await self._each_version(contract, limit, promote_plan)
        if any(isinstance(outcome, Moved) and outcome.role == "ready" for outcome in outcomes):
            self._engine.wakeups.request([(contract, "")])
        return outcomes

    async def cancel_expired(self, limit: int = 1000) -> int:
        """Cancel jobs that expired before they began, `limit` at a time; returns how many."""
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        registry = self._engine.registry
        await self._engine.run(registry.load)
        known = [bound for contract in registry.contracts() for bound in registry.versions(contract.name)]
        outcomes, _ = await self._engine.run(lambda: cancel_expired(known, limit))
        await advance_after(self._engine, outcomes, self._max_bytes)
        return len(outcomes)

    async def settle(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """Settle all jobs of this contract that a crash left at a commit point, `limit` at a time."""
        return await self._each_version(contract, limit, settle_plan)

    async def _each_version(
        self, contract: str, limit: int, plan: Callable[[BoundContract, int], Plan[list[Outcome]]]
    ) -> list[Outcome]:
        """Run a plan for every version of a contract, including newly registered ones."""
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        await self._engine.run(self._engine.registry.load)
        await self._engine.bound_contract(contract)  # refuses an unknown contract
        outcomes: list[Outcome] = []
        for bound in self._engine.registry.versions(contract):
            outcomes += await self._engine.run(lambda bound=bound: plan(bound, limit))  # type: ignore[misc]
        await advance_after(self._engine, outcomes, self._max_bytes)
        return outcomes


def reap_plan(
    bound: BoundContract,
    limit: int,
    *,
    queues: Sequence[str] | None = None,
    ids: Sequence[int] | None = None,
    until: datetime | None = None,
    jumped: datetime | None = None,
) -> Plan[list[Outcome]]:
    """Close expired leases: the attempt counts as used, and the job moves by the contract's expiry path."""
    values = {"limit": limit, "queues": queues, "ids": ids, "until": until, "jumped": jumped}
    outcomes = yield from _find_and_move(bound, "find_expired", "expire", values)
    return (yield from settle_after(bound, outcomes))


def cancel_expired(known: Sequence[BoundContract], limit: int) -> Plan[tuple[list[Moved], int]]:
    """Cancel jobs of these contracts that expired before they began, by their contracts' cancel paths.

    Returns the moves, and how many jobs cannot be logged: these go into quarantine, so that no claim meets them.
    """
    cancelled: list[Moved] = []
    quarantined = 0
    bounds = {(bound.contract.name, bound.contract.version): bound for bound in known}
    names = {"contracts": [name for name, _ in bounds], "versions": [version for _, version in bounds]}
    for which in (yield statement("list_contracts_with_expired_jobs", {**names, "limit": limit})):
        bound = bounds[which]
        values = {"limit": limit, "reason": EXPIRED}
        outcomes = yield from _find_and_move(bound, "find_expired_unbegun", "cancel", values)
        outcomes = yield from settle_after(bound, outcomes)
        cancelled += [outcome for outcome in outcomes if isinstance(outcome, Moved)]
        refused = (one for one in outcomes if isinstance(one, Refused) and one.reason_code == "NOT_LOGGED")
        unlogged = {one.job_id: str(one)[:500] for one in refused if one.job_id is not None}
        yield from quarantine(unlogged)
        quarantined += len(unlogged)
    return cancelled, quarantined


def promote_plan(bound: BoundContract, limit: int, ids: Sequence[int] | None = None) -> Plan[list[Outcome]]:
    """Make waiting jobs ready that are due: all of a contract, or these ids."""
    return (yield from _find_and_move(bound, "find_promotable", "promote", {"limit": limit, "ids": ids}))


def _find_and_move(bound: BoundContract, picker: str, verb: str, values: Mapping[str, Any]) -> Plan[list[Outcome]]:
    """Move the jobs that the statement `picker` finds, with one transaction for every few id ranges.

    The first read is outside of a transaction: most rounds find nothing. Each transaction picks again, because another
    process may have taken jobs since.
    """
    found = [job_id for (job_id,) in (yield statement(picker, {**bound.claim, **values}))]
    outcomes: list[Outcome] = []
    for group in group_by_range(found):
        units = sorted({job_id // validation.ID_UNIT for job_id in group})
        try:
            outcomes += yield Atomic(_pick_and_move(bound, picker, verb, {**values, "units": units}))
        except psycopg.Error as error:
            if not is_row_error(error):
                raise
            # A job cannot be logged: move them one by one, so that the others move.
            for job_id in group:
                try:
                    outcomes += yield Atomic(_pick_and_move(bound, picker, verb, {**values, "ids": [job_id]}))
                except psycopg.Error as job_error:
                    if not is_row_error(job_error):
                        raise
                    outcomes.append(not_logged(job_id, verb, job_error))
    return outcomes


def _pick_and_move(bound: BoundContract, picker: str, verb: str, values: Mapping[str, Any]) -> Plan[list[Outcome]]:
    """Lock the jobs that the statement finds, except those that others have locked, and move them."""
    rows = yield statement(picker, {**bound.claim, **values})
    if not rows:
        return []
    errors = [bound.lost] * len(rows) if verb == "expire" else None
    reasons = [values["reason"]] * len(rows) if "reason" in values else None
    batch = Batch(bound, verb, [row[0] for row in rows], errors=errors, reasons=reasons, extra={"actor": UPKEEP})
    return (yield from move(batch, is_atomic=True))
