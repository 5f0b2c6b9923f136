"""Routes of jobs: enqueue them, list them, show one, and read its log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, StrictStr

from tenure.errors import TenureError
from tenure.http import response
from tenure.http.application import ApiRequest, parse_cursor
from tenure.http.error_response import commands_to_routes, error_body
from tenure.http.models import fields
from tenure.http.models.errors import RefusedItem
from tenure.http.models.fields import JOB_CURSOR, RequestBody, described, optional
from tenure.http.models.jobs import NewJobFields
from tenure.http.response import FastJsonResponse, JsonResponse
from tenure.jobs.formats import ids_to_text
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.jobs.search import filters_of, parse
from tenure.jobs.unique import OnConflict, Unique, unique_rule
from tenure.jobs.validation import MAX_CLAIMS
from tenure.jobs.why import explain_job, explain_node, next_commands, next_commands_of_node


class Enqueue(NewJobFields):
    """A job to enqueue."""

    tenant_id: fields.Tenant | None = optional("The tenant that owns the job; default the key's tenant, or default.")
    idempotency_key: fields.IdempotencyKey = None
    unique: Literal["waiting", "active"] | fields.Seconds | None = optional(
        "At most one such job: while one waits, while one waits or runs (active), or for so many seconds."
    )
    unique_by: Annotated[list[StrictStr], Field(min_length=1, max_length=100)] | None = optional(
        "The arguments in the payload that must be equal; default all."
    )
    on_conflict: OnConflict | None = optional(
        "With a unique job in the way: return it (default), replace its payload and time till it begins, or refuse."
    )

    def job(self, tenant: str | None, key: str | None) -> NewJob:
        """The job to enqueue; refuses a time that is given twice."""
        job = self.new_job(tenant)
        job.key, job.unique = key, self._unique()
        return job

    def _unique(self) -> Unique | None:
        unique = self.unique
        if unique is None or isinstance(unique, str):
            return unique_rule(unique, self.unique_by, self.on_conflict)
        return unique_rule(timedelta(seconds=unique), self.unique_by, self.on_conflict)


class EnqueueMany(RequestBody):
    """A batch of jobs to enqueue."""

    jobs: fields.Items[Enqueue] = described("The jobs; each is enqueued or refused by itself.")


class EnqueuedItem(BaseModel):
    """A job of a batch, enqueued by this call or by an earlier one with the same key."""

    id: fields.JobId
    made: bool = described(
        "Whether this call made the job; false: an earlier one did (same key, or unique).", examples=[True]
    )


class EnqueuedJob(EnqueuedItem):
    """A job, enqueued by this call or by an earlier one with the same key."""

    contract: fields.ContractName
    state: fields.State = Field(examples=["queued"])
    queue: fields.QueueName
    type: fields.TypeName
    tenant_id: fields.TenantId


class EnqueuedOrRefused(RootModel[EnqueuedItem | RefusedItem]):
    """What happened to one job of a batch."""


class EnqueuedJobs(BaseModel):
    """What happened to each job."""

    jobs: list[EnqueuedOrRefused] = described("One answer per job, in the same order.")


class JobSearch(BaseModel):
    """The query of a list of jobs."""

    q: str = described(
        "A search by state, type, queue, tenant, contract, reason, group, error, worker, payload, age and run time.",
        default="",
        max_length=1_000,
        examples=["state:dead type:send age:>1h"],
    )
    limit: fields.Limit = 50
    cursor: str | None = optional("Where an earlier page ended: its `next`.", pattern=JOB_CURSOR)


class CountQuery(BaseModel):
    """The query of a count of jobs."""

    q: str = described("A search, as for a list of jobs; empty: all.", default="", max_length=1_000)
    by: Literal["tenant", "type", "queue", "state", "contract", "worker"] = described(
        "What the jobs are counted by.", default="state"
    )
    cursor: str | None = optional("Where an earlier count stopped: its `next`.", pattern=JOB_CURSOR)


class EventPage(BaseModel):
    """The query of a page of a job's log."""

    limit: fields.Limit = 1_000
    cursor: fields.Cursor = None


class _Job(BaseModel):
    """What a list shows of a job, and the job itself too."""

    id: fields.JobId
    contract: fields.ContractName
    state: fields.State
    role: fields.StateRole
    queue: fields.QueueName
    type: fields.TypeName
    tenant_id: fields.TenantId
    priority: int = described("0 is claimed first, 9 last.", examples=[5])
    claims: fields.Claims
    counter: fields.Counter
    max_attempts: fields.MaxAttempts
    due_at: fields.DueAt
    created_at: datetime = described("When the job was made.")
    updated_at: datetime = described("When the job last moved.")
    finished_at: datetime | None = described("When the job ended; null: it has not ended.")
    lease_owner: str | None = described("Who holds the job; null: nobody.", examples=["w1"])
    lease_expires_at: fields.LeaseEnd
    last_error: dict[str, Any] | None = described("The last error, in short; null: none.")


