"""What clients see: jobs, moves, notes and dead letters as JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi.responses import JSONResponse
from pydantic_core import PydanticSerializationError, to_json

from tenure.contract import Contract
from tenure.errors import TenureError
from tenure.event import Logged
from tenure.http.refusals import told
from tenure.job import Job
from tenure.outcome import Moved, Noted
from tenure.postgres.letters import Letter
from tenure.postgres.listing import Listed
from tenure.postgres.queues import Queue
from tenure.rendered import as_json, ids_as_text, iso

#: Shown to who may act as a holder, and to nobody else.
_TOKENS = ("lease_token",)


class Json(JSONResponse):
    """An answer in JSON."""

    def render(self, content: Any) -> bytes:
        """Write it out; ASCII only, so that no text can be one that cannot be written."""
        return as_json(content).encode()


class Quick(Json):
    """The same, of what the dispatcher says all day: values whose times `_at` has seen."""

    def render(self, content: Any) -> bytes:
        """Write it out, several times as fast; what that way cannot write goes the other."""
        try:
            return to_json(content)
        except PydanticSerializationError:
            return super().render(content)


def _at(moment: datetime | None) -> datetime | str | None:
    """A time as it can be written quickly; a text where that would leave out the noughts, or name another zone."""
    return moment if moment is None or (moment.microsecond and moment.tzinfo is UTC) else iso(moment)


def job(one: Job) -> dict[str, Any]:
    """A job with all that its row says, but for the token."""
    return {
        "id": str(one.id), "contract": one.contract, "version": one.version, "state": one.state, "role": one.role,
        "queue": one.queue, "type": one.type, "tenant_id": one.tenant_id, "priority": one.priority,
        "claims": one.claims, "raises": one.raises, "counter": one.counter, "max_attempts": one.max_attempts,
        "payload": one.payload, "lease_owner": one.lease_owner, "lease_expires_at": _at(one.lease_expires_at),
        "due_at": _at(one.due_at), "created_at": _at(one.created_at), "updated_at": _at(one.updated_at),
        "started_at": _at(one.started_at), "finished_at": _at(one.finished_at),
        "cancel_requested_at": _at(one.cancel_requested_at),
        "trace_id": one.trace_id, "correlation_id": one.correlation_id, "idempotency_key": one.idempotency_key,
        "origin_letter": None if one.origin_letter is None else str(one.origin_letter),
        "last_error": one.last_error, "result": one.result, "checkpoint": one.checkpoint, "pending": one.pending,
    }  # fmt: skip


def claim(one: Job, contract: Contract) -> dict[str, Any]:
    """A job that was won, and what its holder shows from now on."""
    count = one.counter if contract.execution_key == "counter" else one.claims
    return {
        "job": job(one),
        "claims": one.claims,
        "lease_token": str(one.lease_token),
        "lease_expires_at": _at(one.lease_expires_at),
        "lease_seconds": _seconds(one),
        "execution_key": f"{one.id}:{count}",
    }


def _seconds(one: Job) -> float | None:
    """How long a claim lasts, for who does not trust its own clock; both times are the database's."""
    if one.lease_expires_at is None or one.started_at is None:
        return None
    return max(0.0, round((one.lease_expires_at - one.started_at).total_seconds(), 3))


def record(row: Mapping[str, Any] | None, *, tokens: bool) -> Mapping[str, Any] | None:
    """A row of a contract's view; the token is hidden from who only looks."""
    if row is None or tokens:
        return row
    return {column: None if column in _TOKENS else value for column, value in row.items()}


def answer(became: Any, job_id: int | None = None) -> dict[str, Any]:
    """What became of a word: a move, a note, a claim, nothing to do, or why not."""
    if isinstance(became, TenureError):
        return {"error": told(became)}
    if isinstance(became, Moved):
        return _moved(became)
    if isinstance(became, Noted):
        until = {"lease_expires_at": _at(became.lease_expires_at)}
        return {"id": str(became.job_id), "moved": False, **_without(became._asdict(), "job_id"), **until}
    if isinstance(became, Job):
        return {
            "id": str(became.id), "moved": True, "trigger": "claim", "state": became.state, "role": became.role,
            "claims": became.claims, "counter": became.counter, "at": _at(became.updated_at),
            "lease_token": str(became.lease_token), "lease_expires_at": _at(became.lease_expires_at),
        }  # fmt: skip
    return {"id": str(job_id), "moved": False}


def _moved(moved: Moved) -> dict[str, Any]:
    return {
        "id": str(moved.job_id), "moved": not moved.compensate, "trigger": moved.trigger,
        "from_state": moved.from_state, "state": moved.state, "role": moved.role, "claims": moved.claims,
        "counter": moved.counter, "at": _at(moved.at), "due_at": _at(moved.due_at), "delay_ms": moved.delay_ms,
        "will_retry": moved.will_retry, "compensate": list(moved.compensate),
    }  # fmt: skip


def event(logged: Logged) -> dict[str, Any]:
    """A row of the log."""
    return ids_as_text(asdict(logged), "job_id")


def listed(one: Listed) -> dict[str, Any]:
    """A job as a list shows it."""
    return {**_without(ids_as_text(one._asdict(), "id"), "last_error_json"), "last_error": one.last_error}


def letter(one: Letter) -> dict[str, Any]:
    """A dead letter."""
    fields = _without(ids_as_text(one._asdict(), "id", "job_id", "requeued_as"), "payload_json", "last_error_json")
    return {"dlq_id": str(one.id), **fields, "payload": one.payload, "last_error": one.last_error}


def queue(one: Queue) -> dict[str, Any]:
    """A queue as it is now."""
    fields = _without(one._asdict(), "now", "paused", "at_least")
    paused = None if one.paused is None else asdict(one.paused)
    return {**fields, "at_least": list(one.at_least), "paused": paused}


def declared(contract: Contract) -> dict[str, Any]:
    """A contract, with this process's numbers."""
    return {
        "name": contract.name,
        "version": contract.version,
        "title": contract.title,
        "declaration": contract.describe(),
    }


def decoded(text: str | None) -> Any:
    """A document as it is on record."""
    return None if text is None else json.loads(text)


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
