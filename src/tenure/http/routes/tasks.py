"""Document 001's own endpoints: claim a task by its id, heartbeat, complete.

The fence is (job, claims, token). The document's word for a claim is `attempt`, the contract's counter. The claim of
an attempt is remembered, or read from the row and the log. Within a claim the counter does not change, so the fence
checks the attempt too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, RootModel, StrictBool, StrictStr, ValidationError

from tenure.contracts.declaration import HELD
from tenure.errors import (
    BadInput,
    Busy,
    DatasetConflict,
    IdempotencyConflict,
    InvalidTransition,
    JobNotFound,
    NotDue,
    Refused,
    StaleLease,
)
from tenure.http import response
from tenure.http.application import ApiRequest, parse_job_id
from tenure.http.models import fields
from tenure.http.models.datasets import DatasetOutput
from tenure.http.models.datasets import Pin as PinnedDataset
from tenure.http.models.fields import MAX_ITEMS, RequestBody, described, optional
from tenure.http.response import FastJsonResponse
from tenure.http.routes.holding import FailureFacts
from tenure.http.routes.jobs import Job as WholeJob
from tenure.http.validation_messages import bad_input, faults
from tenure.jobs.dataset import WHOLE, Output, Pin, Pointer, parse_event
from tenure.jobs.dataset_json import pin_to_json
from tenure.jobs.formats import code_and_message
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Held
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.claim import Claimer
from tenure.postgres.move import EXPIRED, QUEUE_PAUSED, UNKNOWN_VERSION


class TaskClaim(RequestBody):
    """Document 001: a worker asks for a task by its id."""

    task_id: Annotated[StrictStr, Field(min_length=1, max_length=100)] = described("The task's id.", examples=["42"])
    worker_id: fields.WorkerId
    types: fields.Types | None = optional("The types of tasks that this worker knows; default any.")
    job: StrictBool = described("Whether to answer the whole job too; default false.", default=False)
    datasets: StrictBool = described(
        "Whether the task comes with the generations of datasets that it reads and writes; default true.", default=True
    )


class TaskJob(BaseModel):
    """Document 001: what the task is a run of."""

    dag_name: str | None = described("The task's DAG: the name of its flow; null: none.")
    name: str = described("The node of the flow that it runs; outside a DAG the job's type.", examples=["load"])


class TaskInput(BaseModel):
    """Document 001: an upstream task of the DAG, whose outputs are in the config."""

    argument: str = described("The argument in config; several tasks may give one list.", examples=["rows"])
    task_id: fields.Id = described("The id of that node: of its first task, or of a mapped node.", examples=["41"])
    name: str = described("The name of that node.", examples=["transform"])


class Task(BaseModel):
    """Document 001: what a worker is to do."""

    task_id: fields.Id = described("The task's id.")
    attempt: fields.Counter
    job: TaskJob = described("What the task is a run of.")
    operator: fields.TypeName
    config: Any = described("The operator's arguments: the payload of the job.", examples=[{"to": "a@b.c"}])
    inputs: list[TaskInput] = described("The tasks of its DAG whose outputs are arguments in config; empty: none.")
    datasets: list[PinnedDataset] = described("The generations of datasets that it reads and writes.")
    max_attempts: fields.MaxAttempts
    queue: fields.QueueName
    tenant_id: fields.TenantId
    trace_id: fields.TraceId
    correlation_id: fields.CorrelationId
    created_at: datetime = described("When the task was made.")


class Claimed(BaseModel):
    """Document 001: the worker holds the task."""

    status: Literal["Claimed"] = described("The worker holds the task.")
    attempt: fields.Counter
    lease_token: fields.LeaseToken
    lease_expires_at: datetime = described("When the lease ends, by the database's clock.")
    lease_seconds: float | None = described("Seconds from the claim to the lease's end.", examples=[120.0])
    claims: fields.Claims
    task: Task = described("What to do.")
    job: WholeJob | None = optional("The whole job, if the request asked for it.")


class NotClaimed(BaseModel):
    """Document 001: the task cannot be claimed, and why."""

    status: Literal["NotClaimed"] = described("The task cannot be claimed.")
    reason: str = described(
        "AlreadyRunning, NotDue, WaitingForParents or another (the protocol lists all); or its state.",
        examples=["AlreadyRunning"],
    )


class TaskClaimAnswer(RootModel[Annotated[Claimed | NotClaimed, Field(discriminator="status")]]):
    """Document 001: the task with its lease, or why it cannot be claimed."""


class TaskHeartbeat(RequestBody):
    """Document 001: the work on a task goes on."""

    task_id: fields.Id = described("The task's id.")
    attempt: fields.Count = described("The attempt, as the claim answered.", examples=[1])
    lease_token: fields.Token = described("The lease token, as the claim answered.")


class TaskBeat(BaseModel):
    """Document 001: when the lease ends, and whether the worker must stop."""

    lease_expires_at: fields.LeaseEnd
    cancel_requested: bool = described("Whether the worker must stop: then complete it as Canceled.")


class TaskComplete(TaskHeartbeat):
    """Document 001: the end of an attempt. Outputs and events are stored with it, or nothing is."""

    status: Literal["Completed", "Failed", "Canceled"] = described("How the attempt ended.")
    outputs: Any = optional(
        "With Completed: any JSON; those with kind and dataset, or a dataset_uuid that it writes, go to datasets.",
        examples=[[{"rows": 17}]],
    )
    events: Annotated[list[Any], Field(max_length=MAX_ITEMS)] | None = optional(
        "Events to store with it; with Completed, those with a dataset_uuid are routed. Default none."
    )
    error_message: Annotated[StrictStr, Field(max_length=8_000)] | None = optional("With Failed: what went wrong.")
    error: FailureFacts | None = optional("With Failed: what went wrong, in full; then without error_message.")


class TaskCompleted(BaseModel):
    """Document 001: the task's status now, and when a Failed task runs again."""

    status: str = described("The task's status now.", examples=["Completed"])
    next_retry_at: datetime | None = described("When it runs again; null: it does not.")


