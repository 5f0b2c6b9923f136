"""Move jobs: send a batch of jobs with one verb through the gate; one outcome per job.

    move ─▶ parts in id order ─▶ one statement per part ─▶ Moved or Refused for each job

The statement checks the lease, the state and the budget, moves the row and writes its log row. A job that it does not
return is finished, locked or unknown: `explain_missing` finds out which.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg

from tenure.errors import Busy, IdempotencyConflict, InvalidTransition, JobNotFound, NotDue, Refused, StaleLease
from tenure.jobs.job import Held
from tenure.jobs.outcome import Moved, Outcome
from tenure.jobs.validation import ID_UNIT
from tenure.postgres.bound_contract import BoundContract, move_statement
from tenure.postgres.connect import LOCK_ERRORS, UNSTORABLE, first_line
from tenure.postgres.idempotency import find_answered, nodes_to_undo, read_moved, replay
from tenure.postgres.ranges import group_by_range, read_by_range
from tenure.postgres.statement import Atomic, Plan, Row, Statement, if_any, statement

#: The reason code of a claim by id that is refused because this process does not know the job's contract version.
UNKNOWN_VERSION: Final = "UNKNOWN_VERSION"
#: The reason code of a worker's claim by id that is refused because the job's queue is paused.
QUEUE_PAUSED: Final = "QUEUE_PAUSED"
#: The reason code of a claim by id that is refused because the job expired before it began.
EXPIRED: Final = "EXPIRED"
#: SQLSTATE classes of errors caused by a row: data exception, integrity violation, raised by a trigger.
_ROW_ERROR_CLASSES = ("22", "23", "P0")


def is_row_error(error: psycopg.Error) -> bool:
    """Whether PostgreSQL refused a row, and not the statement, the session or a text from the caller."""
    return (error.sqlstate or "")[:2] in _ROW_ERROR_CLASSES and not isinstance(error, UNSTORABLE)


def not_logged(job_id: int, verb: str, error: psycopg.Error) -> Refused:
    """The refusal of a move that PostgreSQL could not write or log."""
    why = f"job {job_id}: its {verb} could not be logged ({first_line(error)}). Next: tenure verify"
    return Refused(job_id, why, code="NOT_LOGGED")


#: The columns of facts of a batch, which are also parameters of the statements.
_FACTS = ("verdicts", "reasons", "errors", "results", "delays", "notes", "keys", "claim_keys", "owners")


@dataclass(slots=True)
class Batch:
    """Jobs of one contract version to move with one verb, by column: ids, leases, facts."""

    bound: BoundContract
    verb: str
    ids: Sequence[int]
    #: The leases of a holder's verb, which its statement checks. None: upkeep, an operator or a claim moves the jobs.
    held: Sequence[Held] | None = None
    verdicts: Sequence[str] | None = None
    reasons: Sequence[str | None] | None = None
    errors: Sequence[str | None] | None = None
    results: Sequence[str | None] | None = None
    delays: Sequence[int | None] | None = None
    notes: Sequence[str | None] | None = None
    keys: Sequence[str | None] | None = None
    #: Of a claim by id: the claim key and the worker of each job.
    claim_keys: Sequence[UUID] | None = None
    owners: Sequence[str] | None = None
    #: Parameters that are the same for all jobs, such as the actor.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def select(self, places: Sequence[int]) -> Batch:
        """The batch of the jobs at these places."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in ("ids", "held", *_FACTS)}
        chosen: dict[str, Any] = {name: _at(column, places) for name, column in columns.items() if column}
        return replace(self, **chosen)

    def values(self, places: Sequence[int]) -> dict[str, Any]:
        """The parameters of the jobs at these places. An absent fact is an empty array, which unnest pads with NULL."""
        hashes = [] if self.keys is None else [self.fingerprint(n) for n in places]
        facts = {name: _at(getattr(self, name), places) for name in _FACTS}
        return {**self.leases(places), **facts, "hashes": hashes}

    def leases(self, places: Sequence[int]) -> dict[str, Any]:
        """The ids of the jobs at these places, and the claim number and token of each lease."""
        held = _at(self.held, places)
        return {
            "ids": [self.ids[n] for n in places],
            "size": len(places),
            "claims": [lease.claims for lease in held],
            "tokens": _token_texts([lease.token for lease in held]),
        }

    def fingerprint(self, n: int) -> str:
        """A hash of the call (verb, lease, facts): a repeated key must have the same one."""
        lease = self.held[n] if self.held else None
        plain = [column and column[n] for column in (self.verdicts, self.reasons, self.delays)]
        # The order of keys in a document does not matter.
        documents = [column and json.loads(column[n] or "null") for column in (self.errors, self.results, self.notes)]
        body = [self.verb, self.ids[n], lease and lease.claims, lease and str(lease.token), *plain, *documents]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _at(column: Sequence[Any] | None, places: Sequence[int]) -> list[Any]:
    return [] if column is None else [column[n] for n in places]


