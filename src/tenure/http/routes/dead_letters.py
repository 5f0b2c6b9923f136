"""Routes of dead letters: list them, run one again, or discard it, with two people where the contract wants that."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from tenure.errors import BadInput, Refused
from tenure.http import response
from tenure.http.application import ApiRequest, parse_cursor
from tenure.http.error_response import Forbidden, ForeignTenant
from tenure.http.models import fields
from tenure.http.models.fields import described, optional
from tenure.http.routes.operators import Requeue
from tenure.jobs.search import filters_of, parse_letters
from tenure.jobs.validation import LENGTHS, MAX_ID
from tenure.postgres.dead_letters import DeadLetter

Status = Literal["open", "requeued", "discarded"]


class LetterFilter(BaseModel):
    """The query of a list of dead letters."""

    q: str = described(
        "A search by status, type, queue, tenant, contract, reason, group, release, error, payload, age; empty: all.",
        default="",
        max_length=1_000,
        examples=["type:send error:timeout age:<1h"],
    )
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
    stopped: bool = described("Whether the search read its limit of rows before the page was full.")


class GroupFilter(BaseModel):
    """The query of a list of causes."""

    contract: str | None = optional("Only this contract; default all.", max_length=LENGTHS["contract"])
    tenant_id: str | None = optional("Only this tenant; default the key's, or all.", max_length=LENGTHS["tenant_id"])
    type: str | None = optional("Only this job type; default all.", max_length=LENGTHS["type"])
    closed: bool = described("Whether to list causes without an open dead letter too.", default=False)
    limit: fields.Limit = 50


class GroupPart(BaseModel):
    """The dead letters of a cause in one contract, type, tenant or release."""

    value: str | None = described("Its name; null: the release is unknown.", examples=["2026.11.2"])
    letters: int = described("All that were ever written.", examples=[17])
    open: int = described("Those about which nothing is decided.", examples=[12])
    first_seen: datetime = described("When the first one was written.")
    last_seen: datetime = described("When the last one was written.")


class GroupWorker(BaseModel):
    """The dead letters of a cause whose jobs a worker held last."""

    worker: str | None = described("Its name; null: nobody held them.", examples=["w1"])
    letters: int = described("How many of the newest ones.", examples=[17])
    open: int = described("Those about which nothing is decided.", examples=[12])


class Group(BaseModel):
    """The dead letters of one cause."""

    fingerprint: str = described(
        "Its name; a search finds its dead letters as `group:…`.", examples=["9f2c41d07ab1e635"]
    )
    letters: int = described("All dead letters that were ever written.", examples=[1700])
    open: int = described("Those about which nothing is decided.", examples=[1200])
    first_seen: datetime = described("When the first one was written.")
    last_seen: datetime = described("When the last one was written.")
    letter_id: fields.LetterId
    reason_code: str = described("Why the example was set aside.", examples=["permanent_error"])
    error_type: str = described("The type of the error.", examples=["PermanentError"])
    code: str | None = described("The error's own code; null: none.")
    message: str = described("The example's message without its data.", examples=["no address for user <n>"])
    example: str = described("The first line of the example's message.", examples=["no address for user 7"])
    contracts: list[GroupPart] = described("The counts by contract, the ten with the most open ones.")
    types: list[GroupPart] = described("The counts by job type, the ten with the most open ones.")
    tenants: list[GroupPart] = described("The counts by tenant, the ten with the most open ones.")
    releases: list[GroupPart] = described("The counts by release, the ten with the most open ones.")
    workers: list[GroupWorker] | None = described(
        "The workers that held the jobs of the newest 1,000 letters last; null: not counted, in a list."
    )
    last_error: Any = described("The example's error, with its traceback.", examples=[{"type": "PermanentError"}])


class GroupList(BaseModel):
    """Causes, those with the most open dead letters first."""

    groups: list[Group] = described("The causes.")
    uncounted: int = described("Changes of dead letters that upkeep has not counted yet, up to 10,000.", examples=[0])


class LetterRequeued(BaseModel):
    """A dead letter that runs again as a new job."""

    dlq_id: fields.LetterId
    job_id: fields.Id = described("The id of the new job.", examples=["43"])
    status: Literal["queued"] = described("The state of the new job.")


#: A page ends when its payloads have this many characters. The first read, and the largest one, in letters.
_MAX_CHARACTERS, _FIRST_READ, _LARGEST_READ = 4_000_000, 10, 40


async def list_letters(request: ApiRequest, query: LetterFilter) -> dict[str, Any]:
    """Dead letters that match, newest first, a page at a time.

    A page reads a limited number of rows; `stopped` says that it reached the limit.
    """
    filters = _filters(request, query)
    limit, after = query.limit, parse_cursor(query.cursor)
    letters: list[DeadLetter] = []
    characters, step = 0, _FIRST_READ  # each letter has its job's payload: read few at first, to see their size
    while len(letters) < limit and characters < _MAX_CHARACTERS:
        page = await request.calls.store.letters.search(**filters, limit=min(step, limit - len(letters)), after=after)
        letters += page.letters
        after = page.next
        if page.next is None or page.stopped:
            break
        characters += sum(len(letter.payload_json or "") + len(letter.last_error_json) for letter in page.letters)
        step = min(4 * step, _LARGEST_READ)
    last = None if after is None else str(after)
    return {"items": [response.dead_letter(letter) for letter in letters], "next": last, "stopped": page.stopped}


def _filters(request: ApiRequest, query: LetterFilter) -> dict[str, Any]:
    """The filters of the search text and of the other parameters; refuses two values for one."""
    filters = filters_of(parse_letters(query.q))
    for name in ("contract", "tenant_id", "status"):
        if (value := getattr(query, name)) is not None:
            if filters[name] not in (None, value):
                raise BadInput(f"{name} is {value!r}, and q has {filters[name]!r}. Next: give one of them")
            filters[name] = value
    return {**filters, "tenant_id": request.caller.resolve_tenant(filters["tenant_id"])}


async def show_letter(request: ApiRequest) -> dict[str, Any]:
    """A dead letter: the job that was set aside, why, and what was decided about it."""
    return response.dead_letter(await _find(request))


async def list_groups(request: ApiRequest, query: GroupFilter) -> dict[str, Any]:
    """The causes of dead letters, each with its counts by type, tenant and release, and an example."""
    filters = query.model_dump(exclude={"tenant_id"})
    groups = request.calls.store.groups
    await groups.count_changes()  # the newest, if upkeep has not
    found = await groups.list(**filters, tenant_id=request.caller.resolve_tenant(query.tenant_id))
    uncounted = 0 if request.caller.tenant else await groups.uncounted()
    return {"groups": [group.fields() for group in found], "uncounted": uncounted}


async def show_group(request: ApiRequest) -> dict[str, Any]:
    """One cause of dead letters, with all its counts."""
    tenant = request.caller.tenant
    return (await request.calls.store.groups.show(request.path_text, tenant_id=tenant)).fields()


async def requeue_letter(request: ApiRequest, body: Requeue) -> dict[str, Any]:
    """Run a dead letter's job again, once, as a new job that points back to it."""
    key = request.idempotency_key(body.idempotency_key)
    letter = await _find(request)
    job_id = await request.calls.store.letters.requeue(
        letter.id, actor=request.caller.actor, key=key, payload=body.payload, changes=body.changes, again=body.again
    )
    return {"dlq_id": str(letter.id), "job_id": str(job_id), "status": "queued"}


