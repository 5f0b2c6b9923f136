"""Requests and responses of the dead letter routes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from tenure.http.models import fields
from tenure.http.models.fields import described, optional
from tenure.jobs.validation import LENGTHS

Status = Literal["open", "requeued", "discarded"]


class LetterFilter(BaseModel):
    """The query of a list of dead letters."""

    contract: str | None = optional("Only this contract; default all.", max_length=LENGTHS["contract"])
    tenant_id: str | None = optional("Only this tenant; default the key's, or all.", max_length=LENGTHS["tenant_id"])
    status: Status | None = optional("Only this decision; default all.")
    limit: fields.Limit = 50
    cursor: fields.Cursor = None


class Discard(fields.RequestBody):
    """A person asks to discard a dead letter."""

    reason: fields.Reason = described("Why to discard it.", examples=["a duplicate of 41"])
    person: fields.Person | None = optional("Who asks: the key's person; give it only while no key exists.")
    idempotency_key: fields.IdempotencyKey = None


class Approve(fields.RequestBody):
    """Another person approves the discard."""

    person: fields.Person | None = optional("Who approves: the key's person; give it only while no key exists.")
    idempotency_key: fields.IdempotencyKey = None


class Letter(BaseModel):
    """A dead letter, and what was decided about it."""

    dlq_id: fields.LetterId
    id: fields.LetterId
    job_id: fields.JobId
    contract: fields.ContractName
    tenant_id: fields.TenantId
    type: fields.TypeName
    reason_code: str = described("Why the job was set aside, as a code.", examples=["permanent_error"])
    stage: str | None = described("The stage of the work where it failed; null: unknown.")
    last_error: Any = described("The last error.", examples=[{"type": "PermanentError", "message": "no such address"}])
    counter: fields.Counter
    claims: fields.Claims
    last_owner: str | None = described("The last holder of the job; null: it was never held.")
    last_lease_expires_at: datetime | None = described("When the last lease would have ended; null: none.")
    correlation_id: fields.CorrelationId
    trace_id: fields.TraceId
    payload: Any = described(
        "The handler's arguments; null when they are no longer stored.", examples=[{"to": "a@b.c"}]
    )
    status: Status = described("The decision: open (none yet), requeued or discarded.")
    failed_at: datetime = described("When the job failed.")
    created_at: datetime = described("When the dead letter was written.")
    updated_at: datetime = described("When the last decision about it was made.")
    requeued_as: fields.Id | None = described("The job that runs it again; null: none.")
    requeued_by: str | None = described("Who ran it again; null: nobody.")
    discard_reason: str | None = described("Why it is to be discarded; null: nobody asked.")
    discard_asked_by: str | None = described("Who asked to discard it; null: nobody.")
    discard_asked_at: datetime | None = described("When that person asked; null: never.")
    discard_approved_by: str | None = described("Who approved the discard; null: nobody.")
    discard_approved_at: datetime | None = described("When that person approved; null: never.")


class LetterPage(BaseModel):
    """Dead letters, newest first."""

    items: list[Letter] = described("The dead letters of this page.")
    next: fields.Id | None = described("The cursor of the next page; null: this is the last page.")


class LetterRequeued(BaseModel):
    """A dead letter that runs again as a new job."""

    dlq_id: fields.LetterId
    job_id: fields.Id = described("The id of the new job.", examples=["43"])
    status: Literal["queued"] = described("The state of the new job.")
