"""Routes of jobs: enqueue them, list them, show one, and read its log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

from tenure.errors import TenureError
from tenure.http import response
from tenure.http.application import ApiRequest, parse_cursor
from tenure.http.error_response import commands_to_routes, error_body
from tenure.http.models import jobs as models
from tenure.http.response import FastJsonResponse, JsonResponse
from tenure.jobs.formats import ids_to_text
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.jobs.search import parse
from tenure.jobs.validation import MAX_CLAIMS
from tenure.jobs.why import explain_job, next_commands


async def enqueue_job(request: ApiRequest, body: models.Enqueue) -> JsonResponse:
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


async def enqueue_jobs(request: ApiRequest, body: models.EnqueueMany) -> JsonResponse:
    """Enqueue many jobs; each is enqueued or refused by itself, and the answers have the same order."""
    request.refuse_idempotency_key("give each job its idempotency_key")
    who, calls = request.caller, request.calls
    contracts = await calls.contracts(one.contract for one in body.jobs)

    def enqueue(one: models.Enqueue) -> asyncio.Future[Enqueued]:
        job = _with_trace(request, one.job(who.resolve_tenant(one.tenant_id), one.idempotency_key))
        return calls.enqueue(job, contracts[one.contract], who)

    return FastJsonResponse({"jobs": [_enqueued(one) for one in await calls.each(body.jobs, enqueue)]})


def _with_trace(request: ApiRequest, job: NewJob) -> NewJob:
    """The job with the trace id that came with its request, unless it has its own."""
    given = request.given_trace_id
    return replace(job, trace_id=given) if given is not None and job.trace_id is None else job


def _enqueued(one: Enqueued | TenureError) -> dict[str, Any]:
    return {"error": error_body(one)} if isinstance(one, TenureError) else {"id": str(one.job_id), "made": one.made}


async def list_jobs(request: ApiRequest, query: models.JobSearch) -> dict[str, Any]:
    """Jobs that match: first the live ones, then the finished ones, each newest first.

    A page reads a limited number of rows; `stopped` says that it reached the limit.
    """
    search = asdict(parse(query.q))
    search["tenant_id"] = request.caller.resolve_tenant(search["tenant_id"])
    page = await request.calls.store.find(**search, limit=query.limit, after=query.cursor)
    jobs = [response.listed_job(job) for job in page.jobs]
    return {"jobs": jobs, "next": page.next, "stopped": page.stopped}


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
        "expires_at": seen.situation.expires_at,
    }


async def list_job_events(request: ApiRequest, query: models.EventPage) -> dict[str, Any]:
    """A job's log, in order, a page at a time: every hop, and every other fact that its contract logs."""
    number = await request.own_job_id()
    after = min(parse_cursor(query.cursor) or 0, MAX_CLAIMS)
    found = await request.calls.store.events(number, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    more = str(page[-1].seq) if len(found) > query.limit else None
    return {"events": [ids_to_text(asdict(entry), "job_id") for entry in page], "next": more}


async def why(request: ApiRequest) -> dict[str, Any]:
    """Why a job is (not) running, or why it ended as it did, in a few sentences; and what can be done now."""
    seen = await request.calls.store.details(await request.own_job_id())
    job = seen.job
    return {
        "id": str(job.id),
        "state": job.state,
        "role": job.role,
        "why": explain_job(job, seen.log, seen.contract, seen.now, seen.situation),
        "next": [commands_to_routes(step) for step in next_commands(job, seen.contract, seen.situation)],
    }
