"""Quarantine of jobs that cannot be logged: failing claims and cancels find them, later ones skip them, upkeep retries.

A claim logs each job that it takes in the same statement. One job whose log row PostgreSQL refuses (its partition is
missing, its number is taken, a trigger raises) would fail every claim that meets it.

If nothing can be logged, neither a test row nor one of these jobs, no job is skipped: the claim fails and changes
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import psycopg

from tenure.jobs.validation import ID_UNIT
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.connect import first_line
from tenure.postgres.move import Batch, is_row_error, move
from tenure.postgres.statement import Atomic, Plan, Row, statement

_log = logging.getLogger("tenure")

#: At most this many jobs are isolated at a time, because each costs some rehearsals; and this often per claim.
_MOST, _ROUNDS = 100, 10
#: At most this many jobs of an id range without a log partition are skipped at a time.
_MOST_OF_A_RANGE = 10_000


def tenant_suffix(tenant: str | None) -> str:
    """The end of the name of a statement that reads the index of tenants other than `default`."""
    return "" if tenant in (None, "default") else "_of_tenant"


def claim_skipping_unloggable(bound: BoundContract, name: str, values: Mapping[str, Any]) -> Plan[list[Row]]:
    """Claim; if jobs cannot be logged, quarantine them and claim again."""
    claim = statement(name, values)
    wide, versions = {**values, "limit": max(values["limit"], _MOST)}, values["versions"]
    for _ in range(_ROUNDS):
        try:
            rows: list[Row] = yield claim
        except psycopg.Error as error:
            if not is_row_error(error):
                raise
            ids = [row[0] for row in (yield statement(f"claimable{tenant_suffix(values['tenant'])}", wide))]
            if not (yield from _can_log_some(bound, versions, ids)) or not (yield from _isolate(bound, versions, ids)):
                raise
        else:
            return rows
    rows = yield claim
    return rows


def _can_log_some(bound: BoundContract, versions: Sequence[str], ids: Sequence[int]) -> Plan[bool]:
    """Whether a test row, or the first, middle or last job, can be logged; otherwise the log itself fails."""
    samples = {ids[0], ids[len(ids) // 2], ids[-1]} if ids else set[int]()
    for plan in (_log_test_row(bound), *(_rehearse(bound, versions, [job_id]) for job_id in samples)):
        try:
            yield Atomic(plan, rehearsal=True)
        except psycopg.Error as error:
            if not is_row_error(error):
                raise
        else:
            return True
    return False


def _isolate(bound: BoundContract, versions: Sequence[str], ids: list[int]) -> Plan[bool]:
    """Quarantine the jobs that cannot be logged, found by rehearsing smaller claims; returns whether any is."""
    found: dict[int, str] = {}
    missing: dict[int, str] = {}
    left = [ids] if ids else []
    while left and len(found) < _MOST:
        part = [job_id for job_id in left.pop() if job_id // ID_UNIT not in missing]
        try:
            yield Atomic(_rehearse(bound, versions, part), rehearsal=True)
        except psycopg.Error as error:
            if not is_row_error(error):
                raise
            reason = first_line(error)[:500]
            if len(part) > 1:
                middle = len(part) // 2
                left += [part[middle:], part[:middle]]
            elif _lacks_partition(error):
                missing[part[0] // ID_UNIT] = reason
            else:
                found[part[0]] = reason
    yield from quarantine(found)
    for unit, reason in missing.items():
        yield from _quarantine_jobs_of_range(unit, reason, ids)
    return bool(found or missing)


def quarantine(found: Mapping[int, str]) -> Plan[None]:
    """Leave these jobs out of claims, each with the reason why it cannot be logged; nothing happens without jobs."""
    if found:
        yield statement("quarantine_jobs", {"ids": list(found), "reasons": list(found.values())})
    for job_id, reason in found.items():
        _log.error("job %d cannot be logged; claims skip it for some minutes: %s. Next: tenure verify", job_id, reason)


def _lacks_partition(error: psycopg.Error) -> bool:
    """Whether no partition takes the row's id: the only CHECK violation without a constraint name."""
    return isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None


def _quarantine_jobs_of_range(unit: int, reason: str, ids: Sequence[int]) -> Plan[None]:
    """Quarantine these and other jobs of an id range that has no log partition."""
    near = [job_id for job_id in ids if job_id // ID_UNIT == unit]
    yield statement("quarantine_jobs", {"ids": near, "reasons": [reason] * len(near)})
    low, high = unit * ID_UNIT, (unit + 1) * ID_UNIT
    values = {"low": low, "high": high, "reason": reason, "limit": _MOST_OF_A_RANGE}
    others = yield statement("quarantine_jobs_of_range", values)
    _log.error(
        "%d jobs with ids from %d to %d cannot be logged; claims skip them for some minutes: %s. "
        "Next: tenure verify", len(near) + len(others), low, high - 1, reason,
    )  # fmt: skip


def _log_test_row(bound: BoundContract) -> Plan[None]:
    """Write a test log row of no job, as a claim would write it."""
    path = bound.contract.path("claim")
    states = {"state": path.sources[0], "to_state": path.hops[0].state} if path else {}
    yield statement("insert_probe_event", {"contract": bound.contract.name, **states})


def _rehearse(bound: BoundContract, versions: Sequence[str], ids: Sequence[int]) -> Plan[None]:
    """Claim these jobs by id, as a claim would log them; skips locked jobs."""
    batch = Batch(bound, "claim", list(ids), claim_keys=[uuid4()] * len(ids), owners=["rehearsal"] * len(ids))
    batch.extra = {"lease_ms": None, "versions": versions, "heeds_pause": False}
    yield from move(batch, skip_locked=True)
