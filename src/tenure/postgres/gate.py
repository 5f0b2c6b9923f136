"""The gate: a batch of jobs that ask for one move, sent through `queries/move.sql`, and what came of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from tenure.errors import Busy, InvalidTransition, JobNotFound, NotDue, Refused, StaleLease
from tenure.job import Held
from tenure.outcome import Moved, Outcome
from tenure.postgres.machine import Machine
from tenure.postgres.repeats import moved_before, replay, to_undo
from tenure.postgres.statement import Plan, Row, Statement, if_any, statement


@dataclass(slots=True)
class Batch:
    """Jobs that ask for one move, by column: which ones, the holders' proofs where the verb needs them, the facts."""

    ids: Sequence[int]
    held: Sequence[Held] | None = None
    verdicts: Sequence[str] | None = None
    reasons: Sequence[str | None] | None = None
    errors: Sequence[str | None] | None = None
    results: Sequence[str | None] | None = None
    delays: Sequence[int | None] | None = None
    notes: Sequence[str | None] | None = None
    keys: Sequence[str | None] | None = None
    #: Of a claim by id, for each job: under which key, and for whom.
    claim_keys: Sequence[UUID] | None = None
    owners: Sequence[str] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of a statement that this batch needs."""
        return ("keyed",) * (self.keys is not None) + ("taking",) * (self.claim_keys is not None)

    def values(self, turn: Sequence[int], verb: str) -> dict[str, Any]:
        """The parameters of the jobs at these places. unnest pads a shorter array with NULL: no fact, no array."""
        return {
            **self.proofs(turn),
            "verdicts": _at(self.verdicts, turn),
            "reasons": _at(self.reasons, turn),
            "errors": _at(self.errors, turn),
            "results": _at(self.results, turn),
            "delays": _at(self.delays, turn),
            "notes": _at(self.notes, turn),
            "keys": _at(self.keys, turn),
            "hashes": [] if self.keys is None else [self.fingerprint(n, verb) for n in turn],
            "claim_keys": _at(self.claim_keys, turn),
            "owners": _at(self.owners, turn),
        }

    def proofs(self, turn: Sequence[int]) -> dict[str, Any]:
        """Which jobs these are, and the proofs of those who hold them."""
        held = [] if self.held is None else [self.held[n] for n in turn]
        return {
            "ids": [self.ids[n] for n in turn],
            "size": len(turn),
            "claims": [one.claims for one in held],
            "tokens": _texts([one.token for one in held]),
        }

    def fingerprint(self, n: int, verb: str) -> str:
        """What must be equal for a repeated key to be the same request: the verb, the holder's proof, the facts."""
        proof = self.held[n] if self.held else None
        plain = [column and column[n] for column in (self.verdicts, self.reasons, self.delays)]
        # Documents are the same whatever the order of their keys.
        documents = [column and json.loads(column[n] or "null") for column in (self.errors, self.results, self.notes)]
        body = [verb, self.ids[n], proof and proof.claims, proof and str(proof.token), *plain, *documents]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def of(held: Sequence[Held]) -> Batch:
    """The batch of these holders, with no facts."""
    return Batch([one.id for one in held], held)


def _at(column: Sequence[Any] | None, turn: Sequence[int]) -> list[Any]:
    return [] if column is None else [column[n] for n in turn]


def _texts(tokens: Sequence[UUID]) -> list[str]:
    """Tokens as text; a batch often has one, and a UUID is slow to write and to compare."""
    texts: list[str] = []
    last, text = None, ""
    for token in tokens:
        if token is not last:
            last, text = token, str(token)
        texts.append(text)
    return texts


def move(
    machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any], *, skip_locked: bool = False
) -> Plan[list[Outcome]]:
    """Send a batch through the gate; one outcome per job, in order. A job that was skipped is Busy."""
    outcomes: list[Any] = [None] * len(batch.ids)
    # One job twice in a batch (a holder and its ghost, coalesced): the second asks after the first was answered.
    for turn in turns(batch.ids):
        values = {"fenced": False, **machine.moves[verb], **extra, **batch.values(turn, verb)}
        rows = yield from _through(statement("move", values, skip_locked=skip_locked, parts=batch.parts))
        aims: dict[int, str] = {}
        for row in rows:
            n = turn[row[0] - 1]
            outcomes[n] = Moved(*row[2:12]) if row[1] is None else _refusal(machine, verb, row)
            if row[1] == "compensate":
                aims[n] = row[3]
        missing = [n for n in turn if outcomes[n] is None]
        if missing:
            yield from explain(machine, verb, batch, missing, outcomes)
        if batch.keys is not None:
            yield from replay(batch, verb, turn, outcomes, moved_before)
        if aims:
            yield from _compensate(machine, verb, batch, aims, outcomes)
    return outcomes


