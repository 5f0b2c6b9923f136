"""The gate: a batch of jobs that ask for one move, sent through `queries/move.sql`, and what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenure.errors import InvalidTransition, JobNotFound, NotDue, Refused, StaleLease
from tenure.job import Held
from tenure.outcome import Moved, Outcome
from tenure.postgres.machine import Machine
from tenure.postgres.statement import Plan, Row, statement


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

    def values(self, turn: Sequence[int]) -> dict[str, Any]:
        """The parameters of the jobs at these places. unnest pads a shorter array with NULL: no fact, no array."""
        held = None if self.held is None else [self.held[n] for n in turn]
        return {
            "ids": [self.ids[n] for n in turn],
            "claims": [] if held is None else [one.claims for one in held],
            "tokens": [] if held is None else _texts([one.token for one in held]),
            "verdicts": _at(self.verdicts, turn),
            "reasons": _at(self.reasons, turn),
            "errors": _at(self.errors, turn),
            "results": _at(self.results, turn),
            "delays": _at(self.delays, turn),
        }

    def only(self, n: int) -> Batch:
        """A batch of the job at this place alone."""
        columns = (self.held, self.verdicts, self.reasons, self.errors, self.results, self.delays)
        return Batch([self.ids[n]], *(None if column is None else [column[n]] for column in columns))  # type: ignore[arg-type]


def of(held: Sequence[Held]) -> Batch:
    """The batch of these holders, with no facts."""
    return Batch([one.id for one in held], held)


def _at(column: Sequence[Any] | None, turn: Sequence[int]) -> list[Any]:
    return [] if column is None else [column[n] for n in turn]


def _texts(tokens: Sequence[UUID]) -> list[str]:
    """Tokens as text; a batch often has one, and a UUID is slow to write."""
    known: dict[UUID, str] = {}
    return [known.get(token) or known.setdefault(token, str(token)) for token in tokens]


def move(machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any]) -> Plan[list[Outcome] | None]:
    """Send a batch through the gate; one outcome per job, in order. None: this claim key was used before."""
    outcomes: list[Any] = [None] * len(batch.ids)
    # One job twice in a batch (a holder and its ghost, coalesced): the second asks after the first was answered.
    for turn in _turns(batch.ids):
        values = {"fenced": False, **machine.moves[verb], **extra, **batch.values(turn)}
        rows = yield statement("move", values)
        for row in rows:
            if row[1] is None:
                outcomes[turn[row[0] - 1]] = Moved._make(row[2:12])
            elif row[0]:
                outcomes[turn[row[0] - 1]] = _refusal(machine, verb, row)
            elif row[1] == "repeat":
                return None
        missing = [n for n in turn if outcomes[n] is None]
        if missing:
            done = yield statement("finished", {"ids": [batch.ids[n] for n in missing]})
            ended = {row[0]: row for row in done}
            for n in missing:
                held = batch.held[n] if batch.held else None
                outcomes[n] = _ended(machine, verb, batch.ids[n], held, ended.get(batch.ids[n]))
    return outcomes


def _turns(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    """The batch in id order, so that all callers lock in one order; a repeated id waits for the next turn."""
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
        return StaleLease(job_id, held_by=holder, since=since)
    if refusal == "not_due":
        return NotDue(job_id, due_at)
    if refusal == "contract":
        mine = f"{machine.contract.name} {machine.contract.version}"
        return Refused(job_id, f"job {job_id} is not under contract {mine}; ask under its own", code="WRONG_CONTRACT")
    return _invalid(machine, job_id, verb, state)


def _ended(machine: Machine, verb: str, job_id: int, held: Held | None, row: Row | None) -> Refused:
    """Why a job that is not live refuses: it is unknown, finished by this very holder, or lost to another."""
    if row is None:
        return JobNotFound(job_id)
    _, _, _, state, claims, token, _ = row
    if held and (held.claims, held.token) != (claims, token):
        return StaleLease(job_id)
    return _invalid(machine, job_id, verb, state)


def _invalid(machine: Machine, job_id: int, trigger: str, state: str) -> InvalidTransition:
    contract = machine.contract
    return InvalidTransition(job_id, trigger, state, contract=contract.name, code=contract.invalid_transition)
