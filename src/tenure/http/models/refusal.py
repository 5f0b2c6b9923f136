"""The answer when it is no: one envelope for all of them, and what each status means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from tenure.http.models.fields import shown

_STALE: dict[str, Any] = {
    "code": "LEASE_CONFLICT",
    "message": "job 42 is held by w2 since 12:03:07; nothing was stored",
    "retryable": False,
    "hint": "drop this work and claim again",
}


class ErrorDetail(BaseModel):
    """What happened, whether to try again, and what to do next."""

    model_config = shown(**_STALE)
    code: str = Field(description="What happened, for programs: a code of the reference, or a contract's own.")
    message: str = Field(description="What happened, for people.")
    retryable: bool = Field(description="Whether the same call may go well a little later.")
    hint: str | None = Field(description="What to do next; null where there is nothing to say.")


class Refusal(BaseModel):
    """The envelope of every refusal."""

    model_config = shown(error=_STALE, trace_id="4bf92f3577b34da6a3ce929d0e0e4736")
    error: ErrorDetail = Field(description="Why the answer is no.")
    trace_id: str = Field(description="The trace of the request, as in the header X-Trace-Id; the logs have it.")


class RefusedItem(BaseModel):
    """One of many that was refused; the others are answered by themselves."""

    model_config = shown(error=_STALE)
    error: ErrorDetail = Field(description="Why this one was refused.")


class Meaning(NamedTuple):
    """A status: its name among the components of the OpenAPI, and when it is the answer."""

    name: str
    said: str


#: What every status of a refusal means, whichever operation answers it.
WHY: Mapping[int, Meaning] = {
    400: Meaning("NotHttp", "What came was not a request in HTTP/1.1."),
    401: Meaning("Unauthorized", "No key, or none that is known and live."),
    403: Meaning("Forbidden", "The key lacks the scope, or the job is another tenant's."),
    404: Meaning("NotFound", "There is no such thing."),
    405: Meaning("MethodNotAllowed", "The address does not take that method; the header Allow says which it takes."),
    408: Meaning("TooSlow", "The body did not arrive in time."),
    409: Meaning("Conflict", "Refused: the database said no, and changed nothing."),
    413: Meaning("TooLarge", "The body, or a document in it, is too large."),
    422: Meaning("BadInput", "The call itself was wrong; nothing was written."),
    431: Meaning("HeadTooLarge", "The address and headers have more than 64 KiB."),
    500: Meaning("Failed", "A bug of ours; the dispatcher's log has it under the trace."),
    503: Meaning("Away", "The database is away; ask again after the time that Retry-After says."),
}
#: What can be answered wherever one knocks, also before it is known what is asked.
ANYWHERE = (400, 405, 431, 500)


def responses(model: type[BaseModel], *, status: int = 200, refuses: tuple[int, ...] = (), body: bool = True) -> Any:
    """What a route answers: well with this model, or with a refusal, whose envelope the OpenAPI adds once for all."""
    statuses = {401, 403, 422, 503, *refuses, *((408, 413) if body else ())}
    return {
        status: {"model": model, "description": (model.__doc__ or "").strip()},
        **{code: {"description": WHY[code].said} for code in sorted(statuses)},
    }
