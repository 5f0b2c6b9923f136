"""Routes of jobs: make them, list them, look at one, read its log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import Query, Request

from tenure.errors import TenureError
from tenure.http import shown
from tenure.http.asked import (
    Cursor,
    JobId,
    Limit,
    caller,
    cursor_number,
    desk,
    job_number,
    must_have_no_key,
    needs,
    repeat_key,
    routes,
)
from tenure.http.hints import routed
from tenure.http.models import jobs as models
from tenure.http.models.refusal import responses
from tenure.http.refusals import told
from tenure.http.shown import Json, Quick
from tenure.intake import MAX_CLAIMS
from tenure.job import NewJob
from tenure.outcome import Enqueued
from tenure.search import parse
from tenure.why import next_steps
from tenure.why import why as why_of

router = routes("jobs")
_READERS = ("enqueue", "work", "operate")


@router.post(
    "/api/v1/jobs",
    status_code=201,
    responses={
        **responses(models.Made, refuses=(409,)),
        201: {"model": models.Made, "description": "A job that this call made."},
    },
    openapi_extra=needs("enqueue"),
)
async def enqueue(request: Request, body: models.Enqueue) -> Json:
    """Make a job. With an idempotency key, at most once: the same key and body again get the same job (200)."""
    who, at = caller(request), desk(request)
    job = _traced(request, body.job(who.of(body.tenant_id), repeat_key(request, body.idempotency_key)))
    made = await at.enqueue(job, who)
    state = (await at.store.contract(job.contract)).initial
    if not made.made and (found := await at.store.jobs([made.job_id])):
        state = found[0].state
    fields = {name: getattr(job, name) for name in ("contract", "queue", "type", "tenant_id")}
    answer = {"id": str(made.job_id), "made": made.made, "state": state, **fields}
    return Json(answer, status_code=201 if made.made else 200)


@router.post("/api/v1/jobs/batch", responses=responses(models.MadeMany, refuses=(409,)), openapi_extra=needs("enqueue"))
async def enqueue_many(request: Request, body: models.EnqueueMany) -> Json:
    """Make many jobs; each is made or refused by itself, in the order asked."""
    must_have_no_key(request, "give each job its idempotency_key")
    who, at = caller(request), desk(request)
    contracts = await at.contracts(one.contract for one in body.jobs)

    def make(one: models.Enqueue) -> asyncio.Future[Enqueued]:
        job = _traced(request, one.job(who.of(one.tenant_id), one.idempotency_key))
        return at.make(job, contracts[one.contract], who)

    made = await at.each(body.jobs, make)
    return Quick({"jobs": [_made(one) for one in made]})


def _traced(request: Request, job: NewJob) -> NewJob:
    """A job that has the trace of its request, where that came with one and the job has none of its own."""
    state = request.state
    return replace(job, trace_id=state.trace_id) if state.came_with_trace and job.trace_id is None else job


def _made(one: Enqueued | TenureError) -> dict[str, Any]:
    return {"error": told(one)} if isinstance(one, TenureError) else {"id": str(one.job_id), "made": one.made}


@router.get("/api/v1/jobs", responses=responses(models.JobPage, body=False), openapi_extra=needs("operate"))
async def list_jobs(
    request: Request,
    q: Annotated[
        str,
        Query(
            max_length=1_000,
            description="What to find, by state, type, queue, tenant, contract and age; empty: all.",
            examples=["state:dead type:send age:>1h"],
        ),
    ] = "",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Json:
    """Jobs that match, newest first. A page never reads more than a bound; `stopped` says that it was reached."""
    wanted = asdict(parse(q))
    wanted["tenant_id"] = caller(request).of(wanted["tenant_id"])
    page = await desk(request).store.find(**wanted, limit=limit, after=cursor_number(cursor))
    return Json(
        {
            "jobs": [shown.listed(one) for one in page.jobs],
            "next": None if page.next is None else str(page.next),
            "stopped": page.stopped,
        }
    )


@router.get(
    "/api/v1/jobs/{job_id}",
    responses=responses(models.Job, refuses=(404,), body=False),
    openapi_extra=needs(*_READERS),
)
async def show_job(request: Request, job_id: JobId) -> Json:
    """A job, live or finished, with the row of its contract's view."""
    number, who, at = job_number(job_id), caller(request), desk(request)
    await at.kind(number, who)
    seen = await at.store.look(number)
    may_hold = not who.scopes.isdisjoint(("work", "admin"))
    again = seen.around.again
    return Json(
        {
            **shown.job(seen.job),
            "record": shown.record(seen.record, tokens=may_hold),
            "progress": seen.progress,
            "dlq_id": None if seen.letter is None else str(seen.letter.id),
            "requeued_as": None if again is None else str(again),
        }
    )


@router.get(
    "/api/v1/jobs/{job_id}/events",
    responses=responses(models.JobEvents, refuses=(404,), body=False),
    openapi_extra=needs(*_READERS),
)
async def events(request: Request, job_id: JobId, limit: Limit = 1_000, cursor: Cursor = None) -> Json:
    """A job's log: every hop, and every fact that its contract writes down, in order, a page at a time."""
    number, at = job_number(job_id), desk(request)
    await at.kind(number, caller(request))
    after = min(cursor_number(cursor) or 0, MAX_CLAIMS)
    found = await at.store.events(number, after=after, limit=limit + 1)
    page = found[:limit]
    more = str(page[-1].seq) if len(found) > limit else None
    return Json({"events": [shown.event(logged) for logged in page], "next": more})


@router.get(
    "/api/v1/jobs/{job_id}/why",
    responses=responses(models.WhyAnswer, refuses=(404,), body=False),
    openapi_extra=needs(*_READERS),
)
async def why(request: Request, job_id: JobId) -> Json:
    """Why a job is (not) running, or why it ended as it did, in a few sentences; and what can be done now."""
    number, at = job_number(job_id), desk(request)
    await at.kind(number, caller(request))
    seen = await at.store.look(number)
    job = seen.job
    return Json(
        {
            "id": str(job.id),
            "state": job.state,
            "role": job.role,
            "why": why_of(job, seen.log, seen.contract, seen.now, seen.around),
            "next": [routed(step) for step in next_steps(job, seen.contract, seen.around)],
        }
    )