_VERBS = {"Completed": "succeed", "Failed": "fail", "Canceled": "cancelled"}
#: The document's reason for each kind of refusal.
_REASONS = {JobNotFound: "NotFound", NotDue: "NotDue", Busy: "Busy", StaleLease: "LeaseLost"}
#: And for other refusals. A task that expired before it began is canceled in a moment.
_OTHER_REASONS = {UNKNOWN_VERSION: "UnknownVersion", QUEUE_PAUSED: "QueuePaused", EXPIRED: "Canceled"}


async def task_claim(request: ApiRequest, body: TaskClaim) -> dict[str, Any] | FastJsonResponse:
    """Claim a task by its id: `Claimed` with the lease, or `NotClaimed` with the reason."""
    token, calls, who = _lease_token(request.headers.get("idempotency-key")), request.calls, request.caller
    try:
        job_id = _parse_task_id(body.task_id)
        if body.types is not None and (await calls.identity(job_id, who)).type not in body.types:
            return {"status": "NotClaimed", "reason": "UnknownType"}
        job = await calls.claim_by_id(job_id, Claimer(body.worker_id, 1, token), who)
    except Refused as refused:
        return {"status": "NotClaimed", "reason": await _reason(request, refused)}
    calls.remember_attempt(job)
    of_flow = await calls.task_of_flow(job_id, who)
    worker = LiveWorker(body.worker_id, (job.queue,), (job.contract,), tuple(body.types or (job.type,)))
    calls.presence.record(worker, unbound=False)
    pins = (await calls.pins([job])).get(job.id, ()) if body.datasets else ()
    task = {**response.task(job, of_flow), "datasets": list(map(pin_to_json, pins))}
    answer = {"status": "Claimed", "attempt": job.counter, **response.lease(job), "task": task}
    if body.job:
        answer["job"] = response.job(job)
    return FastJsonResponse(answer)


async def task_heartbeat(request: ApiRequest, body: TaskHeartbeat) -> dict[str, Any]:
    """Extend the lease of a task, if the token is the one of the current attempt."""
    noted = await request.calls.report_patiently("heartbeat", HolderCall(await _held(request, body)))
    return {"lease_expires_at": noted.lease_expires_at, "cancel_requested": noted.cancel_requested}