async def discard_letter(request: ApiRequest, body: Discard) -> dict[str, Any]:
    """Ask to discard a dead letter. It is discarded at once if its contract needs no second person."""
    key, letter = request.idempotency_key(body.idempotency_key), await _find(request)
    discarded = await request.calls.store.letters.request_discard(
        letter.id, person=decider(request, body.person), reason=body.reason, key=key
    )
    return response.dead_letter(discarded)


async def approve_letter(request: ApiRequest, body: Approve) -> dict[str, Any]:
    """Approve the discard of a dead letter, by another person than the one who asked."""
    key, letter = request.idempotency_key(body.idempotency_key), await _find(request)
    approved = await request.calls.store.letters.approve_discard(
        letter.id, person=decider(request, body.person), key=key
    )
    return response.dead_letter(approved)


async def _find(request: ApiRequest) -> DeadLetter:
    """The dead letter with this id; refuses one of another tenant."""
    letter_id, who = int(request.path_text), request.caller
    if not 0 < letter_id <= MAX_ID:
        raise Refused(None, f"there is no dead letter with id {letter_id}", code="DLQ_ITEM_NOT_FOUND")
    letter = await request.calls.store.letters.show(letter_id)
    if who.tenant not in (None, letter.tenant_id):
        raise ForeignTenant(f"dead letter {letter_id} is another tenant's. Next: use a key of that tenant")
    return letter


def decider(request: ApiRequest, named: str | None) -> str:
    """The person who decides: the key's person. Only while no key exists may the caller name one."""
    who = request.caller
    if who.person is None and not who.may_name_person:
        raise Forbidden(
            f"a person must decide this, and {who.name} names none. "
            "Next: tenure keys create NAME --scope approve --person NAME"
        )
    if who.person is None:
        if named is None:
            raise BadInput("person is missing: who decides. Next: give it, or use a key that names a person")
        return named
    if named not in (None, who.person):
        raise Forbidden(f"this key is {who.person}'s, and cannot decide for {named!r}. Next: leave person out")
    return who.person
