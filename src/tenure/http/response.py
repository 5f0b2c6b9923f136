"""Response bodies: jobs, claims, outcomes, events, dead letters and queues as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import JSONResponse

from tenure.contracts.declaration import Contract
from tenure.errors import TenureError
from tenure.http.error_response import error_body
from tenure.jobs.flow import TaskOfFlow
from tenure.jobs.formats import dump_json, format_iso
from tenure.jobs.job import Job
from tenure.jobs.outcome import Moved, Noted
from tenure.jobs.unserved import unserved_to_json
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.queues import Queue


class JsonResponse(JSONResponse):
    """A JSON response."""

    def render(self, content: Any) -> bytes:
        """Write it as ASCII, which can hold any text, also a lone surrogate."""
        return dump_json(content).encode()


class FastJsonResponse(JsonResponse):
    """A JSON response of the hot paths, whose times went through `_time`."""

    def render(self, content: Any) -> bytes:
        """Write it several times as fast; what pydantic cannot write, as the other class does."""
        try:
            return to_json(content)
        except PydanticSerializationError:
            return super().render(content)


def _time(moment: datetime | None) -> datetime | str | None:
    """A time for the fast writer; a text where that writer would drop zeros or use another time zone."""
    return moment if moment is None or (moment.microsecond and moment.tzinfo is UTC) else format_iso(moment)


def job(one: Job) -> dict[str, Any]:
    """A job with everything in its row, except the lease token."""
    return {
        "id": str(one.id), "contract": one.contract, "version": one.version, "state": one.state, "role": one.role,
        "queue": one.queue, "type": one.type, "tenant_id": one.tenant_id, "priority": one.priority,
        "claims": one.claims, "raises": one.raises, "counter": one.counter, "max_attempts": one.max_attempts,
        "payload": one.payload, "lease_owner": one.lease_owner, "lease_expires_at": _time(one.lease_expires_at),
        "due_at": _time(one.due_at), "created_at": _time(one.created_at), "updated_at": _time(one.updated_at),
        "started_at": _time(one.started_at), "finished_at": _time(one.finished_at),
        "cancel_requested_at": _time(one.cancel_requested_at),
        "trace_id": one.trace_id, "correlation_id": one.correlation_id, "idempotency_key": one.idempotency_key,
        "origin_letter": None if one.origin_letter is None else str(one.origin_letter),
        "last_error": one.last_error, "result": one.result, "checkpoint": one.checkpoint, "pending": one.pending,
        "blocked_at": _time(one.blocked_at),
    }  # fmt: skip


def claim(one: Job, contract: Contract) -> dict[str, Any]:
    """A claimed job, and the proof that its holder sends with every call."""
    execution_key = f"{one.id}:{one.counter if contract.execution_key == 'counter' else one.claims}"
    return {"job": job(one), **lease(one), "execution_key": execution_key}


def lease(one: Job) -> dict[str, Any]:
    """The lease of a claimed job."""
    lease_seconds = None  # for workers that do not trust their own clock; both times are the database's
    if one.lease_expires_at is not None and one.started_at is not None:
        lease_seconds = max(0.0, round((one.lease_expires_at - one.started_at).total_seconds(), 3))
    return {
        "claims": one.claims, "lease_token": str(one.lease_token), "lease_expires_at": _time(one.lease_expires_at),
        "lease_seconds": lease_seconds,
    }  # fmt: skip


def task(one: Job, of_flow: TaskOfFlow | None = None) -> dict[str, Any]:
    """What a worker of document 001 is to do, in its words: a flow is its DAG."""
    dag_name, name, inputs = of_flow or (None, one.type, ())
    return {
        "task_id": str(one.id), "attempt": one.counter, "job": {"dag_name": dag_name, "name": name},
        "operator": one.type, "config": one.payload,
        "inputs": [{"argument": each.argument, "task_id": str(each.id), "name": each.name} for each in inputs],
        "max_attempts": one.max_attempts, "queue": one.queue, "tenant_id": one.tenant_id, "trace_id": one.trace_id,
        "correlation_id": one.correlation_id, "created_at": _time(one.created_at),
    }  # fmt: skip


def outcome(result: Any, job_id: int | None = None) -> dict[str, Any]:
    """What a call did to a job: a move, a note, a claim, nothing, or an error."""
    if isinstance(result, TenureError):
        return {"error": error_body(result)}
    if isinstance(result, Moved):
        return {
            "id": str(result.job_id), "moved": not result.compensate, "trigger": result.trigger,
            "from_state": result.from_state, "state": result.state, "role": result.role, "claims": result.claims,
            "counter": result.counter, "at": _time(result.at), "due_at": _time(result.due_at),
            "delay_ms": result.delay_ms, "will_retry": result.will_retry, "compensate": list(result.compensate),
        }  # fmt: skip
    if isinstance(result, Noted):
        return {
            "id": str(result.job_id), "moved": False, "lease_expires_at": _time(result.lease_expires_at),
            "cancel_requested": result.cancel_requested, "renewed": result.renewed,
        }  # fmt: skip
    if isinstance(result, Job):
        return {
            "id": str(result.id), "moved": True, "trigger": "claim", "state": result.state, "role": result.role,
            "claims": result.claims, "counter": result.counter, "at": _time(result.updated_at),
            "lease_token": str(result.lease_token), "lease_expires_at": _time(result.lease_expires_at),
        }  # fmt: skip
    return {"id": str(job_id), "moved": False}


def dead_letter(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter."""
    return {"dlq_id": str(letter.id), **letter.fields()}


def queue(one: Queue) -> dict[str, Any]:
    """A queue now."""
    fields = one._asdict() | {
        "paused": one.paused and asdict(one.paused),
        "unserved_types": [unserved_to_json(unserved) for unserved in one.unserved],
    }
    del fields["now"], fields["unserved"]
    return fields


def contract(one: Contract) -> dict[str, Any]:
    """A contract, with this process's numbers."""
    return {"name": one.name, "version": one.version, "title": one.title, "declaration": one.describe()}
