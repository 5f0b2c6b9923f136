"""Idempotency keys: the same key and body get the first answer and change nothing; another body is a conflict.

A holder's key is stored on the log row of its hop, and is looked up only when the gate refuses the call. An operator's
key is stored in `tenure.key`, in the same transaction as the change; a refused call stores no key.

The keys of enqueues are in `tenure.key` too: `enqueue.py` inserts them together with their jobs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tenure.errors import IdempotencyConflict, Refused
from tenure.jobs.outcome import Moved, Noted
from tenure.jobs.validation import check_name
from tenure.postgres.ranges import read_by_range
from tenure.postgres.statement import Atomic, Plan, Row, statement

if TYPE_CHECKING:
    from tenure.postgres.move import Batch


def replay(batch: Batch, places: Sequence[int], outcomes: list[Any], answer: Callable[[Row], Any]) -> Plan[None]:
    """Replace refusals of calls that already succeeded with the same key by their first answer."""
    keys = {n: batch.keys[n] for n in places if batch.keys and batch.keys[n] and isinstance(outcomes[n], Refused)}
    if not keys:
        return
    for n, row in (yield from find_answered(batch, list(keys))).items():
        same = row[2] == batch.fingerprint(n)
        outcomes[n] = answer(row) if same else IdempotencyConflict(str(keys[n]), batch.ids[n])
    undoing = [n for n in keys if isinstance(outcomes[n], Moved) and outcomes[n].trigger == "compensate"]
    if undoing:
        nodes = yield from nodes_to_undo([batch.ids[n] for n in undoing], again=True)
        for n in undoing:
            outcomes[n] = outcomes[n]._replace(compensate=nodes.get(batch.ids[n], ()))


def find_answered(batch: Batch, places: Sequence[int]) -> Plan[dict[int, Row]]:
    """Return, by place in the batch, the log row that has the call's own key, if there is one."""
    asked = {n: (batch.ids[n], batch.keys[n]) for n in places if batch.keys and batch.keys[n]}
    ids, keys = [job_id for job_id, _ in asked.values()], sorted({str(key) for _, key in asked.values()})
    found = {(row[0], row[1]): row for row in (yield from read_by_range("find_answered_requests", ids, keys=keys))}
    return {n: found[which] for n, which in asked.items() if which in found}


def nodes_to_undo(ids: Sequence[int], *, again: bool = False) -> Plan[dict[int, tuple[str, ...]]]:
    """Return the nodes of these jobs to compensate, newest first; `again`: as they were first named."""
    if not ids:
        return {}
    rows = yield statement("list_effects_to_undo", {"ids": list(ids), "all": again})
    return {job_id: tuple(nodes) for job_id, nodes in rows}


def read_moved(row: Row) -> Moved:
    """Return the move that a log row with a key recorded."""
    job_id, _, _, trigger, from_state, claims, counter, ts, answer = row
    if trigger == "compensating":
        trigger = "compensate"
    due_at, delay_ms = _parse_time(answer["due_at"]), answer["delay_ms"]
    return Moved(job_id, trigger, from_state, answer["state"], answer["role"], claims, counter, ts, due_at, delay_ms)


def read_noted(row: Row) -> Noted:
    """Return the heartbeat or note that a log row with a key recorded."""
    job_id, answer = row[0], row[-1]
    return Noted(job_id, _parse_time(answer["lease_expires_at"]), answer["cancel_requested"], answer["renewed"])


class IdempotentCall(NamedTuple):
    """An operator's idempotency key, and the call that it stands for."""

    tenant_id: str
    key: str
    verb: str
    job_id: int
    #: A repeated key must have the same hash.
    hash: str


def idempotent_call(tenant: str, key: str | None, verb: str, job_id: int, *body: Any) -> IdempotentCall | None:
    """An operator's call with a key; None without one."""
    if key is None:
        return None
    body_hash = hashlib.sha256(json.dumps([verb, job_id, *body]).encode()).hexdigest()
    return IdempotentCall(tenant, check_name("key", key), verb, job_id, body_hash)


def run_once(
    call: IdempotentCall | None, act: Callable[[], Plan[list[Any]]], *, whole: bool = False
) -> Plan[list[Any]]:
    """Run an operation at most once per key; returns one answer, in a list. `whole`: its statements commit together."""
    if call is None and not whole:
        return (yield from act())
    answers: list[Any] = yield Atomic(act() if call is None else _once(call, act))
    return answers


def _once(call: IdempotentCall, act: Callable[[], Plan[list[Any]]]) -> Plan[list[Any]]:
    key = {"tenant_id": call.tenant_id, "key": call.key}
    while True:
        # Waits for a running call with the same key; the second call then reads the first one's answer.
        if (yield statement("insert_operator_key", call._asdict())):
            (answer,) = yield from act()
            if isinstance(answer, Refused):
                yield statement("delete_key", key)
            else:
                yield statement("store_key_answer", {**key, "answer": _encode(answer)})
            return [answer]
        rows = yield statement("read_key", key)
        for verb, body, answer in rows:
            if (verb, body) != (call.verb, call.hash):
                return [IdempotencyConflict(call.key, call.job_id)]
            return [_decode(answer)]


def _encode(answer: Any) -> str:
    """An answer as JSON, with its type."""
    record = {"answer": answer}
    if isinstance(answer, (Moved, Noted)):
        # A repeat has no flow to advance; processes of the release before this one read the answer too.
        fields = {name: value for name, value in answer._asdict().items() if name != "flow_id"}
        record = {type(answer).__name__.lower(): fields}
    return json.dumps(record, default=datetime.isoformat)


def _decode(record: dict[str, Any]) -> Any:
    ((answer_type, answer),) = record.items()
    if answer_type == "moved":
        times = {"at": _parse_time(answer["at"]), "due_at": _parse_time(answer["due_at"])}
        return Moved(**{**answer, **times, "compensate": tuple(answer["compensate"])})
    if answer_type == "noted":
        return Noted(**{**answer, "lease_expires_at": _parse_time(answer["lease_expires_at"])})
    return answer


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
