"""What every route needs of its request: the desk, who asks, the job that is named, the key of a repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from tenure.errors import BadInput, JobNotFound
from tenure.http.callers import Caller
from tenure.http.desk import Desk
from tenure.http.guard import Guarded
from tenure.http.shown import Json
from tenure.intake import LENGTHS, MAX_ID

JobId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="The job's id.", examples=["42"])]
LetterId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="The dead letter's id.", examples=["7"])]
Limit = Annotated[int, Query(ge=1, le=1_000, description="How many at the most.")]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,19}$", description="Where an earlier page ended: its `next`.")]


def routes(tag: str) -> APIRouter:
    """An empty set of routes behind the guard."""
    return APIRouter(route_class=Guarded, tags=[tag], default_response_class=Json)


def desk(request: Request) -> Desk:
    """The desk of this dispatcher."""
    found: Desk = request.app.state.desk
    return found


def caller(request: Request) -> Caller:
    """Who asks; the guard knows."""
    found: Caller = request.state.caller
    return found


def job_number(job_id: str) -> int:
    """A job's id as a number; one that no job can have is said to be unknown."""
    number = int(job_id)
    if not 0 < number <= MAX_ID:
        raise JobNotFound(number)
    return number


def job_numbers(ids: Iterable[str]) -> list[int]:
    """Those of many ids that a job can have, as numbers."""
    return [number for number in map(int, ids) if 0 < number <= MAX_ID]


def cursor_number(cursor: str | None) -> int | None:
    """Where to go on; a page that ended nowhere has no cursor."""
    if cursor is None:
        return None
    if not 0 < int(cursor) <= MAX_ID:
        raise BadInput(f"cursor {cursor} is none that a page gave. Next: leave it out to begin at the beginning")
    return int(cursor)


def repeat_key(request: Request, given: str | None) -> str | None:
    """The key under which a call can be repeated, from the body or from the header of that name."""
    header = request.headers.get("idempotency-key")
    if header is None:
        return given
    if not header.strip():
        raise BadInput("the Idempotency-Key header is empty. Next: give a key, or leave it out")
    if len(header) > LENGTHS["key"]:
        raise BadInput(f"the Idempotency-Key header has {len(header)} characters; at most {LENGTHS['key']} are allowed")
    if given not in (None, header):
        raise BadInput("the body and the Idempotency-Key header name different keys. Next: give one of them")
    return header


def must_have_no_key(request: Request, instead: str) -> None:
    """Refuse a key in the header where it would do nothing, and somebody would count on it."""
    if "idempotency-key" in request.headers:
        raise BadInput(f"the Idempotency-Key header is not heeded here. Next: {instead}")


def needs(*scopes: str) -> dict[str, list[str]]:
    """The scopes of which a route's caller needs one, as the guard and the OpenAPI read them."""
    return {"x-scopes": list(scopes)}