class ListedJob(_Job):
    """A job in a list."""

    ran_s: float | None = described(
        "Seconds from its last claim to its end, or until now; null: it was not claimed, or waits.", examples=[1.5]
    )
    worker: str | None = described("Who holds it, or claimed it last.", examples=["w1"])


class Job(_Job):
    """A job with everything in its row."""

    version: str = described("The version of the job's contract.", examples=["1"])
    raises: int = described("By how much snoozes have raised the job's limit.", examples=[0])
    payload: Any = described("The handler's arguments.", examples=[{"to": "a@b.c"}])
    started_at: datetime | None = described("When it was last claimed; null: never.")
    cancel_requested_at: datetime | None = described("When its holder was asked to stop; null: never.")
    trace_id: fields.TraceId
    correlation_id: fields.CorrelationId
    idempotency_key: str | None = described("The key that it was enqueued with; null: none.")
    origin_letter: fields.Id | None = described("The dead letter that it runs again; null: none.")
    last_error: Any = described("The last error, in full; null: none.")
    result: Any = described("The handler's result; null: none yet.")
    checkpoint: Any = described("The last checkpoint of the handler; null: none.")
    pending: Any = described("The failure that ends the job once its effects are undone; null: none.")
    blocked_at: datetime | None = optional(
        "When its handler blocked a worker's event loop: it now runs in its own process; null: never."
    )
    record: dict[str, Any] | None = optional("The row of its contract's view.")
    progress: Any = optional("The last progress of its holder; null: none.")
    dlq_id: fields.Id | None = optional("Its dead letter; null: none.")
    requeued_as: fields.Id | None = optional("The job that runs it again; null: none.")
    worker: str | None = optional("Who claimed it last; null: nobody.", examples=["w1"])
    expires_at: datetime | None = optional("When it is cancelled unless it has begun; null: never, or it has begun.")


class JobPage(BaseModel):
    """Jobs that match: first the live ones, then the finished ones, each newest first."""

    jobs: list[ListedJob] = described("The jobs of this page.")
    next: str | None = described("The cursor of the next page; null: this is the last page.", pattern=JOB_CURSOR)
    stopped: bool = described("Whether the search read its limit of rows before the page was full.")


class JobCount(BaseModel):
    """Jobs of one tenant, type, queue, state, contract or worker."""

    value: str | None = described("The name; null: no worker had the job.", examples=["mail"])
    jobs: int = described("How many jobs.", examples=[17])
    first: datetime = described("When the first of them was made.")
    last: datetime = described("When the last of them was made.")


class JobCounts(BaseModel):
    """How many jobs match, those with the most first."""

    by: str = described("What they are counted by.", examples=["state"])
    total: int = described("How many jobs were counted.", examples=[236])
    complete: bool = described("Whether all were counted; false: the count stopped at its limit.")
    next: str | None = described("The cursor with which the count goes on; null: all were counted.")
    groups: list[JobCount] = described("The counts.")


class JobEvent(BaseModel):
    """A row of a job's log."""

    job_id: fields.JobId
    seq: int = described("Its place in the job's log, from 1, without gaps.")
    ts: datetime = described("When it happened, by the database's clock; strictly rising within a job.")
    hop: bool = described("Whether the job's state changed; false: a fact that its contract logs.", examples=[True])
    trigger: str = described("What happened.", examples=["succeed"])
    from_state: str = described("The state before.", examples=["running"])
    to_state: str = described("The state after.", examples=["succeeded"])
    claims: fields.Claims
    counter: fields.Counter
    max_attempts: fields.MaxAttempts
    actor: str = described("Who did it: a worker, a key, upkeep.", examples=["w1"])
    reason: str | None = described("Why; null: no reason was given.")
    facts: Any = described("More facts about it.", examples=[{}])


class JobEvents(BaseModel):
    """A job's log, in order."""

    events: list[JobEvent] = described("The rows, oldest first.")
    next: str | None = described("The cursor of the next page; null: this is the last page.")


class WhyAnswer(BaseModel):
    """Why a job is (not) running, or why it ended as it did."""

    id: fields.JobId
    state: fields.State
    role: fields.StateRole
    why: list[str] = described(
        "A few sentences, the most important first.",
        examples=[["Nobody claims it: queue mail is paused since 12:03 by ann."]],
    )
    next: list[str] = described("Useful next requests, the likeliest first.", examples=[["GET /api/v1/jobs/42/events"]])


