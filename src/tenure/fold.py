"""A job's log, folded through its contract's step function: where the job stands, or the first row that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tenure.contract import Contract
from tenure.step import Action, Row, Standing, Stepped, born, step

#: trigger → who pulls it in the model: holders show the job's own claim, time has passed where it must have.
_BY_HOLDER = ("start", "succeed", "snooze", "hand_back", "compensation_failed")
_BY_FAILURE = ("retry", "exhaust", "fatal")
_AFTER_EXPIRY = ("expire", "expire_at_cap", "reclaim")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a log, and at which of its rows (from 1)."""

    seq: int
    what: str


def fold(contract: Contract, limit: int, rows: Sequence[Row]) -> Standing | Fault:
    """Where a job with this log stands; or what in it its contract does not allow."""
    job = born(contract, limit)
    at = 0
    while at < len(rows):
        row = rows[at]
        if not row.hop:
            if row.trigger not in contract.facts:
                return Fault(at + 1, f"{row.trigger} is no fact that {contract.name} logs")
            if (row.from_state, row.to_state) != (job.state, job.state):
                return Fault(at + 1, f"{row.trigger} tells of {row.from_state}, and the job was {job.state}")
            told = Row(row.trigger, job.state, job.state, job.claims, job.counter, hop=False)
            if row != told:
                return Fault(at + 1, _difference(row, told))
            at += 1
            continue
        outcome = _pulled(contract, replace(job, wish=_wish(contract, job, rows[at:])), row)
        if outcome is None:
            return Fault(at + 1, f"{contract.name} has no {row.trigger} from {job.state} to {row.to_state} there")
        for told in outcome.rows:
            if at == len(rows):
                return Fault(at, f"the log ends inside the path of {told.trigger}: {told.to_state} is missing")
            if rows[at] != told:
                return Fault(at + 1, _difference(rows[at], told))
            at += 1
        job = outcome.after
    return job


def _wish(contract: Contract, job: Standing, rows: Sequence[Row]) -> str | None:
    """The end that the job's type must have chosen for a spent budget, if this is where its log goes next."""
    for path in contract.paths:
        ahead = [(row.trigger, row.to_state) for row in rows[: len(path.hops)]]
        if path.choice and job.state in path.sources and ahead == [(path.trigger, hop.state) for hop in path.hops]:
            return path.choice
    return None


def _pulled(contract: Contract, job: Standing, row: Row) -> Stepped | None:
    """What this row's trigger does to the job, with whatever must have been true for somebody to pull it."""
    trigger = row.trigger
    ready = replace(job, due=True, expired=False)
    if trigger in _AFTER_EXPIRY:
        ready = replace(ready, expired=True)
    if trigger in ("claim", "reclaim"):
        action = Action("claim")
    elif trigger in _BY_HOLDER:
        pending = "fatal" if trigger == "compensation_failed" else None
        ready, action = replace(ready, pending=pending), Action(trigger, job.claims)
        if trigger == "start" and not job.held:
            return None
    elif trigger in _BY_FAILURE:
        action = Action("fail", job.claims, verdict="retry" if trigger == "exhaust" else trigger)
    elif trigger in ("expire", "expire_at_cap"):
        action = Action("reap")
    elif trigger == "cancel":
        action = Action("cancel", to="hard")
    else:
        action = Action(trigger)
    outcome = step(contract, ready, action)
    if not isinstance(outcome, Stepped) or not outcome.rows or outcome.rows[0].trigger != trigger:
        return None
    return outcome


def _difference(found: Row, told: Row) -> str:
    for name in ("trigger", "from_state", "to_state", "claims", "counter", "hop"):
        if getattr(found, name) != getattr(told, name):
            return f"{name} is {getattr(found, name)!r}, and must be {getattr(told, name)!r}"
    return "differs"