async def task_complete(request: ApiRequest, body: TaskComplete) -> dict[str, Any]:
    """End the current attempt, with its token. Outputs (with Completed) and events are stored with it.

    The dispatcher decides whether and when a Failed task runs again. The same completion again gets the same answer;
    another one of the same attempt is refused.
    """
    held = await _held(request, body)
    call = HolderCall(
        held,
        key=f"task-complete:{held.claims}",
        failure=_failure(body) if body.status == "Failed" else None,
        events=body.events or (),
    )
    if body.status == "Completed":
        call.result, call.outputs = await _outputs(request, held, body.outputs)
        events = [parse_event(f"events[{n}]", event) for n, event in enumerate(call.events)]
        call.dataset_events = [event for event in events if event is not None]
    try:
        moved = await request.calls.report_patiently(_VERBS[body.status], call)
    except IdempotencyConflict as conflict:
        why = f"attempt {body.attempt} of task {body.task_id} was completed otherwise already; nothing was stored"
        raise Refused(held.id, why, code=conflict.code) from None
    return {"status": moved.state, "next_retry_at": moved.due_at if moved.will_retry else None}


async def _outputs(request: ApiRequest, held: Held, outputs: Any) -> tuple[Any, list[Output]]:
    """What is stored as the task's outputs, and the outputs to datasets among them; their rows go there alone."""
    if not isinstance(outputs, list):
        return outputs, []
    uuids: dict[str, Pin] = {}
    if any(isinstance(one, dict) and "dataset_uuid" in one for one in outputs):
        pins = await request.calls.store.datasets.pins(held.id)
        uuids = {str(pin.dataset_uuid): pin for pin in pins if pin.mode == "write"}
    stored: list[Any] = []
    found: list[Output] = []
    for n, one in enumerate(outputs):
        output = _output(f"outputs[{n}]", one, uuids) if isinstance(one, dict) else None
        if output is not None:
            found.append(output)
            given = {} if isinstance(output, Pointer) else {"given": len(output.rows)}
            one = {**{name: value for name, value in one.items() if name not in ("rows", "keys")}, **given}
        stored.append(one)
    return stored, found


def _output(path: str, one: dict[str, Any], written: Mapping[str, Pin]) -> Output | None:
    """The output to a dataset that an object is; None: it is none."""
    if "kind" in one and "dataset" in one:
        try:
            return DatasetOutput.model_validate(one).output()
        except ValidationError as error:
            what = bad_input(faults(error, DatasetOutput, in_body=True))
            raise BadInput(f"{path}: {code_and_message(what)[1]}") from None
    pin = written.get(str(one.get("dataset_uuid")).lower())
    if pin is None or "location" not in one:
        return None
    if one.get("dataset_version", pin.generation) != pin.generation:
        raise DatasetConflict(f"{path} is of version {one['dataset_version']!r}, and the task writes {pin.generation}")
    scope = one.get("partition_key")
    return Pointer(
        pin.dataset, one["location"], one.get("cursor"), one.get("row_count"), WHOLE if scope is None else scope
    )


def _failure(body: TaskComplete) -> Failure:
    """What went wrong: the facts, else the message alone."""
    if body.error is not None:
        return body.error.failure()
    return Failure(body.error_message or "the task failed", "TaskFailed")


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
    """A task's id as a job's id; a text that cannot be one is not found."""
    if not (task_id.isascii() and task_id.isdecimal() and len(task_id) < 20):
        raise JobNotFound(0)
    return parse_job_id(task_id)


async def _reason(request: ApiRequest, refused: Refused) -> str:
    """Why a task cannot be claimed, in the document's words; for other states the state itself."""
    if isinstance(refused, JobNotFound) and refused.job_id:
        node = await request.calls.store.flows.find_waiting(refused.job_id)
        if node is not None and request.caller.tenant in (None, node.tenant_id):
            return "WaitingForParents"
    for refusal, reason in _REASONS.items():
        if isinstance(refused, refusal):
            return reason
    if refused.reason_code in _OTHER_REASONS:
        return _OTHER_REASONS[refused.reason_code]
    if isinstance(refused, InvalidTransition) and refused.job_id is not None:
        identity = await request.calls.identity(refused.job_id, request.caller)
        contract = await request.calls.store.contract(identity.contract, identity.version)
        return refused.state if HELD.isdisjoint(contract.states[refused.state]) else "AlreadyRunning"
    return refused.reason_code


async def _held(request: ApiRequest, body: TaskHeartbeat) -> Held:
    """The claim of this attempt; refuses an attempt that does not exist."""
    calls, job_id = request.calls, parse_job_id(body.task_id)
    claims = await calls.claims_of(job_id, body.attempt, request.caller)
    if claims is None:
        raise StaleLease(job_id)
    return await calls.held(job_id, claims, body.lease_token, request.caller)