def _token_texts(tokens: Sequence[UUID]) -> list[str]:
    """Tokens as text. A batch often repeats one token, and a UUID is slow to convert and to compare."""
    texts: list[str] = []
    last, text = None, ""
    for token in tokens:
        if token is not last:
            last, text = token, str(token)
        texts.append(text)
    return texts


def move(batch: Batch, *, skip_locked: bool = False, is_atomic: bool = False) -> Plan[list[Outcome]]:
    """Move a batch; one outcome per job, in order. With `skip_locked`, a locked job is Busy.

    Where the contract publishes wake-ups, those of jobs that become ready are written in the same transaction.
    `is_atomic`: the caller has already opened it.
    """
    if batch.verb not in batch.bound.waking:
        return (yield from _move(batch, skip_locked=skip_locked))
    plan = _move_and_wake(batch, skip_locked=skip_locked)
    if is_atomic:
        return (yield from plan)
    outcomes: list[Outcome] = yield Atomic(plan)
    return outcomes


def _move_and_wake(batch: Batch, *, skip_locked: bool) -> Plan[list[Outcome]]:
    outcomes = yield from _move(batch, skip_locked=skip_locked)
    ready = [outcome.job_id for outcome in outcomes if isinstance(outcome, Moved) and outcome.role == "ready"]
    if ready:
        yield statement("insert_wakeups", {"ids": ready})
    return outcomes


def _move(batch: Batch, *, skip_locked: bool) -> Plan[list[Outcome]]:
    outcomes: list[Any] = [None] * len(batch.ids)
    # A batch may name one job twice (its holder and a former holder): the second call is in a later part.
    first: int | None = None
    for places in id_ordered_parts(batch.ids):
        first = places[0] if first is None else first
        try:
            rows, sent = yield from _send(batch, places, outcomes, skip_locked=skip_locked)
        except LOCK_ERRORS as lock_error:
            if skip_locked or places[0] == first:
                raise
            try:  # the parts before are committed: running the whole batch again would refuse them
                rows, sent = yield from _send(batch, places, outcomes, skip_locked=True)
            except psycopg.errors.InFailedSqlTransaction:
                raise lock_error from None
        except psycopg.Error as error:
            if not is_row_error(error):
                raise
            yield from _move_loggable(batch, places, outcomes, error, skip_locked=skip_locked)
            continue
        compensating_triggers: dict[int, str] = {}
        for row in rows:
            n = sent[row[0] - 1]
            outcomes[n] = (
                Moved._make((*row[2:12], (), row[14]))
                if row[1] is None
                else to_refusal(batch, row[2], row[1], row[4], row[12], row[13], row[10])
            )
            if row[1] == "compensate":
                compensating_triggers[n] = row[3]
        yield from explain_missing(batch, places, outcomes)
        if batch.keys is not None:
            # Logged before: do not log it twice.
            for n in (yield from find_answered(batch, list(compensating_triggers))):
                outcomes[n] = IdempotencyConflict(str(batch.keys[n]), batch.ids[n])
                del compensating_triggers[n]
            yield from replay(batch, places, outcomes, read_moved)
        if compensating_triggers:
            yield from _compensate(batch, compensating_triggers, outcomes)
    return outcomes


def _move_loggable(
    batch: Batch, places: Sequence[int], outcomes: list[Any], error: psycopg.Error, *, skip_locked: bool
) -> Plan[None]:
    """Find by rehearsals the jobs that cannot be logged, refuse them, and move the others together."""
    try:
        yield statement("find_live_ids", {"ids": [batch.ids[places[0]]]})
    except psycopg.errors.InFailedSqlTransaction:
        raise error from None  # this step is part of a transaction that is rolled back as a whole
    for n in places:
        if outcomes[n] is not None:  # a repeat of a call that was done: the move below finds its answer
            outcomes[n] = None
            continue
        try:
            yield Atomic(_move(batch.select([n]), skip_locked=skip_locked), rehearsal=True)
        except psycopg.Error as job_error:
            if not is_row_error(job_error):
                raise
            outcomes[n] = not_logged(batch.ids[n], batch.verb, job_error)
    loggable = [n for n in places if outcomes[n] is None]
    if len(loggable) == len(places):
        raise error
    if loggable:
        moved = yield from _move(batch.select(loggable), skip_locked=skip_locked)
        for n, outcome in zip(loggable, moved, strict=True):
            outcomes[n] = outcome


