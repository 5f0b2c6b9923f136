"""What a client is told when the answer is no: one envelope, a status, and a code that a program can act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.errors import (
    BadInput,
    Busy,
    CannotConnect,
    ConnectionLost,
    JobNotFound,
    NotDue,
    PayloadTooLarge,
    Refused,
    SchemaError,
    TenureError,
    Unavailable,
)
from tenure.http.hints import routed
from tenure.rendered import refusal

#: Seconds after which a client may ask again while the database is away.
RETRY_AFTER_S = 2
_NOT_FOUND = frozenset({"DLQ_ITEM_NOT_FOUND", "NOT_FOUND"})
_TOLD_AS_503 = (CannotConnect, ConnectionLost, Unavailable, SchemaError)


class Unauthorised(TenureError):
    """Nobody knows who asks."""

    code = "AUTH_REQUIRED"


class Forbidden(TenureError):
    """Who asks may not do that."""

    code = "AUTH_FORBIDDEN"


class ForeignTenant(Forbidden):
    """What is asked for is another tenant's."""

    code = "TENANT_SCOPE_VIOLATION"


class TooSlow(TenureError):
    """The body did not arrive in time."""

    code = "E-REQUEST-TIMEOUT"


class NoSuchRoute(TenureError):
    """Nothing is at this address."""

    code = "NOT_FOUND"


class WrongMethod(NoSuchRoute):
    """Something is at this address, under another method."""

    code = "METHOD_NOT_ALLOWED"


def status_of(error: TenureError) -> int:
    """The status under which a refusal is told."""
    if isinstance(error, Unauthorised):
        return 401
    if isinstance(error, Forbidden):
        return 403
    if isinstance(error, PayloadTooLarge):
        return 413
    if isinstance(error, TooSlow):
        return 408
    if isinstance(error, BadInput):
        return 422
    if isinstance(error, (JobNotFound, NoSuchRoute)) or getattr(error, "reason_code", None) in _NOT_FOUND:
        return 404
    if isinstance(error, Refused):
        return 409
    return 503 if isinstance(error, _TOLD_AS_503) else 500


def told(error: TenureError) -> dict[str, Any]:
    """The inside of the envelope: what happened, whether to try again, and what to do next."""
    code, message = refusal(error)
    said, _, hint = message.partition(" Next: ")
    return {
        "code": code,
        "message": said.rstrip(". "),
        "retryable": isinstance(error, (Busy, NotDue, TooSlow, *_TOLD_AS_503)),
        "hint": routed(hint) or None,
    }


def headers_of(error: TenureError) -> Mapping[str, str]:
    """What a refusal adds to the headers of its answer."""
    if isinstance(error, Unauthorised):
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, _TOLD_AS_503) else {}
