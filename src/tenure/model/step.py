"""One step of one job under its contract: (contract, standing, action) → the new standing, or a refusal.

The explorer walks this model, property tests use it as the oracle, and `tenure verify` folds logs with it. It knows no
SQL and no clock: a lease has expired or not, a due time has come or not, and `lapse` and `ripen` are the steps of
time. The number of a claim proves that a caller holds the job, because every claim has its own token.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Literal

from tenure.contracts.declaration import HELD, Contract, Path

#: What only the holder may do: its verbs except the notes, which decide nothing, and the record of an effect.
HOLDER_ACTIONS = (
    "start", "heartbeat", "effect", "succeed", "fail", "snooze", "hand_back", "cancelled", "compensated",
    "compensation_failed",
)  # fmt: skip

Refusal = Literal["stale", "invalid", "not_due", "compensating", "finished"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything about a job's row that decides what may happen next."""

    state: str
    role: str
    limit: int
    counter: int
    claims: int = 0
    raises: int = 0
    #: Whether a lease token is on the row. For a settling or finished job: whether its holder's call led there.
    held: bool = False
    #: Whether the lease has expired, or its holder missed too many heartbeats.
    expired: bool = False
    due: bool = True
    #: Whether the job has no due time: while it is waiting, only a decision moves it.
    timeless: bool = False
    cancelling: bool = False
    #: The trigger that ends the job after its effects are compensated.
    pending: str | None = None
    #: Whether effects must be compensated before the job may fail.
    effects: bool = False
    letter: bool = False
    #: The end that the job type chose for a spent budget.
    chosen_end: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """A call: the verb, the holder's claim number, and its other facts."""

    verb: str
    proof: int | None = None
    #: Of a failure: the trigger that the contract chooses for such an error while the budget lasts.
    verdict: str = "retry"
    #: Of a transition: the target state. Of a cancel: soft or hard.
    to: str = ""
    #: Of a snooze or a hand-back: whether the job is due at once. Of an effect: whether it can be compensated.
    flag: bool = False


@dataclass(frozen=True, slots=True)
class LogRow:
    """A log row that a step writes."""

    trigger: str
    from_state: str
    to_state: str
    claims: int
    counter: int
    hop: bool = True


@dataclass(frozen=True, slots=True)
class Stepped:
    """An accepted step: the new standing and its log rows. A fact without a hop changes no state."""

    after: Standing
    rows: tuple[LogRow, ...] = ()
    #: The trigger that was used; "" for a fact, "compensate" if effects must be compensated first.
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class RefusedStep:
    """A refused step, with the reason."""

    why: Refusal


Outcome = Stepped | RefusedStep


def new_standing(
    contract: Contract, limit: int | None = None, chosen_end: str | None = None, *, due: bool = True
) -> Standing:
    """Return a job as enqueue creates it: due at once, or (`due` False) at a later time that the caller gave."""
    role = contract.initial_role
    return Standing(
        contract.initial, role, contract.budget.default if limit is None else limit, contract.counter.initial,
        due=due, timeless=due and role == "waiting", chosen_end=chosen_end,
    )  # fmt: skip


def in_budget(contract: Contract, job: Standing) -> bool:
    """Whether the job may be claimed once more."""
    return job.claims < contract.budget.executions(job.limit, job.raises)


