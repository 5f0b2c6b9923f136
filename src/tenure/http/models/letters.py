"""Bodies and answers of the routes of dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from tenure.http.models.fields import (
    DONE_AT,
    UNTIL,
    Body,
    Claims,
    ContractName,
    CorrelationId,
    Counter,
    Id,
    Person,
    Reason,
    RepeatKey,
    TenantId,
    TraceId,
    TypeName,
    like,
    shown,
)

Status = Literal["open", "requeued", "discarded"]
_LETTER: dict[str, Any] = {
    "dlq_id": "7", "id": "7", "job_id": "42", "contract": "standard", "tenant_id": "default", "type": "send",
    "reason_code": "permanent_error", "stage": "exec", "counter": 1, "claims": 1, "last_owner": "w1",
    "last_lease_expires_at": UNTIL, "correlation_id": "order:17", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "status": "open", "failed_at": DONE_AT, "created_at": DONE_AT, "updated_at": DONE_AT, "requeued_as": None,
    "requeued_by": None, "discard_reason": None, "discard_asked_by": None, "discard_asked_at": None,
    "discard_approved_by": None, "discard_approved_at": None, "payload": {"to": "a@b.c"},
    "last_error": {"type": "PermanentError", "message": "no such address"},
}  # fmt: skip


class Discard(Body):
    """A person's wish that a dead letter be thrown away."""

    model_config = like(reason="a duplicate of 41")
    reason: Reason = Field(description="Why it is to be thrown away.")
    person: Person | None = Field(
        default=None, description="Who decides; the key's person, and to be said only where there are no keys."
    )
    idempotency_key: RepeatKey = None


class Approve(Body):
    """Another person's agreement."""

    model_config = like(idempotency_key="agreed:7")
    person: Person | None = Field(
        default=None, description="Who agrees; the key's person, and to be said only where there are no keys."
    )
    idempotency_key: RepeatKey = None


class Letter(BaseModel):
    """A dead letter, and what was decided about it."""

    model_config = shown(**_LETTER)
    dlq_id: Id = Field(description="The dead letter's id.")
    id: Id = Field(description="The dead letter's id, once more.")
    job_id: Id = Field(description="The job that was set aside.")
    contract: ContractName
    tenant_id: TenantId
    type: TypeName
    reason_code: str = Field(description="Why it was set aside, as a code.")
    stage: str | None = Field(description="At which stage of the work; null where nobody said.")
    last_error: Any = Field(description="What last went wrong.")
    counter: Counter
    claims: Claims
    last_owner: str | None = Field(description="Who held the job last; null: nobody did.")
    last_lease_expires_at: datetime | None = Field(description="When the last lease would have ended; null: none.")
    correlation_id: CorrelationId
    trace_id: TraceId
    payload: Any = Field(description="The handler's arguments; null where they are not kept any more.")
    status: Status = Field(description="What was decided: nothing yet, that it runs again, that it is thrown away.")
    failed_at: datetime = Field(description="When the job failed.")
    created_at: datetime = Field(description="When the dead letter was written.")
    updated_at: datetime = Field(description="When something was last decided about it.")
    requeued_as: Id | None = Field(description="The job that runs it again; null: none.")
    requeued_by: str | None = Field(description="Who let it run again; null: nobody.")
    discard_reason: str | None = Field(description="Why it is to be thrown away; null: nobody asked.")
    discard_asked_by: str | None = Field(description="Who asked to throw it away; null: nobody.")
    discard_asked_at: datetime | None = Field(description="When that was asked; null: never.")
    discard_approved_by: str | None = Field(description="Who agreed; null: nobody.")
    discard_approved_at: datetime | None = Field(description="When that person agreed; null: never.")


class LetterPage(BaseModel):
    """Dead letters, newest first."""

    model_config = shown(items=[_LETTER], next=None)
    items: list[Letter] = Field(description="The dead letters of this page.")
    next: Id | None = Field(description="The cursor of the next page; null: there is none.")


class LetterRequeued(BaseModel):
    """A dead letter that runs again as this job."""

    model_config = shown(dlq_id="7", job_id="43", status="queued")
    dlq_id: Id = Field(description="The dead letter's id.")
    job_id: Id = Field(description="The id of the new job.")
    status: Literal["queued"] = Field(description="What the new job is.")
