"""Error responses: one envelope, a status, and a code that a program can act on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from tenure.errors import (
    BadInput,
    Busy,
    CannotConnect,
    ConnectionLost,
    DatasetNotFound,
    DuplicateJob,
    FlowNotFound,
    JobNotFound,
    MissingExtra,
    NotDue,
    PayloadTooLarge,
    Refused,
    RunAgainAlready,
    ScheduleNotFound,
    SchemaError,
    TenureError,
    Unavailable,
    WaitingForParents,
)
from tenure.jobs.formats import code_and_message

#: Seconds after which a client may try again while the database is unavailable.
RETRY_AFTER_S = 2
_NOT_FOUND = frozenset({"DLQ_ITEM_NOT_FOUND", "DLQ_GROUP_NOT_FOUND", "OPERATION_NOT_FOUND", "NOT_FOUND"})
# Commands in hints, which have a route that does the same.
_ITEM_COMMAND = re.compile(r"tenure (jobs|dlq|flows) ([a-z]+) ([0-9]+)(?: --[a-z]+ [\w]+)*")
_LIST_COMMAND = re.compile(r"tenure flows list\b")
_QUEUE_COMMAND = re.compile(r"tenure queues (pause|resume) ('(?:[^']|'\"'\"')*'|[\w@%+=:,./-]*\w)")
_PATHS = {"jobs": "/api/v1/jobs", "dlq": "/api/v1/dlq/items", "flows": "/api/v1/flows"}
_DATASET_COMMAND = re.compile(r"tenure datasets (?:list|show ('(?:[^']|'\"'\"')*'|[\w@%+=:,./-]*\w))")
_READS = {"show": "", "events": "/events", "why": "/why"}
_UNAVAILABLE = (CannotConnect, ConnectionLost, Unavailable, SchemaError)


class Unauthorized(TenureError):
    """The request has no valid key."""

    code = "AUTH_REQUIRED"


class Forbidden(TenureError):
    """The caller may not do that."""

    code = "AUTH_FORBIDDEN"


class ForeignTenant(Forbidden):
    """The job, dead letter or tenant is not the one that the key is bound to."""

    code = "TENANT_SCOPE_VIOLATION"


class RequestTimeout(TenureError):
    """The body did not arrive in time."""

    code = "E-REQUEST-TIMEOUT"


class RouteNotFound(TenureError):
    """No route has this path."""

    code = "NOT_FOUND"


class ContractNotFound(RouteNotFound):
    """The path names a contract that is not registered; in a body that is bad input."""

    code = "CONTRACT_NOT_FOUND"


class MethodNotAllowed(TenureError):
    """The path has routes, but not with this method."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, allowed: Iterable[str], message: str) -> None:
        super().__init__(message)
        self.allowed = sorted(allowed)


#: The status of each kind of error; the first that matches counts.
_STATUSES: tuple[tuple[type[TenureError] | tuple[type[TenureError], ...], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (PayloadTooLarge, 413),
    (RequestTimeout, 408),
    (BadInput, 422),
    (MethodNotAllowed, 405),
    ((JobNotFound, FlowNotFound, ScheduleNotFound, DatasetNotFound, RouteNotFound), 404),
    (Refused, 409),
    (MissingExtra, 501),
    (_UNAVAILABLE, 503),
)


def error_status(error: TenureError) -> int:
    """The HTTP status of an error."""
    if getattr(error, "reason_code", None) in _NOT_FOUND:
        return 404
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)


def error_body(error: TenureError) -> dict[str, Any]:
    """The inside of the envelope: what happened, whether to try again, and what to do next."""
    code, message = code_and_message(error)
    what, _, hint = message.partition(" Next: ")
    body = {
        "code": code,
        "message": what.rstrip(". "),
        "retryable": isinstance(error, (Busy, NotDue, RequestTimeout, *_UNAVAILABLE)),
        "hint": commands_to_routes(hint) or None,
    }
    if isinstance(error, DuplicateJob):
        body["job_id"] = str(error.job_id)
    if isinstance(error, RunAgainAlready):
        body["requeued_as"] = str(error.requeued_as)
    if isinstance(error, WaitingForParents):
        body |= {"flow_id": str(error.flow_id), "node": error.node}
    return body


def error_headers(error: TenureError) -> Mapping[str, str]:
    """The headers that an error adds to its response."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, MethodNotAllowed):
        return {"Allow": ", ".join(error.allowed)}
    return {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, _UNAVAILABLE) else {}


def commands_to_routes(hint: str) -> str:
    """A hint with routes in place of commands."""
    hint = _LIST_COMMAND.sub(f"GET {_PATHS['flows']}", _ITEM_COMMAND.sub(_item_route, hint))
    return _DATASET_COMMAND.sub(_dataset_route, _QUEUE_COMMAND.sub(_queue_route, hint))


def _item_route(command: re.Match[str]) -> str:
    group, verb, item_id = command.groups()
    path = f"{_PATHS[group]}/{item_id}"
    return f"GET {path}{_READS[verb]}" if verb in _READS else f"POST {path}/{verb}"


def _queue_route(command: re.Match[str]) -> str:
    verb, name = command.groups()
    return f"POST /api/v1/queues/{verb} with {json.dumps({'queue': shlex.split(name)[0]}, ensure_ascii=False)}"


def _dataset_route(command: re.Match[str]) -> str:
    return "GET /api/v1/datasets" + ("" if command[1] is None else f"/{quote(shlex.split(command[1])[0], safe='')}")