def step(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Take one step. A repeat that changes nothing (a request that is already recorded) leaves the job unchanged."""
    verb = action.verb
    if verb in ("lapse", "ripen"):
        return Stepped(_time(job, verb))
    if verb == "start" and contract.path("start") is None:
        return Stepped(job)  # the contract has no such step: it does nothing and is not refused
    if job.role == "done":
        return _finished(job, action)
    if verb in HOLDER_ACTIONS and _is_stale(contract, job, action.proof):
        return RefusedStep("stale")
    if verb in HOLDER_ACTIONS and job.role == "settling":
        return RefusedStep("invalid")  # the holder's own call led here; no holder verb leads on
    if verb in _SPECIAL:
        return _SPECIAL[verb](contract, job, action)
    return _apply(contract, job, action, verb)


def pass_commit_point(contract: Contract, outcome: Outcome) -> Outcome:
    """Continue after a step that ended at a commit point, as the engine does unless it is interrupted."""
    if not isinstance(outcome, Stepped) or outcome.after.role != "settling" or not outcome.rows:
        return outcome  # the step moved nothing; upkeep settles jobs at a commit point
    ended = step(contract, outcome.after, Action("settle"))
    if not isinstance(ended, Stepped):
        return outcome
    return Stepped(ended.after, outcome.rows + ended.rows, outcome.trigger)


def _time(job: Standing, verb: str) -> Standing:
    if verb == "lapse":
        return replace(job, expired=True) if job.role in HELD else job
    return replace(job, due=True) if job.role in ("ready", "waiting") else job


def _finished(job: Standing, action: Action) -> Outcome:
    if action.verb in ("reap", "promote", "settle"):
        return Stepped(job)
    if action.verb in HOLDER_ACTIONS and not (job.held and action.proof == job.claims):
        return RefusedStep("stale")
    return RefusedStep("finished")


def _is_stale(contract: Contract, job: Standing, proof: int | None) -> bool:
    forfeited = contract.lease.after_expiry == "forfeited" and job.expired
    return not job.held or proof != job.claims or forfeited


def _claim(contract: Contract, job: Standing, action: Action) -> Outcome:
    closed: tuple[LogRow, ...] = ()
    if contract.lease.closed_by_claim and isinstance(reaped := _reap(contract, job, action), Stepped):
        job, closed = reaped.after, reaped.rows
        if closed and not (job.role == "ready" and job.due):
            return Stepped(job, closed)  # closed, and the job cannot be claimed now
    trigger = "claim" if job.role == "ready" else "reclaim"
    path = contract.path(trigger, job.state)
    if path is None:
        return RefusedStep("invalid")
    if trigger == "claim" and not job.due:
        return RefusedStep("not_due")
    if trigger == "reclaim" and (not job.expired or not in_budget(contract, job) or job.cancelling):
        return RefusedStep("invalid")
    taken = replace(job, claims=job.claims + 1, held=True, expired=False)
    moved = _move(contract, taken, path)
    return Stepped(replace(moved.after, held=True), closed + moved.rows, trigger)


def _heartbeat(contract: Contract, job: Standing, action: Action) -> Outcome:
    renewed = job.expired or contract.lease.renew_at >= 1
    facts = ["heartbeat", *(["renewed"] if renewed else [])]
    rows = tuple(_fact(job, fact) for fact in facts if fact in contract.facts)
    return Stepped(replace(job, expired=False), rows)


def _effect(contract: Contract, job: Standing, action: Action) -> Outcome:
    if job.pending:
        return RefusedStep("compensating")
    return Stepped(replace(job, effects=job.effects or action.flag))


def _fail(contract: Contract, job: Standing, action: Action) -> Outcome:
    trigger = action.verdict
    if job.pending:
        trigger = job.pending
    elif job.cancelling:
        trigger = "cancel"
    elif trigger == "retry" and not in_budget(contract, job):
        trigger = "exhaust"
    return _apply(contract, job, action, trigger)


def _snooze(contract: Contract, job: Standing, action: Action) -> Outcome:
    return _apply(contract, job, action, "cancel" if job.cancelling else "snooze")


def _hand_back(contract: Contract, job: Standing, action: Action) -> Outcome:
    if contract.path("reclaim"):
        return Stepped(replace(job, expired=True))  # released: the next claim takes it in place
    if contract.path("hand_back"):
        return _apply(contract, job, action, "cancel" if job.cancelling else "hand_back")
    if job.pending:
        return _apply(contract, job, action, _lost(contract, job))
    ends = "expire" if in_budget(contract, job) else "expire_at_cap"
    return _apply(contract, job, action, "cancel" if job.cancelling else ends)


def _reap(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Close an expired lease. If the contract reclaims in place, only close jobs that cannot be claimed again."""
    reclaimable = contract.path("reclaim") is not None and not job.cancelling and in_budget(contract, job)
    if job.role not in HELD or not job.expired or reclaimable:
        return Stepped(job)
    return _apply(contract, job, Action("reap"), _lost(contract, job))


def _lost(contract: Contract, job: Standing) -> str:
    if job.pending or job.effects:
        return "expire" if in_budget(contract, job) else "compensation_failed"
    if job.cancelling:
        return "cancel"
    return "expire" if in_budget(contract, job) else "expire_at_cap"


def _promote(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Make a waiting job ready whose time has come. A state without that path waits for a decision alone."""
    has_path = contract.path("promote", job.state) is not None
    ripe = job.role == "waiting" and job.due and not job.timeless and has_path
    return _apply(contract, job, action, "promote") if ripe else Stepped(job)


def _settle(contract: Contract, job: Standing, action: Action) -> Outcome:
    return _apply(contract, job, action, "settle") if job.role == "settling" else Stepped(job)


def _cancel(contract: Contract, job: Standing, action: Action) -> Outcome:
    if contract.path("cancel", job.state) is None:
        return RefusedStep("invalid")
    # Soft: a running handler is asked to stop, effects are compensated first, any other job is cancelled at once.
    compensates_first = bool(job.effects or job.pending) and job.role in ("ready", "waiting", "leased")
    if action.to == "hard" or not (job.role == "active" or compensates_first):
        return _apply(contract, job, action, "cancel")
    fresh = "cancel_requested" in contract.facts and not job.cancelling
    rows = (_fact(job, "cancel_requested"),) if fresh else ()
    return Stepped(replace(job, cancelling=True), rows)


def _compensated(contract: Contract, job: Standing, action: Action) -> Outcome:
    if job.pending is None:
        return RefusedStep("invalid")
    rows = (_fact(job, "compensated"),) if "compensated" in contract.facts else ()
    ended = _apply(contract, job, action, "cancel" if job.cancelling else job.pending)
    return replace(ended, rows=rows + ended.rows) if isinstance(ended, Stepped) else ended


def _compensation_failed(contract: Contract, job: Standing, action: Action) -> Outcome:
    return RefusedStep("invalid") if job.pending is None else _apply(contract, job, action, "compensation_failed")


def _transition(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Make the hop to a state by the trigger that leads there, with that trigger's guards."""
    if any(path.end.state == action.to for path in contract.paths if path.trigger == "claim"):
        return _claim(contract, job, action)
    if job.role == "settling":
        settling = [path for path in contract.paths if path.trigger == "settle" and job.state in path.sources]
        led = any(path.hops[0].state == action.to for path in settling)
        return _apply(contract, job, action, "settle") if led else RefusedStep("invalid")
    for trigger in contract.requestable:
        path = _path(contract, job, trigger)
        if path is not None and path.hops[0].state == action.to:
            if trigger == "promote" and (not job.due or job.timeless):
                return RefusedStep("not_due")
            if trigger == "retry" and not in_budget(contract, job):
                return RefusedStep("invalid")
            return _apply(contract, job, action, trigger)
    return RefusedStep("invalid")


_SPECIAL = {
    "claim": _claim, "heartbeat": _heartbeat, "effect": _effect, "fail": _fail, "snooze": _snooze,
    "hand_back": _hand_back, "reap": _reap, "promote": _promote, "settle": _settle, "cancel": _cancel,
    "compensated": _compensated, "compensation_failed": _compensation_failed, "transition": _transition,
}  # fmt: skip


def _apply(contract: Contract, job: Standing, action: Action, trigger: str) -> Outcome:
    """Apply a trigger if the contract has a path for it and no compensation comes first."""
    trigger = "cancel" if trigger == "cancelled" else trigger
    path = _path(contract, job, trigger)
    if path is None:
        return RefusedStep("invalid")
    if job.pending and trigger in ("succeed", "snooze", "retry"):
        return RefusedStep("compensating")
    compensates = action.verb in ("fail", "cancelled", "snooze", "hand_back") and trigger != "compensation_failed"
    if compensates and (job.effects or job.pending) and path.end.role in ("done", "settling"):
        rows = () if job.pending else (_fact(job, "compensating"),)
        return Stepped(replace(job, pending=job.pending or trigger), rows, trigger="compensate")
    moved = _move(contract, job, path)
    if action.verb in ("snooze", "hand_back") and path.due == "given":
        moved = replace(moved, after=replace(moved.after, due=action.flag))
    if moved.after.role in ("settling", "done"):  # the last holder is still told apart from other callers
        by_holder = action.verb in HOLDER_ACTIONS or (job.role == "settling" and job.held)
        moved = replace(moved, after=replace(moved.after, held=by_holder))
    return moved


def _path(contract: Contract, job: Standing, trigger: str) -> Path | None:
    chosen = contract.path(trigger, job.state, job.chosen_end) if job.chosen_end and trigger == "exhaust" else None
    return chosen or contract.path(trigger, job.state)


def _move(contract: Contract, job: Standing, path: Path) -> Stepped:
    """Follow a path: one log row per hop."""
    end, trigger = path.end, path.trigger
    after = replace(
        job,
        state=end.state,
        role=end.role,
        counter=job.counter + (trigger in contract.counter.on),
        raises=job.raises + (trigger in ("snooze", "hand_back")),
        held=job.held and end.role in HELD,
        expired=job.expired and end.role in HELD,
        due={"backoff": False, "now": True, "given": True}.get(path.due, job.due),
        # A job that becomes ready is due at once if nobody gave a time.
        timeless=job.timeless and path.due == "keep" and end.role != "ready",
        letter=job.letter or path.letter is not None,
        pending=None if end.role == "done" else job.pending,
    )
    states = [job.state, *(hop.state for hop in path.hops)]
    rows = tuple(LogRow(trigger, before, to, after.claims, after.counter) for before, to in itertools.pairwise(states))
    return Stepped(after, rows, trigger)


def _fact(job: Standing, fact: str) -> LogRow:
    return LogRow(fact, job.state, job.state, job.claims, job.counter, hop=False)
