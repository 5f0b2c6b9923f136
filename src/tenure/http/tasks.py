"""Document 001's own endpoints: claim a task by its id, heartbeat, complete.

The fence is the engine's, (job, claims, token); the document's word for a claim is `attempt`, the contract's counter.
Which claim an attempt was is remembered from the claim, or read from the row and the log: within a claim the counter
does not change, so the gate's own check of claims and token is the check of the attempt too.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Header, Request

from tenure.contract import HELD
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
from tenure.http.asked import caller, desk, job_number, needs, routes
from tenure.http.desk import Said
from tenure.http.models import tasks as models
from tenure.http.models.refusal import responses
from tenure.http.shown import Json
from tenure.job import Failure, Held, Job
from tenure.outcome import Moved
from tenure.postgres.claiming import Claimer

router = routes("tasks (document 001)")
_WORK = needs("work")
_VERBS = {"Completed": "succeed", "Failed": "fail", "Canceled": "cancelled"}


@router.post("/internal/task-claim", responses=responses(models.TaskClaimAnswer), openapi_extra=_WORK)
async def task_claim(
    request: Request,
    body: models.TaskClaim,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="A UUIDv4 that becomes the lease token: asked again, the answer is the same.",
            json_schema_extra={"format": "uuid"},
        ),
    ] = None,
) -> Json:
    """Take a task by its id: `Claimed` with the lease, or `NotClaimed` with the reason."""
    key = _token(idempotency_key)
    try:
        job = await desk(request).claim_by_id(_number(body.task_id), Claimer(body.worker_id, 1, key), caller(request))
    except Refused as refused:
        return Json({"status": "NotClaimed", "reason": await _reason(request, refused)})
    desk(request).remember_attempt(job)
    return Json(
        {
            "status": "Claimed",
            "attempt": job.counter,
            "lease_token": str(job.lease_token),
            "lease_expires_at": job.lease_expires_at,
            "task": _task(job),
        }
    )


@router.post("/internal/heartbeat", responses=responses(models.TaskBeat, refuses=(404, 409)), openapi_extra=_WORK)
async def task_heartbeat(request: Request, body: models.TaskHeartbeat) -> Json:
    """Say that the work on a task goes on: the lease is extended while its token is the current attempt's."""
    at, said = desk(request), Said(await _held(request, body))
    noted = await at.patiently(lambda: at.say("heartbeat", said))
    return Json({"lease_expires_at": noted.lease_expires_at, "cancel_requested": noted.cancel_requested})


@router.post(
    "/internal/task-complete", responses=responses(models.TaskCompleted, refuses=(404, 409)), openapi_extra=_WORK
)
async def task_complete(request: Request, body: models.TaskComplete) -> Json:
    """End an attempt: only the current one, with its token. Outputs (of a Completed one) and events go with it.

    Whether and when a Failed task runs again is the dispatcher's decision. The same completion again gets the same
    answer; another one of the same attempt is refused.
    """
    at, held = desk(request), await _held(request, body)
    said = Said(
        held,
        key=f"task-complete:{held.claims}",
        result=body.outputs if body.status == "Completed" else None,
        failure=Failure(body.error_message or "the task failed", "TaskFailed") if body.status == "Failed" else None,
    )
    try:
        if events := body.events:
            moved = await at.patiently(lambda: at.report(_VERBS[body.status], said, events))
        else:
            moved = await at.patiently(lambda: at.say(_VERBS[body.status], said))
    except IdempotencyConflict as conflict:
        why = f"attempt {body.attempt} of task {body.task_id} was completed otherwise already; nothing was stored"
        raise Refused(held.id, why, code=conflict.code) from None
    return Json({"status": moved.state, "next_retry_at": _next(moved)})


def _next(moved: Moved) -> object:
    return moved.due_at if moved.will_retry else None


def _token(header: str | None) -> UUID | None:
    """The key of a repeated claim, which becomes the token: a UUID of the fourth kind, so that nobody can guess it."""
    if header is None:
        return None
    try:
        found = UUID(header)
    except ValueError:
        found = None
    if found is None or found.version != 4:
        raise BadInput(f"Idempotency-Key must be a UUIDv4, because it becomes the lease token; not {header[:100]!r}")
    return found


def _number(task_id: str) -> int:
    """A task's id; one that cannot be a task's is not found."""
    if not (task_id.isascii() and task_id.isdecimal() and len(task_id) < 20):
        raise JobNotFound(0)
    return job_number(task_id)


async def _reason(request: Request, refused: Refused) -> str:
    """Why a task is not to be had, in the document's words; a state that it does not name is its own reason."""
    if isinstance(refused, JobNotFound):
        return "NotFound"
    if isinstance(refused, NotDue):
        return "NotDue"
    if isinstance(refused, Busy):
        return "Busy"
    if isinstance(refused, StaleLease):
        return "LeaseLost"
    if isinstance(refused, InvalidTransition) and refused.job_id is not None:
        kind = await desk(request).kind(refused.job_id, caller(request))
        roles = (await desk(request).store.contract(kind.contract, kind.version)).states[refused.state]
        return refused.state if HELD.isdisjoint(roles) else "AlreadyRunning"
    return refused.reason_code


async def _held(request: Request, body: models.TaskHeartbeat) -> Held:
    """The claim that this attempt was; refuses an attempt that there never was."""
    at, number = desk(request), job_number(body.task_id)
    claims = await at.claims_of(number, body.attempt, caller(request))
    if claims is None:
        raise StaleLease(number)
    return await at.held(number, claims, body.lease_token, caller(request))


def _task(job: Job) -> dict[str, object]:
    """What a worker is to do, in the document's words; a task outside a DAG has neither its name nor inputs."""
    return {
        "task_id": str(job.id), "attempt": job.counter, "job": {"dag_name": None, "name": job.type},
        "operator": job.type, "config": job.payload, "inputs": [],
        "max_attempts": job.max_attempts, "queue": job.queue, "tenant_id": job.tenant_id, "trace_id": job.trace_id,
        "correlation_id": job.correlation_id, "created_at": job.created_at,
    }  # fmt: skip
