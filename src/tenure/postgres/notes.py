"""Notes: changes to a job that leave its state as it is: heartbeat, progress, checkpoint, cancel request, effects.

All but the effects go through one statement, `queries/note.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.errors import IdempotencyConflict, Refused
from tenure.jobs.job import Held
from tenure.jobs.outcome import Effect, Noted
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.idempotency import find_answered, read_noted, replay
from tenure.postgres.move import Batch, explain_missing, id_ordered_parts, to_refusal
from tenure.postgres.statement import Atomic, Plan, statement


def note(batch: Batch, *, skip_locked: bool = False) -> Plan[list[Noted | Refused]]:
    """Write a note on each job; one answer per job, in order. With `skip_locked`, a locked job is Busy."""
    answers: list[Any] = [None] * len(batch.ids)
    for places in id_ordered_parts(batch.ids):
        if batch.keys is None:
            yield from _note(batch, places, answers, skip_locked=skip_locked)
        else:
            yield Atomic(_note_once(batch, places, answers))
    return answers


def _note_once(batch: Batch, places: Sequence[int], answers: list[Any]) -> Plan[None]:
    """Write notes with keys. The lease does not refuse a repeated note: lock the rows, then look up the keys."""
    yield statement("lock_jobs", {"ids": [batch.ids[n] for n in places]})
    for n in (yield from find_answered(batch, places)):
        answers[n] = IdempotencyConflict(str(batch.keys and batch.keys[n]), batch.ids[n])
    new = [n for n in places if answers[n] is None]
    if new:
        yield from _note(batch, new, answers, skip_locked=False)
    yield from replay(batch, places, answers, read_noted)


def _note(batch: Batch, places: Sequence[int], answers: list[Any], *, skip_locked: bool) -> Plan[None]:
    values = {**batch.bound.notes[batch.verb], **batch.extra, **batch.values(places)}
    rows = yield statement("note", values, skip_locked=skip_locked)
    for place, refusal, job_id, state, expires_at, is_cancelling, is_renewed, holder, since in rows:
        answers[places[place - 1]] = (
            Noted(job_id, expires_at, is_cancelling, is_renewed)
            if refusal is None
            else to_refusal(batch, job_id, refusal, state, holder, since)
        )
    yield from explain_missing(batch, places, answers)


def record_undone(bound: BoundContract, held: Held, node: str) -> Plan[Refused | None]:
    """Record that a node's effect is undone: the next holder, if there is one, does not undo it again."""
    batch = Batch(bound, "undone", [held.id], [held])
    rows = yield statement("mark_effect_undone", {**lease_values(batch), "node": node})
    if not rows:
        return (yield from explain_one(batch))
    ((refusal, holder, since, known),) = rows
    if refusal in ("stale", "contract"):
        return to_refusal(batch, held.id, refusal, "", holder, since)
    if refusal is not None:
        why = f"job {held.id} has no failure that waits until its effects are undone"
        return Refused(held.id, why, code="NOT_COMPENSATING")
    if not known:
        return Refused(held.id, f"job {held.id} has no effect {node!r} that can be undone", code="NO_SUCH_EFFECT")
    return None


def record_effect(
    bound: BoundContract, held: Held, node: str, result: str | None, *, compensable: bool
) -> Plan[Effect | Refused]:
    """Record a node's effect under the lease; an effect that was recorded before keeps its first result."""
    batch = Batch(bound, "effect", [held.id], [held])
    values = {**lease_values(batch), "node": node, "result": result, "compensable": compensable}
    rows = yield statement("record_effect", values)
    if not rows:
        return (yield from explain_one(batch))
    ((refusal, state, holder, since, is_new),) = rows
    if refusal is not None:
        return to_refusal(batch, held.id, refusal, state, holder, since)
    if is_new:
        return Effect(True, result)
    results = {row[0]: row[1] for row in (yield statement("list_effects", {"id": held.id}))}
    return Effect(False, results.get(node))


def lease_values(batch: Batch) -> dict[str, Any]:
    """The parameters of the only job of a batch: its contract and its lease."""
    (held,) = batch.held or ()
    return {**batch.bound.notes["heartbeat"], "id": held.id, "claims": held.claims, "token": held.token}


def explain_one(batch: Batch) -> Plan[Refused]:
    """The refusal of the only job of a batch, which a statement did not return."""
    answers: list[Any] = [None]
    yield from explain_missing(batch, [0], answers)
    refused: Refused = answers[0]
    return refused
