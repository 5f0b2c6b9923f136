"""The response of document 004's run endpoint."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from tenure.http.models import fields
from tenure.http.models.fields import described


class RunQuery(BaseModel):
    """Document 004: how a run shall end; by default well."""

    force_fail: bool = described("Fail for good, with a dead letter.", default=False)
    transient_fail: bool = described("Fail and retry, while attempts are left.", default=False)


class RunData(BaseModel):
    """Document 004: the job after a run."""

    job_id: fields.JobId
    final_status: str = described("The job's state now.", examples=["succeeded"])
    retry_count: int = described("How often it was retried: the contract's own counter.")
    dlq_id: fields.Id | None = described("Its dead letter; null: none.")
    retry_after_ms: int | None = described("Milliseconds until its retry; null: no retry.")
    retry_at: datetime | None = described("When it is retried; null: no retry.")


class RunMeta(BaseModel):
    """Document 004: the ids of the request."""

    trace_id: fields.TraceId = described("The request's trace id, as in the header X-Trace-Id.")
    request_id: str = described("The request's id, as in the header X-Request-Id.", examples=["00f067aa0ba902b7"])


class RunAnswer(BaseModel):
    """Document 004: a run that was made."""

    success: Literal[True] = described("The run was made, whether the job succeeded or failed.")
    data: RunData = described("The job after the run.")
    meta: RunMeta = described("The ids of the request.")
