"""What PostgreSQL did and said, held against what the model does and says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tenure.contracts.declaration import HELD, Contract
from tenure.errors import InvalidTransition, NotDue, Refused, StaleLease
from tenure.jobs.job import Held, Job
from tenure.jobs.outcome import Effect, Moved, Noted
from tenure.model.fold import fold
from tenure.model.step import Action, LogRow, Outcome, RefusedStep, Standing

#: What the log tells of a job; who holds it now, and what is asked of it, is on the row alone.
TOLD_BY_LOG = ("state", "role", "limit", "counter", "claims", "raises", "letter")

LOOK = """
select job.*, job.role in ('leased', 'active') and (
           lease_expires_at < clock_timestamp()
           or coalesce(last_heartbeat_at + %(orphaned_ms)s * interval '1 millisecond' < clock_timestamp(), false)
       ) as expired,
       coalesce(due_at <= clock_timestamp(), true) as due,
       exists (select from tenure.dead_letter as letter where letter.job_id = job.id
               and (letter.claims, letter.counter) = (job.claims, job.counter)) as letter,
       (select coalesce(jsonb_agg(jsonb_build_array(seq, trigger, from_state, to_state, claims, counter, hop)
                                  order by seq), '[]')
        from tenure.event where event.job_id = job.id and event.seq > %(seq)s) as log
from (
    select xmin::text, * from tenure.job where id = %(id)s
    union all
    select xmin::text, * from tenure.job_done where id = %(id)s
) as job
"""


class Said(NamedTuple):
    """An answer, in words that the model has too."""

    what: str
    facts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.what, *map(str, self.facts)])


NOTHING = Said("nothing")


@dataclass
class Known:
    """What must be known of a job's past to know what will be said of it."""

    #: claim → the proof that it won, and who did.
    won: dict[int, Held] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    #: Effects that can be undone, oldest first.
    nodes: list[str] = field(default_factory=list)


def said(answer: Any) -> Said:
    """The engine's answer."""
    if answer is None:
        return NOTHING
    if isinstance(answer, Moved):
        return Said("moved", (*answer[1:5], answer.claims, answer.counter, answer.compensate))
    if isinstance(answer, Noted):
        return Said("noted", (answer.cancel_requested, answer.renewed))
    if isinstance(answer, Job):
        pending = answer.pending and answer.pending["trigger"]
        return Said("taken", (answer.state, answer.role, answer.claims, answer.counter, answer.lease_owner, pending))
    if isinstance(answer, Effect):
        return Said("recorded" if answer.recorded else "known")
    if isinstance(answer, StaleLease):
        return Said("stale", (answer.held_by,))
    if isinstance(answer, InvalidTransition):
        return Said("invalid", (answer.reason_code, answer.state))
    assert isinstance(answer, Refused), answer
    return Said("not_due" if isinstance(answer, NotDue) else answer.reason_code.lower())


def expected(contract: Contract, before: Standing, action: Action, outcome: Outcome, known: Known) -> Said:
    """The model's answer."""
    verb = action.verb
    if isinstance(outcome, RefusedStep):
        return NOTHING if verb == "claim" and action.flag else _refusal(contract, before, action, outcome, known)
    after, trigger = outcome.after, outcome.trigger
    if trigger in ("claim", "reclaim"):
        owner = known.owners[after.claims]
        return Said("taken", (after.state, after.role, after.claims, after.counter, owner, after.pending))
    if verb in ("claim", "transition") and not trigger:  # the lease that it closed was the last
        return NOTHING if action.flag else Said("invalid", (contract.invalid_transition, after.state))
    if verb == "heartbeat":
        return Said("noted", (before.cancelling, before.expired or contract.lease.renew_at >= 1))
    if verb == "effect":
        return Said("recorded")
    if verb in ("cancel", "hand_back") and not trigger:
        return Said("noted", (after.cancelling, False))
    if not trigger:
        return NOTHING
    undo = tuple(reversed(known.nodes)) if trigger == "compensate" else ()
    return Said("moved", (trigger, before.state, after.state, after.role, after.claims, after.counter, undo))


