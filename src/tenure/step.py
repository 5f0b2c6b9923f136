"""One step of one job, as its contract has it: (contract, standing, action) → what becomes of it, or why not.

This is the model that the explorer walks, the oracle of the property tests, and the fold behind `tenure verify`. It
knows nothing of SQL and of clocks: a lease has run out or it has not, a due time has come or it has not, and `lapse`
and `ripen` are the steps that time makes. A holder's proof is the number of its claim, because no claim ever has
another's token.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Literal

from tenure.contract import HELD, Contract, Path

#: The triggers that a request for a state may pull, in this order where several lead there.
REQUESTS = ("start", "succeed", "cancel", "dead_letter", "fatal", "promote", "retry")

#: What a holder says; everything else is said by workers without a job, operators, upkeep or time.
HOLDERS_VERBS = (
    "start", "heartbeat", "effect", "succeed", "fail", "snooze", "hand_back", "cancelled", "compensated",
    "compensation_failed",
)  # fmt: skip

Refusal = Literal["stale", "invalid", "not_due", "compensating", "finished"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands: everything about its row that decides what may happen next."""

    state: str
    role: str
    limit: int
    counter: int
    claims: int = 0
    raises: int = 0
    #: Whether somebody's token is on the row; of one that settles or is finished: whether its holder's call led there.
    held: bool = False
    #: Whether the lease has run out, or its holder missed its beats.
    expired: bool = False
    due: bool = True
    cancelling: bool = False
    #: The trigger that ends the job as soon as its effects are undone.
    pending: str | None = None
    #: Whether there are effects to undo before the job may end badly.
    effects: bool = False
    letter: bool = False
    #: The end that its type chose for a spent budget.
    wish: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody says: the verb, a holder's proof, and what else matters of it."""

    verb: str
    proof: int | None = None
    #: Of a failure: what its contract makes of such an error while the budget lasts.
    verdict: str = "retry"
    #: Of a transition: where to. Of a cancel: soft or hard.
    to: str = ""
    #: Of a snooze or a hand-back: whether it is due again at once. Of an effect: whether it can be undone.
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A log row that a step writes."""

    trigger: str
    from_state: str
    to_state: str
    claims: int
    counter: int
    hop: bool = True


@dataclass(frozen=True, slots=True)
class Stepped:
    """What became of a job: how it stands now, what was logged, and, for a fact without a hop, that nothing moved."""

    after: Standing
    rows: tuple[Row, ...] = ()
    #: The trigger that was pulled; "" for a note, "compensate" where effects are to be undone first.
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why nothing happened."""

    why: Refusal


Outcome = Stepped | Refused


def born(contract: Contract, limit: int | None = None, wish: str | None = None, *, due: bool = True) -> Standing:
    """A job as an enqueue makes it."""
    return Standing(
        contract.initial, "ready", contract.budget.default if limit is None else limit, contract.counter.initial,
        due=due, wish=wish,
    )  # fmt: skip


def in_budget(contract: Contract, job: Standing) -> bool:
    """Whether the job may be claimed once more."""
    return job.claims < contract.budget.executions(job.limit, job.raises)