async def enqueue_job(request: ApiRequest, body: Enqueue) -> JsonResponse:
    """Enqueue a job. With an idempotency key at most once: the same key and body again get the same job (200)."""
    who, calls = request.caller, request.calls
    key = request.idempotency_key(body.idempotency_key)
    job = _with_trace(request, body.job(who.resolve_tenant(body.tenant_id), key))
    contract = await calls.store.contract(job.contract)
    enqueued = await calls.enqueue(job, contract, who)
    state = contract.initial
    if not enqueued.made and (found := await calls.store.jobs([enqueued.job_id])):
        state = found[0].state
    return JsonResponse(
        {
            "id": str(enqueued.job_id), "made": enqueued.made, "state": state, "contract": job.contract,
            "queue": job.queue, "type": job.type, "tenant_id": job.tenant_id,
        },
        status_code=201 if enqueued.made else 200,
    )  # fmt: skip


async def enqueue_jobs(request: ApiRequest, body: EnqueueMany) -> JsonResponse:
    """Enqueue many jobs; each is enqueued or refused by itself, and the answers have the same order."""
    request.refuse_idempotency_key("give each job its idempotency_key")
    who, calls = request.caller, request.calls
    contracts = await calls.contracts(one.contract for one in body.jobs)

    def enqueue(one: Enqueue) -> asyncio.Future[Enqueued]:
        job = _with_trace(request, one.job(who.resolve_tenant(one.tenant_id), one.idempotency_key))
        return calls.enqueue(job, contracts[one.contract], who)

    return FastJsonResponse({"jobs": [_enqueued(one) for one in await calls.each(body.jobs, enqueue)]})


def _with_trace(request: ApiRequest, job: NewJob) -> NewJob:
    """The job with the trace id that came with its request, unless it has its own."""
    given = request.given_trace_id
    return replace(job, trace_id=given) if given is not None and job.trace_id is None else job


def _enqueued(one: Enqueued | TenureError) -> dict[str, Any]:
    return {"error": error_body(one)} if isinstance(one, TenureError) else {"id": str(one.job_id), "made": one.made}


async def list_jobs(request: ApiRequest, query: JobSearch) -> dict[str, Any]:
    """Jobs that match: first the live ones, then the finished ones, each newest first.

    A page reads a limited number of rows; `stopped` says that it reached the limit.
    """
    search = filters_of(parse(query.q))
    search["tenant_id"] = request.caller.resolve_tenant(search["tenant_id"])
    page = await request.calls.store.find(**search, limit=query.limit, after=query.cursor, with_workers=True)
    jobs = [job.fields() for job in page.jobs]
    return {"jobs": jobs, "next": page.next, "stopped": page.stopped}


async def count_jobs(request: ApiRequest, query: CountQuery) -> dict[str, Any]:
    """Count the jobs that match, by tenant, type, queue, state, contract or worker.

    It stops after 10,000 jobs, or after some pages of a search that reads many rows for few matches.
    """
    search = filters_of(parse(query.q))
    search["tenant_id"] = request.caller.resolve_tenant(search["tenant_id"])
    return (await request.calls.store.count(**search, by=query.by, after=query.cursor)).to_json()


async def show_job(request: ApiRequest) -> dict[str, Any]:
    """A job, live or finished, with the row of its contract's view."""
    seen = await request.calls.store.details(await request.own_job_id())
    record, again = seen.record, seen.situation.again
    if record is not None and "lease_token" in record and request.caller.scopes.isdisjoint(("work", "admin")):
        record = {**record, "lease_token": None}
    return {
        **response.job(seen.job),
        "record": record,
        "progress": seen.progress,
        "dlq_id": None if seen.letter is None else str(seen.letter.id),
        "requeued_as": None if again is None else str(again),
        "worker": seen.last_worker,
        "expires_at": seen.situation.expires_at,
    }


async def list_job_events(request: ApiRequest, query: EventPage) -> dict[str, Any]:
    """A job's log, in order, a page at a time: every hop, and every other fact that its contract logs."""
    job_id = await request.own_job_id()
    after = min(parse_cursor(query.cursor) or 0, MAX_CLAIMS)
    found = await request.calls.store.events(job_id, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    more = str(page[-1].seq) if len(found) > query.limit else None
    return {"events": [ids_to_text(asdict(entry), "job_id") for entry in page], "next": more}


async def why(request: ApiRequest) -> dict[str, Any]:
    """Why a job is (not) running, or why it ended as it did, in a few sentences; and what can be done now.

    Of a node of a flow that has not started, this names the parents that it waits for.
    """
    if (waiting := await request.own_waiting_node()) is not None:
        return {
            "id": request.path_text,
            "state": waiting.node.state,
            "role": waiting.role,
            "why": explain_node(waiting),
            "next": [commands_to_routes(step) for step in next_commands_of_node(waiting)],
        }
    seen = await request.calls.store.details(await request.own_job_id())
    job = seen.job
    return {
        "id": str(job.id),
        "state": job.state,
        "role": job.role,
        "why": explain_job(job, seen.log, seen.contract, seen.now, seen.situation),
        "next": [commands_to_routes(step) for step in next_commands(job, seen.contract, seen.situation)],
    }
