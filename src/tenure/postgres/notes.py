"""Notes: what is written on a job without moving it, sent through `queries/note.sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.errors import Refused
from tenure.job import Held
from tenure.outcome import Effect, Noted
from tenure.postgres.gate import Batch, compensating, explain, invalid, move, stale, turns, wrong_contract
from tenure.postgres.machine import Machine
from tenure.postgres.repeats import noted_before, replay
from tenure.postgres.statement import Atomic, Plan, Row, statement


def note(
    machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any], *, skip_locked: bool = False
) -> Plan[list[Noted | Refused]]:
    """Note something on each job; one answer per job, in order. A job that was skipped is Busy."""
    if batch.keys is None:
        return (yield from _note(machine, verb, batch, extra, skip_locked=skip_locked))
    # No fence refuses a repeated note: wait for its twin first, then look whether it was made.
    noted: list[Noted | Refused] = yield Atomic(_note_once(machine, verb, batch, extra))
    return noted


def _note_once(machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any]) -> Plan[list[Noted | Refused]]:
    yield statement("lock", {"ids": list(batch.ids)})
    return (yield from _note(machine, verb, batch, extra, skip_locked=False))


def _note(
    machine: Machine, verb: str, batch: Batch, extra: Mapping[str, Any], *, skip_locked: bool
) -> Plan[list[Noted | Refused]]:
    answers: list[Any] = [None] * len(batch.ids)
    for turn in turns(batch.ids):
        values = {**machine.notes[verb], **extra, **batch.values(turn, verb)}
        rows = yield statement("note", values, skip_locked=skip_locked, parts=batch.parts)
        for row in rows:
            answers[turn[row[0] - 1]] = _answer(machine, verb, row)
        missing = [n for n in turn if answers[n] is None]
        if missing:
            yield from explain(machine, verb, batch, missing, answers)
        if batch.keys is not None:
            yield from replay(batch, verb, turn, answers, noted_before)
    return answers


def _answer(machine: Machine, verb: str, row: Row) -> Noted | Refused:
    _, refusal, job_id, state, expires, cancelling, renewed, holder, since = row
    if refusal is None:
        return Noted(job_id, expires, cancelling, renewed)
    if refusal == "stale":
        return stale(job_id, holder, since)
    if refusal == "contract":
        return wrong_contract(machine, job_id)
    return invalid(machine, job_id, verb, state)


def cancels(machine: Machine, ids: Sequence[int], *, soft: bool, reason: str | None, actor: str) -> Plan[list[Any]]:
    """Cancel jobs: at once, or, where the cancel is soft and a handler runs or effects remain, by asking the holder."""
    answers: dict[int, Any] = {}
    waiting = list(dict.fromkeys(ids))
    # A job may be claimed, or come back, between the two statements: what neither cancelled nor noted is asked again.
    for _ in range(10):
        batch = Batch(waiting, reasons=None if reason is None else [reason] * len(waiting))
        moved = yield from move(machine, "cancel", batch, {"actor": actor, "soft": soft})
        answers |= dict(zip(waiting, moved, strict=True))
        waiting = [job_id for job_id in waiting if getattr(answers[job_id], "reason_code", "") == "HELD"]
        if not waiting:
            break
        asked = yield from note(machine, "request_cancel", Batch(waiting), {"actor": actor, "reason": reason})
        answers |= dict(zip(waiting, asked, strict=True))
        waiting = [job_id for job_id in waiting if isinstance(answers[job_id], Refused)]
        if not waiting:
            break
    return [answers[job_id] for job_id in ids]


def undone(machine: Machine, held: Held, node: str) -> Plan[Refused | None]:
    """Record that a node's effect is undone, so that the next holder, if there must be one, need not."""
    values = {"id": held.id, "claims": held.claims, "token": held.token, "node": node}
    rows = yield statement("undone", {**machine.notes["heartbeat"], **values})
    if not rows:
        answers: list[Any] = [None]
        yield from explain(machine, "undone", Batch([held.id], [held]), [0], answers)
        refused: Refused = answers[0]
        return refused
    ((refusal, holder, since, known),) = rows
    if refusal == "stale":
        return stale(held.id, holder, since)
    if refusal == "contract":
        return wrong_contract(machine, held.id)
    if refusal is not None:
        return Refused(held.id, f"job {held.id} has no failure that waits for its effects", code="NOT_COMPENSATING")
    if not known:
        return Refused(held.id, f"job {held.id} has no effect {node!r} that can be undone", code="NO_SUCH_EFFECT")
    return None


def effect(machine: Machine, held: Held, node: str, result: str | None, *, compensable: bool) -> Plan[Effect | Refused]:
    """Record a node's effect under the lease; one that was had before keeps its first result."""
    values = {
        "id": held.id, "claims": held.claims, "token": held.token, "node": node, "result": result,
        "compensable": compensable,
    }  # fmt: skip
    rows = yield statement("effect", {**machine.notes["heartbeat"], **values})
    if not rows:
        answers: list[Any] = [None]
        yield from explain(machine, "effect", Batch([held.id], [held]), [0], answers)
        refused: Refused = answers[0]
        return refused
    ((refusal, state, holder, since, fresh),) = rows
    if refusal is not None:
        if refusal == "compensating":
            return compensating(held.id)
        if refusal == "state":
            return invalid(machine, held.id, "effect", state)
        return stale(held.id, holder, since) if refusal == "stale" else wrong_contract(machine, held.id)
    if fresh:
        return Effect(True, result)
    had = {row[0]: row[1] for row in (yield statement("effects", {"id": held.id}))}
    return Effect(False, had.get(node))