def step(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Take one step. What may be repeated without harm (a request that stands already) leaves the job as it is."""
    verb = action.verb
    if verb in ("lapse", "ripen"):
        return Stepped(_time(job, verb))
    if verb == "start" and contract.path("start") is None:
        return Stepped(job)  # a step that the contract does not have: nothing is asked, so nothing is refused
    if job.role == "done":
        return _finished(job, action)
    if verb in HOLDERS_VERBS and _is_stale(contract, job, action.proof):
        return Refused("stale")
    if verb in HOLDERS_VERBS and job.role == "settling":
        return Refused("invalid")  # its own call led here, and nothing that a holder says leads on
    if verb in _SPECIAL:
        return _SPECIAL[verb](contract, job, action)
    return _pull(contract, job, action, verb)


def settle(contract: Contract, outcome: Outcome) -> Outcome:
    """Go on where a step ended at a commit point, as the engine does unless it is stopped in between."""
    if not isinstance(outcome, Stepped) or outcome.after.role != "settling" or not outcome.rows:
        return outcome  # a step that moved nothing is nobody's to go on with: upkeep settles what stands there
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
    if action.verb in HOLDERS_VERBS and not (job.held and action.proof == job.claims):
        return Refused("stale")
    return Refused("finished")


def _is_stale(contract: Contract, job: Standing, proof: int | None) -> bool:
    forfeited = contract.lease.after_expiry == "forfeited" and job.expired
    return not job.held or proof != job.claims or forfeited


def _claim(contract: Contract, job: Standing, action: Action) -> Outcome:
    closed: tuple[Row, ...] = ()
    if contract.lease.closed_by_claim and isinstance(reaped := _reap(contract, job, action), Stepped):
        job, closed = reaped.after, reaped.rows
        if closed and not (job.role == "ready" and job.due):
            return Stepped(job, closed)  # closed, and led to where nobody can claim it yet, or ever
    trigger = "claim" if job.role == "ready" else "reclaim"
    path = contract.path(trigger, job.state)
    if path is None:
        return Refused("invalid")
    if trigger == "claim" and not job.due:
        return Refused("not_due")
    if trigger == "reclaim" and (not job.expired or not in_budget(contract, job) or job.cancelling):
        return Refused("invalid")
    taken = replace(job, claims=job.claims + 1, held=True, expired=False)
    moved = _move(contract, taken, path)
    return Stepped(replace(moved.after, held=True), closed + moved.rows, trigger)


def _heartbeat(contract: Contract, job: Standing, action: Action) -> Outcome:
    renewed = job.expired or contract.lease.renew_at >= 1
    told = ["heartbeat", *(["renewed"] if renewed else [])]
    rows = tuple(_fact(job, fact) for fact in told if fact in contract.facts)
    return Stepped(replace(job, expired=False), rows)


def _effect(contract: Contract, job: Standing, action: Action) -> Outcome:
    if job.pending:
        return Refused("compensating")
    return Stepped(replace(job, effects=job.effects or action.flag))


def _fail(contract: Contract, job: Standing, action: Action) -> Outcome:
    trigger = action.verdict
    if job.pending:
        trigger = job.pending
    elif job.cancelling:
        trigger = "cancel"
    elif trigger == "retry" and not in_budget(contract, job):
        trigger = "exhaust"
    return _pull(contract, job, action, trigger)


def _snooze(contract: Contract, job: Standing, action: Action) -> Outcome:
    return _pull(contract, job, action, "cancel" if job.cancelling else "snooze")


def _hand_back(contract: Contract, job: Standing, action: Action) -> Outcome:
    if contract.path("reclaim"):
        return Stepped(replace(job, expired=True))  # let go: the next claim takes it in place
    if contract.path("hand_back"):
        return _pull(contract, job, action, "cancel" if job.cancelling else "hand_back")
    if job.pending:
        return _pull(contract, job, action, _lost(contract, job))
    ends = "expire" if in_budget(contract, job) else "expire_at_cap"
    return _pull(contract, job, action, "cancel" if job.cancelling else ends)


def _reap(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Close a lease that ran out; where a claim takes it in place, only what can no longer be claimed."""
    reclaimable = contract.path("reclaim") is not None and not job.cancelling and in_budget(contract, job)
    if job.role not in HELD or not job.expired or reclaimable:
        return Stepped(job)
    return _pull(contract, job, Action("reap"), _lost(contract, job))


def _lost(contract: Contract, job: Standing) -> str:
    if job.pending or job.effects:
        return "expire" if in_budget(contract, job) else "compensation_failed"
    if job.cancelling:
        return "cancel"
    return "expire" if in_budget(contract, job) else "expire_at_cap"


def _promote(contract: Contract, job: Standing, action: Action) -> Outcome:
    return _pull(contract, job, action, "promote") if job.role == "waiting" and job.due else Stepped(job)


def _settle(contract: Contract, job: Standing, action: Action) -> Outcome:
    return _pull(contract, job, action, "settle") if job.role == "settling" else Stepped(job)


def _cancel(contract: Contract, job: Standing, action: Action) -> Outcome:
    if contract.path("cancel", job.state) is None:
        return Refused("invalid")
    # Soft: a handler that runs is asked to stop, and effects are undone first; anything else is cancelled at once.
    undone_first = bool(job.effects or job.pending) and job.role in ("ready", "waiting", "leased")
    if action.to == "hard" or not (job.role == "active" or undone_first):
        return _pull(contract, job, action, "cancel")
    fresh = "cancel_requested" in contract.facts and not job.cancelling
    rows = (_fact(job, "cancel_requested"),) if fresh else ()
    return Stepped(replace(job, cancelling=True), rows)


def _compensated(contract: Contract, job: Standing, action: Action) -> Outcome:
    if job.pending is None:
        return Refused("invalid")
    rows = (_fact(job, "compensated"),) if "compensated" in contract.facts else ()
    ended = _pull(contract, job, action, "cancel" if job.cancelling else job.pending)
    return replace(ended, rows=rows + ended.rows) if isinstance(ended, Stepped) else ended


def _compensation_failed(contract: Contract, job: Standing, action: Action) -> Outcome:
    return Refused("invalid") if job.pending is None else _pull(contract, job, action, "compensation_failed")


def _transition(contract: Contract, job: Standing, action: Action) -> Outcome:
    """Make the hop to a state by the trigger that leads there, with that trigger's guards."""
    if any(path.end.state == action.to for path in contract.paths if path.trigger == "claim"):
        return _claim(contract, job, action)
    if job.role == "settling":
        ways = [path for path in contract.paths if path.trigger == "settle" and job.state in path.sources]
        led = any(path.hops[0].state == action.to for path in ways)
        return _pull(contract, job, action, "settle") if led else Refused("invalid")
    for trigger in REQUESTS:
        path = None if trigger in contract.closed_to_requests else _path(contract, job, trigger)
        if path is not None and path.hops[0].state == action.to:
            if trigger == "promote" and not job.due:
                return Refused("not_due")
            if trigger == "retry" and not in_budget(contract, job):
                return Refused("invalid")
            return _pull(contract, job, action, trigger)
    return Refused("invalid")


_SPECIAL = {
    "claim": _claim, "heartbeat": _heartbeat, "effect": _effect, "fail": _fail, "snooze": _snooze,
    "hand_back": _hand_back, "reap": _reap, "promote": _promote, "settle": _settle, "cancel": _cancel,
    "compensated": _compensated, "compensation_failed": _compensation_failed, "transition": _transition,
}  # fmt: skip


def _pull(contract: Contract, job: Standing, action: Action, trigger: str) -> Outcome:
    """Pull a trigger from where the job stands, if its contract has such a path and nothing is to be undone first."""
    trigger = "cancel" if trigger == "cancelled" else trigger
    path = _path(contract, job, trigger)
    if path is None:
        return Refused("invalid")
    if job.pending and trigger in ("succeed", "snooze", "retry"):
        return Refused("compensating")
    undoes = action.verb in ("fail", "cancelled", "snooze", "hand_back") and trigger != "compensation_failed"
    if undoes and (job.effects or job.pending) and path.end.role in ("done", "settling"):
        rows = () if job.pending else (_fact(job, "compensating"),)
        return Stepped(replace(job, pending=job.pending or trigger), rows, trigger="compensate")
    moved = _move(contract, job, path)
    if action.verb in ("snooze", "hand_back") and path.due == "given":
        moved = replace(moved, after=replace(moved.after, due=action.flag))
    if moved.after.role in ("settling", "done"):  # its holder differs from other callers afterwards
        by_holder = action.verb in HOLDERS_VERBS or (job.role == "settling" and job.held)
        moved = replace(moved, after=replace(moved.after, held=by_holder))
    return moved


def _path(contract: Contract, job: Standing, trigger: str) -> Path | None:
    chosen = contract.path(trigger, job.state, job.wish) if job.wish and trigger == "exhaust" else None
    return chosen or contract.path(trigger, job.state)


def _move(contract: Contract, job: Standing, path: Path) -> Stepped:
    """Walk a path: one log row a hop."""
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
        letter=job.letter or path.letter is not None,
        pending=None if end.role == "done" else job.pending,
    )
    states = [job.state, *(hop.state for hop in path.hops)]
    rows = tuple(Row(trigger, before, to, after.claims, after.counter) for before, to in itertools.pairwise(states))
    return Stepped(after, rows, trigger)


def _fact(job: Standing, fact: str) -> Row:
    return Row(fact, job.state, job.state, job.claims, job.counter, hop=False)
