"""Document 001's own endpoints: claim a task by its id, heartbeat, complete.

The fence is (job, claims, token). The document's word for a claim is `attempt`, the contract's counter. The claim of
an attempt is remembered, or read from the row and the log. Within a claim the counter does not change, so the fence
checks the attempt too.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenure.contracts.declaration import HELD
from tenure.errors import (
    BadInput,
    Busy,
    IdempotencyConflict,
    InvalidTransition,
    JobNotFound,
    NotDue,
    Refused,
    StaleLease,
)
from tenure.http.application import ApiRequest, parse_job_id
from tenure.http.models import tasks as models
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Held, Job
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.claim import Claimer
from tenure.postgres.move import UNKNOWN_VERSION

_VERBS = {"Completed": "succeed", "Failed": "fail", "Canceled": "cancelled"}
#: The document's reason for each kind of refusal.
_REASONS = {JobNotFound: "NotFound", NotDue: "NotDue", Busy: "Busy", StaleLease: "LeaseLost"}


async def task_claim(request: ApiRequest, body: models.TaskClaim) -> dict[str, Any]:
    """Claim a task by its id: `Claimed` with the lease, or `NotClaimed` with the reason."""
    token, calls, who = _lease_token(request.headers.get("idempotency-key")), request.calls, request.caller
    try:
        number = _parse_task_id(body.task_id)
        if body.types is not None and (await calls.identity(number, who)).type not in body.types:
            return {"status": "NotClaimed", "reason": "UnknownType"}
        job = await calls.claim_by_id(number, Claimer(body.worker_id, 1, token), who)
    except Refused as refused:
        return {"status": "NotClaimed", "reason": await _reason(request, refused)}
    calls.remember_attempt(job)
    worker = LiveWorker(body.worker_id, (job.queue,), (job.contract,), tuple(body.types or (job.type,)))
    calls.presence.record(worker, unbound=False)
    return {
        "status": "Claimed",
        "attempt": job.counter,
        "lease_token": str(job.lease_token),
        "lease_expires_at": job.lease_expires_at,
        "task": _task(job),
    }


async def task_heartbeat(request: ApiRequest, body: models.TaskHeartbeat) -> dict[str, Any]:
    """Extend the lease of a task, if the token is the one of the current attempt."""
    noted = await request.calls.report_patiently("heartbeat", HolderCall(await _held(request, body)))
    return {"lease_expires_at": noted.lease_expires_at, "cancel_requested": noted.cancel_requested}


async def task_complete(request: ApiRequest, body: models.TaskComplete) -> dict[str, Any]:
    """End the current attempt, with its token. Outputs (with Completed) and events are stored with it.

    The dispatcher decides whether and when a Failed task runs again. The same completion again gets the same answer;
    another one of the same attempt is refused.
    """
    held = await _held(request, body)
    call = HolderCall(
        held,
        key=f"task-complete:{held.claims}",
        result=body.outputs if body.status == "Completed" else None,
        failure=Failure(body.error_message or "the task failed", "TaskFailed") if body.status == "Failed" else None,
        events=body.events or (),
    )
    try:
        moved = await request.calls.report_patiently(_VERBS[body.status], call)
    except IdempotencyConflict as conflict:
        why = f"attempt {body.attempt} of task {body.task_id} was completed otherwise already; nothing was stored"
        raise Refused(held.id, why, code=conflict.code) from None
    return {"status": moved.state, "next_retry_at": moved.due_at if moved.will_retry else None}


def _lease_token(header: str | None) -> UUID | None:
    """The key of a repeatable claim. It becomes the lease token, so it must be a UUID of version 4: not guessable."""
    if header is None:
        return None
    try:
        token = UUID(header)
    except ValueError:
        token = None
    if token is None or token.version != 4:
        raise BadInput(f"Idempotency-Key must be a UUIDv4, because it becomes the lease token; not {header[:100]!r}")
    return token


def _parse_task_id(task_id: str) -> int:
    """A task's id as a number; a text that cannot be one is not found."""
    if not (task_id.isascii() and task_id.isdecimal() and len(task_id) < 20):
        raise JobNotFound(0)
    return parse_job_id(task_id)


async def _reason(request: ApiRequest, refused: Refused) -> str:
    """Why a task cannot be claimed, in the document's words; for other states the state itself."""
    for kind, reason in _REASONS.items():
        if isinstance(refused, kind):
            return reason
    if refused.reason_code == UNKNOWN_VERSION:
        return "UnknownVersion"
    if isinstance(refused, InvalidTransition) and refused.job_id is not None:
        identity = await request.calls.identity(refused.job_id, request.caller)
        contract = await request.calls.store.contract(identity.contract, identity.version)
        return refused.state if HELD.isdisjoint(contract.states[refused.state]) else "AlreadyRunning"
    return refused.reason_code


async def _held(request: ApiRequest, body: models.TaskHeartbeat) -> Held:
    """The claim of this attempt; refuses an attempt that does not exist."""
    calls, number = request.calls, parse_job_id(body.task_id)
    claims = await calls.claims_of(number, body.attempt, request.caller)
    if claims is None:
        raise StaleLease(number)
    return await calls.held(number, claims, body.lease_token, request.caller)


def _task(job: Job) -> dict[str, Any]:
    """What a worker is to do, in the document's words; outside a DAG without its name and inputs."""
    return {
        "task_id": str(job.id), "attempt": job.counter, "job": {"dag_name": None, "name": job.type},
        "operator": job.type, "config": job.payload, "inputs": [],
        "max_attempts": job.max_attempts, "queue": job.queue, "tenant_id": job.tenant_id, "trace_id": job.trace_id,
        "correlation_id": job.correlation_id, "created_at": job.created_at,
    }  # fmt: skip
