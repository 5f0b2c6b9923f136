"""The fields of a job to make, which several requests share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictInt, StrictStr

from tenure.errors import BadInput
from tenure.http.models import fields
from tenure.http.models.dataset_uses import Uses, dataset_uses
from tenure.http.models.fields import RequestBody, described, optional
from tenure.jobs.job import NewJob


class NewJobFields(RequestBody):
    """What a job is made of."""

    type: fields.Type = described("The job's type: which handler runs it.")
    payload: Any = described(
        "The handler's arguments, any JSON; default {}.", default_factory=dict, examples=[{"to": "a@b.c"}]
    )
    contract: fields.Contract = described("The contract it follows; default standard.", default="standard")
    queue: fields.Queue = described("The queue it is claimed from; default default.", default="default")
    priority: Annotated[StrictInt, Field(ge=0, le=9), fields.AS_WHOLE] = described(
        "0 is claimed first, 9 last; default 5.", default=5
    )
    run_at: Annotated[StrictStr, Field(json_schema_extra={"format": "date-time"})] | None = optional(
        "When it may be claimed, with a time zone; default now. Not with delay_seconds."
    )
    delay_seconds: fields.Seconds | None = optional("Seconds until it may be claimed; default 0. Not with run_at.")
    max_attempts: fields.Count | None = optional("The limit of attempts; default its type's, or the contract's.")
    expires_at: Annotated[StrictStr, Field(json_schema_extra={"format": "date-time"})] | None = optional(
        "The job is cancelled if it was not claimed before, with a time zone. Not with expires_seconds."
    )
    expires_seconds: fields.Seconds | None = optional(
        "The job is cancelled if it was not claimed within so many seconds. Not with expires_at."
    )
    correlation_id: Annotated[StrictStr, fields.text("correlation_id")] | None = optional(
        "The job's correlation id; default one made from the job's id."
    )
    trace_id: Annotated[StrictStr, fields.text("trace_id")] | None = optional(
        "The job's trace id; default the request's, or one made from the job's id."
    )
    reads: Uses | None = optional("The datasets that it reads: their generations are pinned now; default none.")
    writes: Uses | None = optional("The datasets that it writes: their generations are pinned now; default none.")
    notify: StrictBool = described(
        "Whether to wake listening workers; false: they find the job by polling.", default=True
    )

    def new_job(self, tenant: str | None) -> NewJob:
        """The job of these fields; refuses a time that is given twice."""
        if self.expires_at is not None and self.expires_seconds is not None:
            raise BadInput("expires_at and expires_seconds both say when the job expires. Next: give one of them")
        if self.run_at is not None and self.delay_seconds is not None:
            raise BadInput("run_at and delay_seconds both say when the job may be claimed. Next: give one of them")
        return NewJob(
            self.type, self.payload, contract=self.contract, queue=self.queue, tenant_id=tenant or "default",
            priority=self.priority, max_attempts=self.max_attempts, run_at=_timestamp("run_at", self.run_at),
            delay_ms=_milliseconds(self.delay_seconds), trace_id=self.trace_id, correlation_id=self.correlation_id,
            notify=self.notify, expires_at=_timestamp("expires_at", self.expires_at),
            expires_ms=_milliseconds(self.expires_seconds), reads=dataset_uses(self.reads),
            writes=dataset_uses(self.writes),
        )  # fmt: skip


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


def _timestamp(name: str, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        timestamp = datetime.fromisoformat(value)
    except ValueError:
        raise BadInput(f"{name} must be a time like 2026-11-15T12:00:00Z, not {value[:100]!r}") from None
    if timestamp.tzinfo is None:
        raise BadInput(f"{name} must have a time zone, like 2026-11-15T12:00:00Z, and {value[:100]!r} has none")
    return timestamp
