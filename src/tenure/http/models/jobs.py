"""Bodies and answers of the routes that make jobs and look at them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel, StrictInt, StrictStr

from tenure.errors import BadInput
from tenure.http.models.fields import (
    DONE_AT,
    MADE_AT,
    MOST,
    TAKEN_AT,
    Body,
    Claims,
    Contract,
    ContractName,
    CorrelationId,
    Count,
    Counter,
    DueAt,
    Id,
    InRole,
    JobId,
    LeaseEnd,
    Queue,
    QueueName,
    RepeatKey,
    Seconds,
    State,
    Tenant,
    TenantId,
    TraceId,
    Type,
    TypeName,
    either,
    like,
    shown,
    text,
)
from tenure.http.models.refusal import RefusedItem
from tenure.job import NewJob

_MADE: dict[str, Any] = {
    "id": "42", "made": True, "contract": "standard", "state": "queued", "queue": "default", "type": "send",
    "tenant_id": "default",
}  # fmt: skip
_REFUSED: dict[str, Any] = {
    "code": "E-UNKNOWN-CONTRACT", "message": "there is no contract standrad", "retryable": False,
    "hint": "tenure contracts list",
}  # fmt: skip
_LISTED: dict[str, Any] = {
    "id": "42", "contract": "standard", "state": "succeeded", "role": "done", "queue": "default", "type": "send",
    "tenant_id": "default", "priority": 5, "claims": 1, "counter": 1, "max_attempts": 5, "due_at": None,
    "created_at": MADE_AT, "updated_at": DONE_AT, "finished_at": DONE_AT, "lease_owner": None,
    "lease_expires_at": None, "last_error": None,
}  # fmt: skip
#: A job as it is once it is made; examples of others say what is different.
JOB: dict[str, Any] = {
    **_LISTED, "version": "1", "raises": 0, "payload": {"to": "a@b.c"}, "started_at": TAKEN_AT,
    "cancel_requested_at": None, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "correlation_id": "order:17",
    "idempotency_key": "welcome:42", "origin_letter": None, "result": {"sent": True}, "checkpoint": None,
    "pending": None,
}  # fmt: skip
_EVENT: dict[str, Any] = {
    "job_id": "42", "seq": 2, "ts": DONE_AT, "hop": True, "trigger": "succeed", "from_state": "running",
    "to_state": "succeeded", "claims": 1, "counter": 1, "max_attempts": 5, "actor": "w1", "reason": None, "facts": {},
}  # fmt: skip


class Enqueue(Body):
    """A job to be made."""

    model_config = like(type="send", payload={"to": "a@b.c"}, idempotency_key="welcome:42")
    type: Type = Field(description="The type of the job: which handler runs it.")
    payload: Any = Field(default_factory=dict, description="The handler's arguments, any JSON; default {}.")
    contract: Contract = Field(default="standard", description="The contract that it follows; default standard.")
    queue: Queue = Field(default="default", description="The queue that it is claimed from; default default.")
    tenant_id: Tenant | None = Field(default=None, description="Whose job it is; default the key's tenant, or default.")
    priority: Annotated[StrictInt, Field(ge=0, le=9)] = Field(
        default=5, description="0 is claimed first, 9 last; default 5."
    )
    run_at: Annotated[StrictStr, Field(json_schema_extra={"format": "date-time"})] | None = Field(
        default=None, description="When it may be claimed, with a time zone; default now. Not with delay_seconds."
    )
    delay_seconds: Seconds | None = Field(
        default=None, description="Seconds until it may be claimed; default 0. Not with run_at."
    )
    max_attempts: Count | None = Field(
        default=None, description="The limit in the contract's own sense; default its type's, or the contract's."
    )
    idempotency_key: RepeatKey = None
    correlation_id: Annotated[StrictStr, text("correlation_id")] | None = Field(
        default=None, description="What the job belongs to; default an id made from the job's."
    )
    trace_id: Annotated[StrictStr, text("trace_id")] | None = Field(
        default=None, description="The trace that the job belongs to; default the request's, or one made from its id."
    )

    def job(self, tenant: str | None, key: str | None) -> NewJob:
        """The job that is asked for; refuses two answers to when it may be claimed."""
        if self.run_at is not None and self.delay_seconds is not None:
            raise BadInput("run_at and delay_seconds both say when the job may be claimed. Next: give one of them")
        return NewJob(
            self.type, self.payload, contract=self.contract, queue=self.queue, tenant_id=tenant or "default",
            priority=self.priority, max_attempts=self.max_attempts, run_at=_moment("run_at", self.run_at),
            delay_ms=_ms(self.delay_seconds), key=key, trace_id=self.trace_id, correlation_id=self.correlation_id,
        )  # fmt: skip


class EnqueueMany(Body):
    """Jobs to be made."""

    model_config = like(jobs=[{"type": "send", "payload": {"to": "a@b.c"}}])
    jobs: Annotated[list[Enqueue], Field(min_length=1, max_length=MOST)] = Field(
        description="The jobs; each is made or refused by itself."
    )


class Made(BaseModel):
    """A job that exists: made by this call, or by an earlier one with the same key."""

    model_config = shown(**_MADE)
    id: JobId
    made: bool = Field(description="Whether this call made it; false: an earlier one with the same key did.")
    contract: ContractName
    state: State
    queue: QueueName
    type: TypeName
    tenant_id: TenantId


class MadeInBatch(BaseModel):
    """One of many jobs that exist."""

    model_config = shown(id="42", made=True)
    id: JobId
    made: bool = Field(description="Whether this call made it; false: an earlier one with the same key did.")


class MadeOrRefused(RootModel[MadeInBatch | RefusedItem]):
    """What became of one of many jobs to be made."""

    model_config = either({"id": "42", "made": True}, {"error": _REFUSED})


class MadeMany(BaseModel):
    """What became of each."""

    model_config = shown(jobs=[{"id": "42", "made": True}, {"error": _REFUSED}])
    jobs: list[MadeOrRefused] = Field(description="One answer for each job, in the order asked.")


class ListedJob(BaseModel):
    """A job as a list shows it."""

    model_config = shown(**_LISTED)
    id: JobId
    contract: ContractName
    state: State
    role: InRole
    queue: QueueName
    type: TypeName
    tenant_id: TenantId
    priority: int = Field(description="0 is claimed first, 9 last.")
    claims: Claims
    counter: Counter
    max_attempts: int = Field(description="The limit in the contract's own sense.")
    due_at: DueAt
    created_at: datetime = Field(description="When the job was made.")
    updated_at: datetime = Field(description="When the job last moved.")
    finished_at: datetime | None = Field(description="When the job ended; null while it lives.")
    lease_owner: str | None = Field(description="Who holds the job; null: nobody.")
    lease_expires_at: LeaseEnd
    last_error: dict[str, Any] | None = Field(description="What last went wrong, in short; null: nothing did.")


class Job(ListedJob):
    """A job with all that its row says."""

    model_config = shown(**JOB)
    version: str = Field(description="The version of the contract that the job follows.")
    raises: int = Field(description="By how much snoozes have raised the job's limit.")
    payload: Any = Field(description="The handler's arguments.")
    started_at: datetime | None = Field(description="When it was last claimed; null: never.")
    cancel_requested_at: datetime | None = Field(description="When its holder was asked to stop; null: it was not.")
    trace_id: TraceId
    correlation_id: CorrelationId
    idempotency_key: str | None = Field(description="The key that it was made with; null: none.")
    origin_letter: Id | None = Field(description="The dead letter that it runs again; null: none.")
    last_error: Any = Field(description="What last went wrong, in full; null: nothing did.")
    result: Any = Field(description="What the handler returned; null until it has.")
    checkpoint: Any = Field(description="What the handler last saved for its next attempt; null: nothing.")
    pending: Any = Field(description="The failure that ends the job once its effects are undone; null: none.")
    record: dict[str, Any] | None = Field(default=None, description="The row of its contract's own view.")
    progress: Any = Field(default=None, description="How far its holder last said to be; null: nothing was said.")
    dlq_id: Id | None = Field(default=None, description="Its dead letter; null: it has none.")
    requeued_as: Id | None = Field(default=None, description="The job that runs it again; null: none.")


class JobPage(BaseModel):
    """Jobs that match, newest first."""

    model_config = shown(jobs=[_LISTED], next="41", stopped=False)
    jobs: list[ListedJob] = Field(description="The jobs of this page.")
    next: Id | None = Field(description="The cursor of the next page; null: there is none.")
    stopped: bool = Field(description="Whether so many others were looked at before the page was full: go on at next.")


class JobEvent(BaseModel):
    """A row of a job's log."""

    model_config = shown(**_EVENT)
    job_id: JobId
    seq: int = Field(description="Its place in the job's log, from 1 on, without gaps.")
    ts: datetime = Field(description="When it happened, by the database's clock; strictly rising within a job.")
    hop: bool = Field(description="Whether the job changed its state; false: a fact that its contract writes down.")
    trigger: str = Field(description="What happened.")
    from_state: str = Field(description="The state before.")
    to_state: str = Field(description="The state after.")
    claims: Claims
    counter: Counter
    max_attempts: int = Field(description="The limit at that time, in the contract's own sense.")
    actor: str = Field(description="Who did it: a worker, a key, upkeep.")
    reason: str | None = Field(description="Why; null where nobody said.")
    facts: Any = Field(description="What else belongs to it.")


class JobEvents(BaseModel):
    """A job's log, in order."""

    model_config = shown(events=[_EVENT], next=None)
    events: list[JobEvent] = Field(description="The rows, oldest first.")
    next: str | None = Field(description="The cursor of the next page; null: this is the last one.")


class WhyAnswer(BaseModel):
    """Why a job is (not) running, or why it ended as it did."""

    model_config = shown(
        id="42", state="queued", role="ready", why=["Nobody claims it: queue mail is paused since 12:03 by ann."],
        next=['POST /api/v1/queues/resume with {"queue": "mail"}', "GET /api/v1/jobs/42/events"],
    )  # fmt: skip
    id: JobId
    state: State
    role: InRole
    why: list[str] = Field(description="A few sentences, the most important first.")
    next: list[str] = Field(description="The requests that make sense now, the likeliest first.")


def _moment(kind: str, given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise BadInput(f"{kind} must be a time like 2026-11-15T12:00:00Z, not {given[:100]!r}") from None
    if found.tzinfo is None:
        raise BadInput(f"{kind} must have a time zone, like 2026-11-15T12:00:00Z, and {given[:100]!r} has none")
    return found


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)
