"""The answer of document 004's endpoint for rehearsals."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from tenure.http.models.fields import Id, shown

_DATA: dict[str, Any] = {
    "job_id": "42", "final_status": "succeeded", "retry_count": 0, "dlq_id": None, "retry_after_ms": None,
    "retry_at": None,
}  # fmt: skip
_META = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "request_id": "00f067aa0ba902b7"}


class RunData(BaseModel):
    """Document 004: where the job stands after a run."""

    model_config = shown(**_DATA)
    job_id: Id = Field(description="The job's id.")
    final_status: str = Field(description="The state that it is in now.")
    retry_count: int = Field(description="How often it was tried again: the contract's own counter.")
    dlq_id: Id | None = Field(description="Its dead letter; null: it has none.")
    retry_after_ms: int | None = Field(description="Milliseconds until it may be tried again; null: it will not be.")
    retry_at: datetime | None = Field(description="When it may be tried again; null: it will not be.")


class RunMeta(BaseModel):
    """Document 004: the ids of the request."""

    model_config = shown(**_META)
    trace_id: str = Field(description="The trace of the request, as in the header X-Trace-Id.")
    request_id: str = Field(description="The id of the request, as in the header X-Request-Id.")


class RunAnswer(BaseModel):
    """Document 004: a run that was made."""

    model_config = shown(success=True, data=_DATA, meta=_META)
    success: Literal[True] = Field(description="The run was made, whether the job ended well or badly.")
    data: RunData = Field(description="Where the job stands now.")
    meta: RunMeta = Field(description="The ids of the request.")