def _refusal(contract: Contract, before: Standing, action: Action, refused: RefusedStep, known: Known) -> Said:
    if not may_cancel(contract, action):
        return Said("cancel_mode")
    if refused.why == "stale":
        # Who has it now? Nobody whose own proof still fits: that lease was forfeited, not taken.
        taken = before.role in HELD and action.proof != before.claims
        return Said("stale", (known.owners[before.claims] if taken else None,))
    if refused.why in ("invalid", "finished"):
        return Said("invalid", (contract.invalid_transition, before.state))
    return Said(refused.why)


def may_cancel(contract: Contract, action: Action) -> bool:
    """Whether the contract has this way to cancel; one that it has not is refused however the job stands."""
    return action.verb != "cancel" or not contract.cancel_modes or action.to in contract.cancel_modes


def row_differences(contract: Contract, row: Mapping[str, Any], model: Standing) -> list[str]:
    """What of the row is not as the model has it. A row tells of a due time only while the job waits for it."""
    seen = Standing(
        row["state"], row["role"], row["max_attempts"], row["counter"], row["claims"], row["raises"],
        held=row["lease_token"] is not None or row["finisher"] is not None,
        expired=bool(row["expired"]),
        due=row["due"] if row["role"] in ("ready", "waiting") else model.due,
        timeless=row["due_at"] is None if row["role"] != "done" else model.timeless,
        cancelling=row["cancel_requested_at"] is not None,
        pending=row["pending"] and row["pending"]["trigger"],
        effects=row["undoable"] is True if row["role"] != "done" else model.effects,
        letter=row["letter"],
        chosen_end=next((wish for wish in contract.choices("exhaust") if row["type"] == type_of(wish)), None),
    )  # fmt: skip
    return _unequal("the row", seen, model, [one.name for one in fields(Standing)])


def log_differences(added: Sequence[Sequence[Any]], rows: Sequence[LogRow], before: int, after: int) -> list[str]:
    """What of the log's new rows (each behind its seq) is not as the model has it, given the row's seq."""
    logged = [LogRow(*event[1:]) for event in added]
    wrong = [] if logged == list(rows) else [f"the log got {_lines(logged)}, and must get {_lines(rows)}"]
    if [event[0] for event in added] != list(range(before + 1, after + 1)):
        wrong.append(f"seq of the row went from {before} to {after}, and the log got {[event[0] for event in added]}")
    return wrong


def fold_differences(contract: Contract, limit: int, log: Sequence[LogRow], model: Standing) -> list[str]:
    """What the whole log, folded, tells otherwise than the model."""
    folded = fold(contract, limit, log)
    if not isinstance(folded, Standing):
        return [f"the log cannot be folded: row {folded.seq}: {folded.what}"]
    held = ["held"] if model.role in HELD else []
    return _unequal("the folded log", folded, model, [*TOLD_BY_LOG, *held])


def type_of(wish: str | None) -> str:
    """The type of jobs with this wish."""
    return f"wants-{wish}" if wish else "plain"


def _unequal(what: str, seen: Standing, model: Standing, names: Sequence[str]) -> list[str]:
    pairs = [(name, getattr(seen, name), getattr(model, name)) for name in names]
    return [f"{name} of {what} is {found!r}, and must be {must!r}" for name, found, must in pairs if found != must]


def _lines(rows: Sequence[LogRow]) -> str:
    told = [
        f"{row.trigger} {row.from_state}→{row.to_state} (claim {row.claims}, counter {row.counter})"
        if row.hop
        else f"the fact {row.trigger} (claim {row.claims}, counter {row.counter})"
        for row in rows
    ]
    return ", ".join(told) or "nothing"