def succeed(batch: Batch) -> Plan[list[Outcome]]:
    """End jobs as succeeded: plain cases by the short statements (`queries/succeed.sql`), the others by `move`."""
    if batch.bound.success is None or batch.keys is not None:
        return (yield from move(batch))
    outcomes: list[Any] = [None] * len(batch.ids)
    left: Sequence[int] = next(iter(id_ordered_parts(batch.ids)), ())
    for in_flow in (batch.bound.flows_first, not batch.bound.flows_first):
        if left and (yield from _succeed_shortly(batch, left, outcomes, in_flow=in_flow)):
            left = [n for n in left if outcomes[n] is None]
            batch.bound.flows_first = in_flow
    left = [n for n, outcome in enumerate(outcomes) if outcome is None]
    if left:
        left_batch = batch.select(left)
        try:
            moved = yield from move(left_batch)
        except LOCK_ERRORS:
            # Running the whole batch again would refuse the jobs that have just ended.
            moved = yield from move(left_batch, skip_locked=True)
        for n, outcome in zip(left, moved, strict=True):
            outcomes[n] = outcome
    return outcomes


def _succeed_shortly(batch: Batch, places: Sequence[int], outcomes: list[Any], *, in_flow: bool) -> Plan[int]:
    """End jobs of flows, or the others, and set their outcomes; returns how many."""
    short = batch.bound.success or {}
    values = {**short, **batch.leases(places), "results": if_any(_at(batch.results, places))}
    try:
        rows = yield statement(_short_statement(batch, in_flow=in_flow), values)
    except psycopg.Error as error:
        if not is_row_error(error):
            raise
        rows = []  # a job cannot be logged: move finds out which
    held = batch.held or ()
    end = short["end_state"]
    for place, state, counter, at, *flow in rows:
        n = places[place - 1]
        outcomes[n] = Moved(batch.ids[n], "succeed", state, end, "done", held[n].claims, counter, at)
        if flow:
            outcomes[n] = outcomes[n]._replace(flow_id=flow[0])
    return len(rows)


def _short_statement(batch: Batch, *, in_flow: bool) -> str:
    """The short statement of a success; without a lease that runs out by itself it needs no step that locks first."""
    if in_flow:
        return "succeed_in_flow"
    forfeits = batch.bound.contract.lease.after_expiry == "forfeited"
    return "succeed" if forfeits else "succeed_in_one_pass"


def _send(
    batch: Batch, places: Sequence[int], outcomes: list[Any], *, skip_locked: bool
) -> Plan[tuple[list[Row], Sequence[int]]]:
    """Send the jobs at these places; returns the rows, and the places to which the row numbers refer.

    A key that is already in the job's log makes the whole statement fail: then those jobs are left out.
    """
    fenced = batch.held is not None
    common = {**batch.bound.moves[batch.verb], **batch.extra, "fenced": fenced}

    def to_statement(places: Sequence[int]) -> Statement:
        name = move_statement(batch.verb, fenced=fenced)
        return statement(name, {**common, **batch.values(places)}, skip_locked=skip_locked)

    try:
        return (yield to_statement(places)), places
    except psycopg.errors.UniqueViolation as repeated_key:
        try:
            used = yield from find_answered(batch, places)
            for n in used:
                outcomes[n] = IdempotencyConflict(str(batch.keys and batch.keys[n]), batch.ids[n])
            unused = [n for n in places if n not in used]
            return ((yield to_statement(unused)) if unused else []), unused
        except psycopg.errors.InFailedSqlTransaction:
            raise repeated_key from None  # inside a transaction: the engine runs all of it again


def _compensate(batch: Batch, triggers: Mapping[int, str], outcomes: list[Any]) -> Plan[None]:
    """Keep each failure on its row until the effects are undone; the outcome names the effects."""
    places = list(triggers)
    values = {**batch.bound.claim, **batch.values(places), "triggers": list(triggers.values())}
    for n in places:
        outcomes[n] = None
    rows = yield statement("compensate", values)
    nodes = yield from nodes_to_undo([row[1] for row in rows])
    for place, job_id, state, role, claims, counter, at, holds in rows:
        to_compensate = nodes.get(job_id, ())
        kept = Moved(job_id, "compensate", state, state, role, claims, counter, at, compensate=to_compensate)
        outcomes[places[place - 1]] = kept if holds else StaleLease(job_id)
    # Another transaction has locked the row, or has ended the job since the move.
    yield from explain_missing(batch, places, outcomes)


