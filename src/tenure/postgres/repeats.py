"""Repeats are safe: the same key and body again gets the first answer and does nothing, another body is a conflict.

A holder's key is kept on the log row of the hop that it made, and looked up only when the gate refuses. An operator's
key is kept in `tenure.key`, spent in the same transaction as what it stands for; a refused call leaves no key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenure.errors import IdempotencyConflict, Refused
from tenure.outcome import Moved, Noted
from tenure.postgres.statement import Atomic, Plan, Row, statement

if TYPE_CHECKING:
    from tenure.postgres.gate import Batch


def replay(
    batch: Batch, verb: str, turn: Sequence[int], outcomes: list[Any], answer: Callable[[Row], Any]
) -> Plan[None]:
    """What the gate refused may have been done before, by the same request: then its first answer is the answer."""
    keys = {n: batch.keys[n] for n in turn if batch.keys and batch.keys[n] and isinstance(outcomes[n], Refused)}
    if not keys:
        return
    values = {"ids": [batch.ids[n] for n in keys], "keys": list(keys.values())}
    known = {(row[0], row[1]): row for row in (yield statement("answered", values))}
    for n, key in keys.items():
        row = known.get((batch.ids[n], key))
        if row is not None:
            same = row[2] == batch.fingerprint(n, verb)
            outcomes[n] = answer(row) if same else IdempotencyConflict(str(key), batch.ids[n])
    undoing = [n for n in keys if isinstance(outcomes[n], Moved) and outcomes[n].trigger == "compensate"]
    if undoing:
        nodes = yield from to_undo([batch.ids[n] for n in undoing], again=True)
        for n in undoing:
            outcomes[n] = outcomes[n]._replace(compensate=nodes.get(batch.ids[n], ()))


def to_undo(ids: Sequence[int], *, again: bool = False) -> Plan[dict[int, tuple[str, ...]]]:
    """The nodes of these jobs whose effects are to be undone, newest first; `again`: as they were named first."""
    if not ids:
        return {}
    rows = yield statement("to_undo", {"ids": list(ids), "all": again})
    return {job_id: tuple(nodes) for job_id, nodes in rows}


def moved_before(row: Row) -> Moved:
    """The move that a log row with a key tells of."""
    job_id, _, _, trigger, from_state, claims, counter, ts, answer = row
    if trigger == "compensating":
        trigger = "compensate"
    due_at, delay_ms = _moment(answer["due_at"]), answer["delay_ms"]
    return Moved(job_id, trigger, from_state, answer["state"], answer["role"], claims, counter, ts, due_at, delay_ms)


def noted_before(row: Row) -> Noted:
    """The note that a log row with a key tells of."""
    job_id, answer = row[0], row[-1]
    return Noted(job_id, _moment(answer["lease_expires_at"]), answer["cancel_requested"], answer["renewed"])


@dataclass(frozen=True, slots=True)
class Use:
    """An operator's key, and what it is used for."""

    tenant_id: str
    key: str
    verb: str
    job_id: int
    body: tuple[Any, ...]

    @property
    def hash(self) -> str:
        """What must be equal for a repeated key to be the same request."""
        return hashlib.sha256(json.dumps([self.verb, self.job_id, *self.body]).encode()).hexdigest()


def once(use: Use | None, act: Callable[[], Plan[list[Any]]], *, whole: bool = False) -> Plan[list[Any]]:
    """Do this, at most once for a key; one answer, in a list. `whole`: its statements commit together."""
    if use is None and not whole:
        return (yield from act())
    if use is None:
        done: list[Any] = yield Atomic(act())
        return done
    answers: list[Any] = yield Atomic(_once(use, act))
    return answers


def _once(use: Use, act: Callable[[], Plan[list[Any]]]) -> Plan[list[Any]]:
    which = {"tenant_id": use.tenant_id, "key": use.key}
    while True:
        # Waits for a twin that is under way; whoever comes second reads what the first was told.
        if (yield statement("spend_key", {**which, "verb": use.verb, "hash": use.hash, "job_id": use.job_id})):
            (answer,) = yield from act()
            if isinstance(answer, Refused):
                yield statement("forget_key", which)
            else:
                yield statement("answer_key", {**which, "answer": json.dumps(_told(answer))})
            return [answer]
        rows = yield statement("key", which)
        for verb, body, answer in rows:
            if (verb, body) != (use.verb, use.hash):
                return [IdempotencyConflict(use.key, use.job_id)]
            return [_heard(answer)]


def _told(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, (Moved, Noted)):
        return {"answer": answer}
    told = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in answer._asdict().items()
    }
    return {type(answer).__name__.lower(): told}


def _heard(told: dict[str, Any]) -> Any:
    ((kind, answer),) = told.items()
    if kind == "moved":
        times = {"at": _moment(answer["at"]), "due_at": _moment(answer["due_at"])}
        return Moved(**{**answer, **times, "compensate": tuple(answer["compensate"])})
    if kind == "noted":
        return Noted(**{**answer, "lease_expires_at": _moment(answer["lease_expires_at"])})
    return answer


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
