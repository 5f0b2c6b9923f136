"""Routes of dead letters: look at them, run one again, or throw it away, with two people where that is the rule."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from tenure.errors import BadInput, Refused
from tenure.http import shown
from tenure.http.asked import (
    Cursor,
    LetterId,
    Limit,
    caller,
    cursor_number,
    desk,
    needs,
    repeat_key,
    routes,
)
from tenure.http.models import letters as models
from tenure.http.models.operators import Requeue
from tenure.http.models.refusal import responses
from tenure.http.refusals import Forbidden, ForeignTenant
from tenure.http.shown import Json
from tenure.intake import LENGTHS, MAX_ID
from tenure.postgres.letters import Letter

router = routes("dead letters")
_APPROVE = needs("approve")
#: A page ends where its payloads have so many characters; so many letters are read at first, and so many at a time.
_HEAVIEST, _FIRST_STEP, _LARGEST_STEP = 4_000_000, 10, 40
_LETTER = responses(models.Letter, refuses=(404, 409))


@router.get(
    "/api/v1/dlq/items", responses=responses(models.LetterPage, body=False), openapi_extra=needs("operate", "approve")
)
async def list_letters(
    request: Request,
    contract: Annotated[
        str | None, Query(max_length=LENGTHS["contract"], description="Those of this contract; default of all.")
    ] = None,
    tenant_id: Annotated[
        str | None,
        Query(max_length=LENGTHS["tenant_id"], description="Those of this tenant; default the key's, or all."),
    ] = None,
    status: Annotated[
        models.Status | None, Query(description="Those about which this was decided; default all.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Json:
    """Dead letters, newest first, a page at a time."""
    tenant, after = caller(request).of(tenant_id), cursor_number(cursor)
    page: list[Letter] = []
    weight, step = 0, _FIRST_STEP
    while (
        len(page) <= limit and weight < _HEAVIEST
    ):  # each has its job's payload: first some, to see how large they are
        wanted = min(step, limit + 1 - len(page))
        found = await desk(request).store.letters.list(
            contract=contract, tenant_id=tenant, status=status, limit=wanted, after=after
        )
        page += found
        if len(found) < wanted:
            return Json({"items": [shown.letter(letter) for letter in page], "next": None})
        weight += sum(len(letter.payload_json or "") + len(letter.last_error_json) for letter in found)
        after, step = found[-1].id, min(4 * step, _LARGEST_STEP)
    page = page[:limit]
    return Json({"items": [shown.letter(letter) for letter in page], "next": str(page[-1].id)})


@router.get(
    "/api/v1/dlq/items/{letter_id}",
    responses=responses(models.Letter, refuses=(404,), body=False),
    openapi_extra=needs("operate", "approve"),
)
async def show_letter(request: Request, letter_id: LetterId) -> Json:
    """A dead letter: what was set aside, why, and what was decided about it."""
    return Json(shown.letter(await _found(request, letter_id)))


@router.post(
    "/api/v1/dlq/items/{letter_id}/requeue",
    responses=responses(models.LetterRequeued, refuses=(404, 409)),
    openapi_extra=needs("operate"),
)
async def requeue_letter(request: Request, letter_id: LetterId, body: Requeue | None = None) -> Json:
    """Run a dead letter's job again, as a new job that points back to it; once."""
    key = repeat_key(request, body.idempotency_key if body else None)
    letter = await _found(request, letter_id)
    made = await desk(request).store.letters.requeue(letter.id, actor=caller(request).actor, key=key)
    return Json({"dlq_id": str(letter.id), "job_id": str(made), "status": "queued"})


@router.post("/api/v1/dlq/items/{letter_id}/discard", responses=_LETTER, openapi_extra=_APPROVE)
async def discard_letter(request: Request, letter_id: LetterId, body: models.Discard) -> Json:
    """Ask to throw a dead letter away; done at once where its contract wants no second person."""
    key, letter = repeat_key(request, body.idempotency_key), await _found(request, letter_id)
    asked = await desk(request).store.letters.request_discard(
        letter.id, person=_person(request, body.person), reason=body.reason, key=key
    )
    return Json(shown.letter(asked))


@router.post("/api/v1/dlq/items/{letter_id}/approve", responses=_LETTER, openapi_extra=_APPROVE)
async def approve_letter(request: Request, letter_id: LetterId, body: models.Approve | None = None) -> Json:
    """Agree that a dead letter be thrown away; never the person who asked."""
    asked = body or models.Approve()
    key, letter = repeat_key(request, asked.idempotency_key), await _found(request, letter_id)
    person = _person(request, asked.person)
    return Json(shown.letter(await desk(request).store.letters.approve_discard(letter.id, person=person, key=key)))


async def _found(request: Request, letter_id: str) -> Letter:
    """The dead letter that is meant; refuses another tenant's."""
    number, who = int(letter_id), caller(request)
    if not 0 < number <= MAX_ID:
        raise Refused(None, f"there is no dead letter with id {number}", code="DLQ_ITEM_NOT_FOUND")
    letter = await desk(request).store.letters.show(number)
    if who.tenant not in (None, letter.tenant_id):
        raise ForeignTenant(f"dead letter {number} is another tenant's. Next: use a key of that tenant")
    return letter


def _person(request: Request, given: str | None) -> str:
    """Who decides: the person whose key it is. Only where there are no keys at all may the caller say who they are."""
    who = caller(request)
    if who.person is None and not who.says_who:
        raise Forbidden(
            f"people decide this, and {who.name} names nobody. "
            "Next: tenure keys create NAME --scope approve --person NAME"
        )
    if who.person is None:
        if given is None:
            raise BadInput("say who decides, as person. Next: or use a key that names a person")
        return given
    if given not in (None, who.person):
        raise Forbidden(f"this key is {who.person}'s, and cannot decide for {given!r}. Next: leave person out")
    return who.person
