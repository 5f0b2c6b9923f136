"""Fold a job's log through its contract's step function: where the job stands, or the first invalid log row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tenure.contracts.declaration import Contract
from tenure.model.step import Action, LogRow, Standing, Stepped, new_standing, step

#: Triggers by actor. A holder shows the job's own claim; the lease must have expired before an expiry trigger.
_BY_HOLDER = ("start", "succeed", "snooze", "hand_back", "compensation_failed")
_BY_FAILURE = ("retry", "exhaust", "fatal")
_AFTER_EXPIRY = ("expire", "expire_at_cap", "reclaim")
_ACTIONS = {
    "reclaim": Action("claim"), "expire": Action("reap"), "expire_at_cap": Action("reap"),
    "cancel": Action("cancel", to="hard"),
}  # fmt: skip

#: Facts that are logged under every contract without a state change.
OPERATOR_FACTS = ("queue_changed", "replaced", "retried_now")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a log, and the number of the row (from 1)."""

    seq: int
    what: str


def fold(contract: Contract, limit: int, rows: Sequence[LogRow]) -> Standing | Fault:
    """Return where a job with this log stands, or the first row that its contract does not allow."""
    job = new_standing(contract, limit)
    at = 0
    while at < len(rows):
        row = rows[at]
        if not row.hop:
            if row.trigger not in contract.facts and row.trigger not in OPERATOR_FACTS:
                return Fault(at + 1, f"{row.trigger} is not a fact that {contract.name} logs")
            if (row.from_state, row.to_state) != (job.state, job.state):
                return Fault(at + 1, f"{row.trigger} was logged in {row.from_state}, and the job was {job.state}")
            expected = LogRow(row.trigger, job.state, job.state, job.claims, job.counter, hop=False)
            if row != expected:
                return Fault(at + 1, _difference(row, expected))
            at += 1
            continue
        outcome = _apply(contract, replace(job, chosen_end=_chosen_end(contract, job, rows[at:])), row)
        if outcome is None:
            return Fault(at + 1, f"{contract.name} has no {row.trigger} from {job.state} to {row.to_state} there")
        for expected in outcome.rows:
            if at == len(rows):
                return Fault(at, f"the log ends inside the path of {expected.trigger}: {expected.to_state} is missing")
            if rows[at] != expected:
                return Fault(at + 1, _difference(rows[at], expected))
            at += 1
        job = outcome.after
    return job


def _chosen_end(contract: Contract, job: Standing, rows: Sequence[LogRow]) -> str | None:
    """Return the end that the job type must have chosen, if the log continues with that path."""
    for path in contract.paths:
        ahead = [(row.trigger, row.to_state) for row in rows[: len(path.hops)]]
        if path.choice and job.state in path.sources and ahead == [(path.trigger, hop.state) for hop in path.hops]:
            return path.choice
    return None


def _apply(contract: Contract, job: Standing, row: LogRow) -> Stepped | None:
    """Return what this row's trigger does to the job, under the conditions that the trigger requires."""
    trigger = row.trigger
    # When a job is due is not logged: a promotion shows that it had a time, and that this time had come.
    ready = replace(job, due=True, timeless=job.timeless and trigger != "promote", expired=trigger in _AFTER_EXPIRY)
    action = _ACTIONS.get(trigger) or Action(trigger)
    if trigger in _BY_HOLDER:
        pending = "fatal" if trigger == "compensation_failed" else None
        ready, action = replace(ready, pending=pending), Action(trigger, job.claims)
        if trigger == "start" and not job.held:
            return None
    elif trigger in contract.decisions:
        action = Action("transition", to=row.to_state)
    elif trigger in _BY_FAILURE:
        action = Action("fail", job.claims, verdict="retry" if trigger == "exhaust" else trigger)
    actions = [action]
    if trigger == "exhaust":  # or an operator ended the job before its budget was spent
        actions.append(Action("transition", to=row.to_state))
    for action in actions:
        outcome = step(contract, ready, action)
        if isinstance(outcome, Stepped) and outcome.rows and outcome.rows[0].trigger == trigger:
            return outcome
    return None


def _difference(found: LogRow, expected: LogRow) -> str:
    for name in ("trigger", "from_state", "to_state", "claims", "counter", "hop"):
        if getattr(found, name) != getattr(expected, name):
            return f"{name} is {getattr(found, name)!r}, and must be {getattr(expected, name)!r}"
    return "differs"
