"""The error envelope, and what each error status means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel

from tenure.http.models.fields import Id, TraceId, described, optional


class ErrorDetail(BaseModel):
    """What happened, whether to try again, and what to do next."""

    code: str = described("A code for programs: from the reference, or the contract's own.", examples=["BUSY"])
    message: str = described("What happened, for people.", examples=["job 42 is locked by another call"])
    retryable: bool = described("Whether the same call may succeed a little later.", examples=[True])
    hint: str | None = described("What to do next; null: nothing.", examples=["try again"])
    job_id: Id | None = optional("Of DUPLICATE_JOB: the job that is in the way.")
    requeued_as: Id | None = optional("Of REQUEUE_CONFLICT: the job that runs it again already.")
    flow_id: Id | None = optional("Of WAITING_FOR_PARENTS: the flow that the job is a node of.")
    node: str | None = optional("Of WAITING_FOR_PARENTS: the name of that node.")


class RefusedItem(BaseModel):
    """A refused item of a batch; the other items have their own answers."""

    error: ErrorDetail = described("Why the call was refused.")


class Refusal(RefusedItem):
    """The envelope of every error."""

    trace_id: TraceId = described("The request's trace id, as in the header X-Trace-Id and in the logs.")


class ErrorStatus(NamedTuple):
    """An error status: its name among the OpenAPI components, and when it is the answer."""

    name: str
    description: str


#: The meaning of each error status, the same for every operation.
ERROR_STATUSES: Mapping[int, ErrorStatus] = {
    400: ErrorStatus("NotHttp", "The bytes were not an HTTP/1.1 request."),
    401: ErrorStatus("Unauthorized", "No key, or one that is unknown, revoked or expired."),
    403: ErrorStatus("Forbidden", "The key lacks the scope, or the job is another tenant's."),
    404: ErrorStatus("NotFound", "There is no such thing."),
    405: ErrorStatus("MethodNotAllowed", "The path has no such method; the header Allow lists its methods."),
    408: ErrorStatus("RequestTimeout", "The body did not arrive in time."),
    409: ErrorStatus("Conflict", "The database refused the call and changed nothing."),
    413: ErrorStatus("TooLarge", "The body, or a document in it, is too large."),
    422: ErrorStatus("BadInput", "The call itself was wrong; nothing was written."),
    431: ErrorStatus("HeadTooLarge", "The path and headers have more than 64 KiB."),
    500: ErrorStatus("Failed", "A bug in the dispatcher; its log has the details under the trace id."),
    501: ErrorStatus("NotInstalled", "A library of this part is not installed; the hint has the command."),
    503: ErrorStatus("Unavailable", "The database is unavailable; try again after the seconds in Retry-After."),
}