def explain_missing(batch: Batch, places: Sequence[int], outcomes: list[Any]) -> Plan[None]:
    """Set the outcome of the jobs that a statement did not return: they are finished, locked or unknown."""
    missing = [n for n in places if outcomes[n] is None]
    if not missing:
        return
    ids = [batch.ids[n] for n in missing]
    # In this order: a job only goes from live to finished, so one of the two reads finds it.
    live = {row[0] for row in (yield statement("find_live_ids", {"ids": ids}))}
    gone = [job_id for job_id in ids if job_id not in live]
    ended = {row[0]: row for row in (yield from read_by_range("read_finished", gone))}
    for n in missing:
        job_id, held = batch.ids[n], batch.held[n] if batch.held else None
        if job_id in ended:
            outcomes[n] = _refuse_finished(batch, job_id, held, ended[job_id])
        else:
            outcomes[n] = Busy(job_id) if job_id in live else JobNotFound(job_id)


def id_ordered_parts(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    """Yield the places of a batch in id order, so that all callers lock rows in one order.

    A part has the ids of a few id ranges, each id once: a repeated id goes into a later part.
    """
    waiting = sorted(range(len(ids)), key=ids.__getitem__)
    while waiting:
        places: list[int] = [waiting[0]]
        repeated: list[int] = []
        for n in waiting[1:]:
            (places if ids[n] != ids[places[-1]] else repeated).append(n)
        if ids[places[0]] // ID_UNIT == ids[places[-1]] // ID_UNIT:
            yield places
        else:
            place_by_id = {ids[n]: n for n in places}
            for group in group_by_range(list(place_by_id)):
                yield [place_by_id[job_id] for job_id in group]
        waiting = repeated


def _refuse_finished(batch: Batch, job_id: int, held: Held | None, row: Row) -> Refused:
    """The refusal of a finished job: InvalidTransition if this lease ended it, else StaleLease."""
    _, _, _, state, claims, token, _ = row
    if held and (held.claims, held.token) != (claims, token):
        return StaleLease(job_id)
    return invalid(batch, job_id, state)


def to_refusal(
    batch: Batch,
    job_id: int,
    refusal: str,
    state: str,
    holder: str | None = None,
    since: datetime | None = None,
    due_at: datetime | None = None,
) -> Refused:
    """Convert the refusal code of a statement to an error; `holder` and `since` describe the current lease."""
    contract = batch.bound.contract
    match refusal:
        case "stale":
            return StaleLease(job_id, held_by=holder, since=since)
        case "not_due":
            return NotDue(job_id, due_at)
        case "contract":
            why = f"job {job_id} is not under contract {contract.name} {contract.version}"
            return Refused(job_id, f"{why}. Next: use the job's own contract", code="WRONG_CONTRACT")
        case "version":
            why = f"job {job_id} is under a version of contract {contract.name} that this process does not know"
            return Refused(job_id, f"{why}. Next: upgrade tenure here", code=UNKNOWN_VERSION)
        case "expired":
            why = f"job {job_id} expired before it began, and is cancelled. Next: enqueue it again"
            return Refused(job_id, why, code=EXPIRED)
        case "paused":
            why = f"the queue of job {job_id} is paused: no worker takes its jobs. Next: tenure jobs why {job_id}"
            return Refused(job_id, why, code=QUEUE_PAUSED)
        case "held":
            return Refused(job_id, f"job {job_id} is held: its holder must stop it", code="HELD")
        case "compensating":
            why = f"job {job_id} has failed and its effects are being undone. Next: compensated or compensation_failed"
            return Refused(job_id, why, code="COMPENSATING")
        case _:
            return invalid(batch, job_id, state)


def invalid(batch: Batch, job_id: int, state: str) -> InvalidTransition:
    """The refusal of a move that the contract does not have from this state, with the contract's own code."""
    contract = batch.bound.contract
    verb = batch.verb
    if verb == "transition" and batch.extra is not None:
        verb = f"path to {batch.extra['target']}"
        paths = [path for path in contract.paths if path.trigger in contract.requestable and state in path.sources]
        if ends := sorted({path.hops[0].state for path in paths}):
            verb += f" (there are paths to {', '.join(ends)})"
    return InvalidTransition(job_id, verb, state, contract=contract.name, code=contract.invalid_transition)
