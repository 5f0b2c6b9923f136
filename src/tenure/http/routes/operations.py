"""Routes of operations on many jobs or dead letters: preview, start, abort and resume them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr

from tenure.errors import BadInput, Refused
from tenure.http.application import ApiRequest, parse_cursor
from tenure.http.models import fields
from tenure.http.models.fields import RequestBody, described, optional
from tenure.http.response import JsonResponse
from tenure.http.routes.dead_letters import decider
from tenure.jobs.operation import Operation as StoredOperation
from tenure.jobs.validation import MAX_ID

#: What only a person with the scope approve may do.
_DECISIONS = ("discard", "approve")
State = Literal["preview", "running", "aborted", "done"]
ItemState = Literal["waiting", "done", "skipped"]
_PerSecond = Annotated[fields.Number, fields.up_to(1_000_000)]


class NewOperation(RequestBody):
    """What is to be done to all jobs or dead letters that a search finds."""

    kind: Literal["jobs", "dead_letters"] = described("Of what the items are.", examples=["dead_letters"])
    verb: Literal["cancel", "requeue", "move", "retry_now", "discard", "approve"] = described(
        "For jobs cancel, requeue, move or retry_now; for dead letters requeue, discard or approve.",
        examples=["requeue"],
    )
    q: Annotated[StrictStr, Field(max_length=1_000)] = described(
        "The search; empty: all.", default="", examples=["type:send error:timeout"]
    )
    per_second: _PerSecond | None = optional("At most this many items each second; default as fast as it goes.")
    mode: Literal["soft", "hard"] | None = optional("Of cancel: soft (the default) or hard.")
    queue: fields.Queue | None = optional("Of move: the new queue.")
    reason: fields.ReasonForLog = None
    payload: Any = optional("Of requeue: the payload of the new jobs; default as it was.", examples=[{"to": "a@b.c"}])
    changes: list[tuple[list[StrictStr], Any]] | None = optional(
        "Of requeue: other values in the payload, each with its path.", examples=[[[["user", "id"], 7]]]
    )
    again: StrictBool | None = optional("Of requeue: also what was run again already, by its newest run.")


class Speed(RequestBody):
    """Start an operation, or go on with it."""

    per_second: _PerSecond | None = optional("At most this many items each second; default as it was previewed.")
    person: fields.Person | None = optional("Who decides: the key's person; give it only while no key exists.")


class Sample(BaseModel):
    """A job or dead letter that a preview has found."""

    id: fields.Id = described("Its id.", examples=["42"])
    state: str = described("The state of the job, or the status of the dead letter.", examples=["dead"])
    tenant_id: str = described("Its tenant.", examples=["acme"])
    type: str = described("Its type.", examples=["mail.send"])
    at: datetime = described("When it ended or was set aside; else when it was enqueued.")
    error: str | None = described("Its last error in one line; null: none.")


class Rerun(BaseModel):
    """A job that was run again already."""

    id: fields.Id = described("The job.", examples=["42"])
    requeued_as: fields.Id = described("The job that runs it again.", examples=["240"])


class RunAgain(BaseModel):
    """What a preview leaves out because it was run again already; `again` repeats it."""

    count: int = described("How many jobs.", examples=[236])
    samples: list[Rerun] = described("Three of them.")
    operation: fields.Id | None = described("The operation that ran the first one again; null: none is known.")


class Summary(BaseModel):
    """What the search of an operation has found; of each count the first 100 names."""

    tenants: dict[str, int] = described("How many of each tenant.", examples=[{"acme": 1200}])
    types: dict[str, int] = described("How many of each type.", examples=[{"mail.send": 1200}])
    errors: dict[str, int] = described("How many of each last error: type and code.", examples=[{"TimeoutError": 1200}])
    first_at: datetime | None = described("The first time of an item; null: there is none.")
    last_at: datetime | None = described("The last time of an item; null: there is none.")
    samples: list[Sample] = described("Three of the items.")
    run_again: RunAgain = described("What it leaves out, because it was run again already.")


class Operation(BaseModel):
    """An operation on many jobs or dead letters."""

    id: fields.Id = described("Its id.", examples=["12"])
    kind: Literal["jobs", "dead_letters"] = described("Of what the items are.")
    verb: str = described("What is done to each.", examples=["requeue"])
    query: str = described("The search that found them.", examples=["type:send error:timeout"])
    options: dict[str, Any] = described("What the verb needs to know.", examples=[{"reason": "a bad release"}])
    tenant_id: str | None = described("The tenant that its key was bound to; null: none.")
    state: State = described("preview, running, aborted or done.")
    collected: bool = described("Whether the search has seen all; else collect goes on.", examples=[True])
    total: int = described("How many items it has.", examples=[1200])
    done: int = described("How many of them are done.", examples=[800])
    skipped: dict[str, int] = described("How many were left as they are, by the code of the reason.", examples=[{}])
    left: int = described("How many wait.", examples=[400])
    summary: Summary = described("What its search has found.")
    per_second: float | None = described("At most this many items each second; null: no limit.")
    created_at: datetime = described("When the preview was made.")
    created_by: str = described("Who made it.", examples=["ann"])
    started_at: datetime | None = described("When it was first started; null: never.")
    started_by: str | None = described("Who started or resumed it; null: nobody.")
    ended_at: datetime | None = described("When it was done or aborted; null: neither.")
    aborted_by: str | None = described("Who aborted it; null: nobody.")


class MadeJobs(BaseModel):
    """How the jobs are now that a requeue has made."""

    states: dict[str, int] = described("How many are in each state.", examples=[{"succeeded": 230, "dead": 6}])
    succeeded: int = described("How many have succeeded.", examples=[230])
    failed: int = described("How many ended otherwise.", examples=[6])
    unfinished: int = described("How many have not ended.", examples=[0])
    gone: int = described("How many are no longer stored.", examples=[0])
    complete: bool = described("Whether all were looked at; else those of the first 10,000 items.", examples=[True])
    failed_states: list[str] = described("The states of those that ended otherwise.", examples=[["dead"]])


class ShownOperation(Operation):
    """An operation on many jobs or dead letters, and how the jobs are that it made."""

    now: MadeJobs | None = described("Of a requeue that was started: its new jobs; null: it makes none.")


class OperationList(BaseModel):
    """Operations, newest first."""

    operations: list[Operation] = described("The operations of this page.")
    next: fields.Id | None = described("The cursor of the next page; null: this is the last page.")


class OperationItem(BaseModel):
    """A job or dead letter of an operation."""

    item_id: fields.Id = described("The id of the job or dead letter.", examples=["42"])
    state: ItemState = described("waiting, done or skipped.")
    code: str | None = described("Why it was left as it is, as a code; null: it was not.", examples=["CHANGED"])
    why: str | None = described("Why it was left as it is; null: it was not.")
    made: fields.Id | None = described("The job that was made of it; null: none.")
    made_state: str | None = described("The state of that job now; null: none, or it is no longer stored.")


class OperationItems(BaseModel):
    """Items of an operation, by their ids."""

    items: list[OperationItem] = described("The items of this page.")
    next: fields.Id | None = described("The cursor of the next page; null: this is the last page.")


class Page(BaseModel):
    """The query of a list of operations."""

    limit: fields.Limit = 50
    cursor: fields.Cursor = None


class ItemPage(Page):
    """The query of a list of items."""

    state: ItemState | None = optional("Only items in this state; default all.")


async def preview_operation(request: ApiRequest, body: NewOperation) -> JsonResponse:
    """Store what is to be done to all that a search finds, with their ids; changes nothing until it is started.

    A search of many rows is not `collected` by one call: then collect goes on. When it finds nothing, nothing is
    stored: the answer is `done`, with no items, and its id is unknown.
    """
    _check_scope(request, body.verb)
    options = body.model_dump(exclude={"kind", "verb", "q", "per_second"})
    operation = await request.calls.store.operations.preview(
        body.kind, body.verb, body.q, actor=request.caller.actor, tenant_id=request.caller.tenant,
        per_second=body.per_second, **options,
    )  # fmt: skip
    return JsonResponse(operation.fields(), status_code=201)


async def list_operations(request: ApiRequest, query: Page) -> dict[str, Any]:
    """Operations on many jobs or dead letters, newest first, a page at a time."""
    found = await request.calls.store.operations.list(
        tenant_id=request.caller.tenant, limit=query.limit, after=parse_cursor(query.cursor)
    )
    last = str(found[-1].id) if len(found) == query.limit else None
    return {"operations": [one.fields() for one in found], "next": last}


async def show_operation(request: ApiRequest) -> dict[str, Any]:
    """An operation: what is done, how far it is, and how the jobs are now that it made."""
    operation = await _find(request)
    made = await request.calls.store.operations.made(operation.id)
    return {**operation.fields(), "now": made and made.fields()}


async def list_operation_items(request: ApiRequest, query: ItemPage) -> dict[str, Any]:
    """The items of an operation: its preview, and what became of each."""
    operation = await _find(request)
    found = await request.calls.store.operations.items(
        operation.id, state=query.state, limit=query.limit, after=parse_cursor(query.cursor) or 0
    )
    last = str(found[-1].item_id) if len(found) == query.limit else None
    return {"items": [item.fields() for item in found], "next": last}


async def collect_operation(request: ApiRequest) -> dict[str, Any]:
    """Go on with a preview whose search has not seen all."""
    operation = await _find(request)
    return (await request.calls.store.operations.collect(operation.id)).fields()


async def start_operation(request: ApiRequest, body: Speed) -> dict[str, Any]:
    """Start a previewed operation: exactly its items; those that have changed since are skipped. Upkeep does it."""
    operation = await _find(request)
    actor = _actor(request, operation, body)
    started = await request.calls.store.operations.start(operation.id, actor=actor, per_second=body.per_second)
    return started.fields()


async def resume_operation(request: ApiRequest, body: Speed) -> dict[str, Any]:
    """Go on with an aborted operation; what is done is not done again."""
    operation = await _find(request)
    actor = _actor(request, operation, body)
    resumed = await request.calls.store.operations.resume(operation.id, actor=actor, per_second=body.per_second)
    return resumed.fields()


async def abort_operation(request: ApiRequest) -> dict[str, Any]:
    """Stop an operation. Nothing of it is done any more behind the answer; what is done stays. Deletes a preview."""
    operation = await _find(request)
    _check_scope(request, operation.verb)
    return (await request.calls.store.operations.abort(operation.id, actor=request.caller.actor)).fields()


async def _find(request: ApiRequest) -> StoredOperation:
    operation_id = int(request.path_text)
    if not 0 < operation_id <= MAX_ID:
        raise Refused(None, f"there is no operation {operation_id}", code="OPERATION_NOT_FOUND")
    return await request.calls.store.operations.show(operation_id, tenant_id=request.caller.tenant)


def _check_scope(request: ApiRequest, verb: str) -> None:
    """Refuse who may not do this to one job or dead letter either."""
    request.caller.require_scope(("approve",) if verb in _DECISIONS else ("operate",))


def _actor(request: ApiRequest, operation: StoredOperation, body: Speed) -> str:
    """Who starts it: for a discard or its approval a person."""
    _check_scope(request, operation.verb)
    if operation.verb in _DECISIONS:
        return decider(request, body.person)
    if body.person is not None:
        raise BadInput(f"person is for discards and approvals, and this is {operation.verb}. Next: leave it out")
    return request.caller.actor
