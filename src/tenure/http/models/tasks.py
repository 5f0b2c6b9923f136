"""Bodies and answers of document 001's own endpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictStr

from tenure.http.models.fields import (
    MADE_AT,
    MOST,
    TOKEN,
    UNTIL,
    Body,
    CorrelationId,
    Count,
    Id,
    LeaseEnd,
    LeaseToken,
    QueueName,
    TenantId,
    Token,
    TraceId,
    TypeName,
    WhoHolds,
    like,
    shown,
)

_TASK: dict[str, Any] = {
    "task_id": "42", "attempt": 1, "job": {"dag_name": None, "name": "send"}, "operator": "send",
    "config": {"to": "a@b.c"}, "inputs": [], "max_attempts": 5, "queue": "default", "tenant_id": "default",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "correlation_id": "order:17", "created_at": MADE_AT,
}  # fmt: skip
_CLAIMED: dict[str, Any] = {
    "status": "Claimed", "attempt": 1, "lease_token": TOKEN, "lease_expires_at": UNTIL, "task": _TASK,
}  # fmt: skip
_NOT_CLAIMED: dict[str, Any] = {"status": "NotClaimed", "reason": "AlreadyRunning"}
_HELD: dict[str, Any] = {"task_id": "42", "attempt": 1, "lease_token": TOKEN}


class TaskClaim(Body):
    """Document 001: a worker was told of a task, and asks for it."""

    model_config = like(task_id="42", worker_id="worker-7")
    task_id: Annotated[StrictStr, Field(min_length=1, max_length=100)] = Field(description="The task's id.")
    worker_id: WhoHolds


class TaskJob(BaseModel):
    """Document 001: what the task is a run of."""

    model_config = shown(**_TASK["job"])
    dag_name: str | None = Field(description="The DAG that the task belongs to; null: to none.")
    name: TypeName


class Task(BaseModel):
    """Document 001: what a worker is to do."""

    model_config = shown(**_TASK)
    task_id: Id = Field(description="The task's id.")
    attempt: int = Field(description="Which attempt this is: the contract's own counter.")
    job: TaskJob = Field(description="What the task is a run of.")
    operator: TypeName
    config: Any = Field(description="The operator's arguments: the payload that the task was made with.")
    inputs: list[Any] = Field(description="What upstream tasks of its DAG left for it; none outside a DAG.")
    max_attempts: int = Field(description="The limit in the contract's own sense.")
    queue: QueueName
    tenant_id: TenantId
    trace_id: TraceId
    correlation_id: CorrelationId
    created_at: datetime = Field(description="When the task was made.")


class Claimed(BaseModel):
    """Document 001: the task is this worker's."""

    model_config = shown(**_CLAIMED)
    status: Literal["Claimed"] = Field(description="The task is this worker's.")
    attempt: int = Field(description="Which attempt this is: the contract's own counter.")
    lease_token: LeaseToken
    lease_expires_at: datetime = Field(description="When the lease ends, by the database's clock.")
    task: Task = Field(description="What to do.")


class NotClaimed(BaseModel):
    """Document 001: the task is not to be had, and why."""

    model_config = shown(**_NOT_CLAIMED)
    status: Literal["NotClaimed"] = Field(description="The task is not to be had.")
    reason: str = Field(description="Why: AlreadyRunning, NotFound, NotDue, Busy, LeaseLost, or the state it is in.")


class TaskClaimAnswer(RootModel[Annotated[Claimed | NotClaimed, Field(discriminator="status")]]):
    """Document 001: the task with its lease, or why it is not to be had."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLAIMED, _NOT_CLAIMED]})


class TaskHeartbeat(Body):
    """Document 001: the work on a task goes on."""

    model_config = like(**_HELD)
    task_id: Id = Field(description="The task's id.")
    attempt: Count = Field(description="The attempt, as the claim said.")
    lease_token: Token = Field(description="The lease's token, as the claim gave it.")


class TaskBeat(BaseModel):
    """Document 001: until when the task is held, and whether the worker is asked to stop."""

    model_config = shown(lease_expires_at=UNTIL, cancel_requested=False)
    lease_expires_at: LeaseEnd
    cancel_requested: bool = Field(description="Whether the worker is asked to stop: then complete it as Canceled.")


class TaskComplete(TaskHeartbeat):
    """Document 001: the attempt has ended so; outputs and events are stored with it, or not at all."""

    model_config = like(**_HELD, status="Completed", outputs=[{"rows": 17}])
    status: Literal["Completed", "Failed", "Canceled"] = Field(description="How the attempt ended.")
    outputs: Any = Field(default=None, description="Of a Completed one: what came of it, any JSON; default null.")
    events: Annotated[list[Any], Field(max_length=MOST)] | None = Field(
        default=None, description="Events to be stored with it; default none."
    )
    error_message: Annotated[StrictStr, Field(max_length=8_000)] | None = Field(
        default=None, description="Of a Failed one: what went wrong."
    )


class TaskCompleted(BaseModel):
    """Document 001: what the task's status is now; a Failed one with a time runs again then."""

    model_config = shown(status="Completed", next_retry_at=None)
    status: str = Field(description="The task's status now.")
    next_retry_at: datetime | None = Field(description="When it runs again; null: it does not.")