def succeed(machine: Machine, batch: Batch) -> Plan[list[Outcome]]:
    """End jobs well: those that plainly do by the short way, whatever is left through the gate."""
    if machine.success is None or batch.keys is not None:
        return (yield from move(machine, "succeed", batch, {"fenced": True}))
    end_state, held, results = machine.success["end_state"], batch.held or (), batch.results
    outcomes: list[Any] = [None] * len(batch.ids)
    turn = next(iter(turns(batch.ids)), ())
    rows = yield statement("succeed", {**machine.success, **batch.proofs(turn), "results": if_any(_at(results, turn))})
    for place, state, counter, at in rows:
        n = turn[place - 1]
        outcomes[n] = Moved(batch.ids[n], "succeed", state, end_state, "done", held[n].claims, counter, at)
    left = [n for n, outcome in enumerate(outcomes) if outcome is None]
    if left:
        rest_of = Batch([batch.ids[n] for n in left], [held[n] for n in left], results=_at(results, left) or None)
        try:
            rest = yield from move(machine, "succeed", rest_of, {"fenced": True})
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            # Whoever would begin anew would ask for those once more that have ended just now.
            rest = yield from move(machine, "succeed", rest_of, {"fenced": True}, skip_locked=True)
        for n, outcome in zip(left, rest, strict=True):
            outcomes[n] = outcome
    return outcomes


def _through(asked: Statement) -> Plan[list[Row]]:
    """Ask once more where a twin spent the same key meanwhile: then it is there to be seen."""
    try:
        rows: list[Row] = yield asked
    except psycopg.errors.UniqueViolation as twin:
        try:
            rows = yield asked
        except psycopg.errors.InFailedSqlTransaction:
            raise twin from None  # inside a transaction: whoever runs it begins anew
    return rows


def _compensate(machine: Machine, verb: str, batch: Batch, aims: Mapping[int, str], outcomes: list[Any]) -> Plan[None]:
    """Keep each failure on its row until the effects are undone; the answer names them."""
    turn = list(aims)
    values = {**machine.claim, **batch.values(turn, verb), "triggers": list(aims.values())}
    for n in turn:
        outcomes[n] = None
    rows = yield statement("compensate", values, skip_locked=True)
    nodes = yield from to_undo([row[1] for row in rows])
    for place, job_id, state, role, claims, counter, at, holds in rows:
        named = nodes.get(job_id, ())
        kept = Moved(job_id, "compensate", state, state, role, claims, counter, at, compensate=named)
        outcomes[turn[place - 1]] = kept if holds else StaleLease(job_id)
    # Somebody has the row just now, or has ended the job since the gate looked.
    missing = [n for n in turn if outcomes[n] is None]
    if missing:
        yield from explain(machine, verb, batch, missing, outcomes)


def explain(machine: Machine, verb: str, batch: Batch, missing: Sequence[int], outcomes: list[Any]) -> Plan[None]:
    """Why the gate said nothing of these jobs: they are finished, skipped, or unknown."""
    ids = [batch.ids[n] for n in missing]
    # In this order: a job only ever goes from the live to the finished, so one of the two sees it.
    live = {row[0] for row in (yield statement("live", {"ids": ids}))}
    gone = [job_id for job_id in ids if job_id not in live]
    ended = {row[0]: row for row in (yield statement("finished", {"ids": gone}))} if gone else {}
    for n in missing:
        job_id, held = batch.ids[n], batch.held[n] if batch.held else None
        if job_id in ended:
            outcomes[n] = _ended(machine, verb, job_id, held, ended[job_id])
        else:
            outcomes[n] = Busy(job_id) if job_id in live else JobNotFound(job_id)


def turns(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    """A batch in id order, so that all callers lock in one order; a repeated id waits for the next turn."""
    waiting = sorted(range(len(ids)), key=ids.__getitem__)
    while waiting:
        turn: list[int] = [waiting[0]]
        later: list[int] = []
        for n in waiting[1:]:
            (turn if ids[n] != ids[turn[-1]] else later).append(n)
        yield turn
        waiting = later


def _refusal(machine: Machine, verb: str, row: Row) -> Refused:
    _, refusal, job_id, _, state, _, _, _, _, _, due_at, _, holder, since = row
    if refusal == "stale":
        return stale(job_id, holder, since)
    if refusal == "not_due":
        return NotDue(job_id, due_at)
    if refusal == "contract":
        return wrong_contract(machine, job_id)
    if refusal == "held":
        return Refused(job_id, f"job {job_id} is held: its holder is asked to stop", code="HELD")
    if refusal == "compensating":
        return compensating(job_id)
    return invalid(machine, job_id, verb, state)


def _ended(machine: Machine, verb: str, job_id: int, held: Held | None, row: Row) -> Refused:
    """Why a finished job refuses: it was finished by this very holder, or lost to another."""
    _, _, _, state, claims, token, _ = row
    if held and (held.claims, held.token) != (claims, token):
        return StaleLease(job_id)
    return invalid(machine, job_id, verb, state)


def stale(job_id: int, holder: str | None, since: datetime | None) -> StaleLease:
    """The caller does not hold the job; who does, if anybody."""
    return StaleLease(job_id, held_by=holder, since=since)


def compensating(job_id: int) -> Refused:
    """The job has failed for good; only its effects are still to be undone."""
    why = f"job {job_id} has failed and its effects are being undone. Next: compensated or compensation_failed"
    return Refused(job_id, why, code="COMPENSATING")


def wrong_contract(machine: Machine, job_id: int) -> Refused:
    """The job is under another contract or version than the caller said."""
    mine = f"{machine.contract.name} {machine.contract.version}"
    return Refused(job_id, f"job {job_id} is not under contract {mine}; ask under its own", code="WRONG_CONTRACT")


def invalid(machine: Machine, job_id: int, trigger: str, state: str) -> InvalidTransition:
    """The contract has no such move from there; its own code."""
    contract = machine.contract
    return InvalidTransition(job_id, trigger, state, contract=contract.name, code=contract.invalid_transition)
