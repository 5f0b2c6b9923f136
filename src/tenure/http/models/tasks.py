"""Requests and responses of document 001's own endpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, StrictStr

from tenure.http.models import fields
from tenure.http.models.fields import MAX_BATCH, RequestBody, described, optional


class TaskClaim(RequestBody):
    """Document 001: a worker asks for a task by its id."""

    task_id: Annotated[StrictStr, Field(min_length=1, max_length=100)] = described("The task's id.", examples=["42"])
    worker_id: fields.WorkerId
    types: fields.Types | None = optional("The types of tasks that this worker knows; default any.")


class TaskJob(BaseModel):
    """Document 001: what the task is a run of."""

    dag_name: str | None = described("The task's DAG; null: none.")
    name: fields.TypeName


class Task(BaseModel):
    """Document 001: what a worker is to do."""

    task_id: fields.Id = described("The task's id.")
    attempt: fields.Counter
    job: TaskJob = described("What the task is a run of.")
    operator: fields.TypeName
    config: Any = described("The operator's arguments: the payload of the job.", examples=[{"to": "a@b.c"}])
    inputs: list[Any] = described("The outputs of upstream tasks of its DAG; empty outside a DAG.")
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
    task: Task = described("What to do.")


class NotClaimed(BaseModel):
    """Document 001: the task cannot be claimed, and why."""

    status: Literal["NotClaimed"] = described("The task cannot be claimed.")
    reason: str = described(
        "AlreadyRunning, UnknownType, UnknownVersion, NotFound, NotDue, Busy, LeaseLost, or its state.",
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
    outputs: Any = optional("With Completed: the outputs, any JSON; default null.", examples=[[{"rows": 17}]])
    events: Annotated[list[Any], Field(max_length=MAX_BATCH)] | None = optional(
        "Events to store with it; default none."
    )
    error_message: Annotated[StrictStr, Field(max_length=8_000)] | None = optional("With Failed: what went wrong.")


class TaskCompleted(BaseModel):
    """Document 001: the task's status now, and when a Failed task runs again."""

    status: str = described("The task's status now.", examples=["Completed"])
    next_retry_at: datetime | None = described("When it runs again; null: it does not.")
