"""Routes for workers that look for jobs: claims, due contracts, wake-ups, live workers, and type settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tenure.errors import TenureError
from tenure.http import response
from tenure.http.application import ApiRequest
from tenure.http.long_poll import ClaimFilter
from tenure.http.models import claims as models
from tenure.http.response import FastJsonResponse
from tenure.jobs import validation
from tenure.jobs.job_type import JobType
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.postgres.claim import Claimer


async def claim_jobs(request: ApiRequest, body: models.Claim) -> dict[str, Any] | FastJsonResponse:
    """Claim due jobs. `wait_seconds`: wait for some; `claim_key`: repeat the call safely after a lost answer."""
    request.refuse_idempotency_key("give a claim_key")
    calls, who = request.calls, request.caller
    contract = await calls.store.contract(body.contract)
    worker = _live_worker(body, [body.contract])
    options = None if body.options is None else worker.declares
    claim_filter = ClaimFilter(body.contract, worker.queues, worker.types, who.tenant, options)
    claimer = Claimer(body.worker_id, body.limit, body.claim_key)
    calls.presence.record(worker, unbound=who.tenant is None)

    async def is_gone() -> bool:
        await request.authenticate()  # a key that was revoked meanwhile gets no jobs
        return await request.is_disconnected()

    jobs = await calls.claim(claim_filter, claimer, body.wait_seconds, is_gone)
    claims = [response.claim(job, contract) for job in jobs]
    if not body.record or not jobs:
        return FastJsonResponse({"claims": claims})
    rows: Mapping[int, Any] = {}
    with contextlib.suppress(TenureError):  # the jobs are claimed: better without their row than lost
        rows = await calls.store.records(body.contract, [job.id for job in jobs])
    for job, claim in zip(jobs, claims, strict=True):
        claim["job"]["record"] = rows.get(job.id)
    return {"claims": claims}


def _live_worker(body: models.Claim | models.WorkerHeartbeat, contracts: list[str]) -> LiveWorker:
    """A worker as it reports itself; refuses names that cannot be stored."""
    facts = {} if body.worker is None else body.worker.model_dump()
    texts = {kind: [facts[kind]] for kind in ("application", "version", "host") if facts.get(kind) is not None}
    _check_names(worker=[body.worker_id], queue=body.queues, contract=contracts, type=body.types or (), **texts)
    types = None if body.types is None else tuple(sorted(set(body.types)))
    return LiveWorker(
        body.worker_id, tuple(body.queues), tuple(contracts), types, declares=_job_types(body.options or ()), **facts
    )


def _job_types(types: Iterable[models.JobType]) -> tuple[JobType, ...]:
    return tuple(JobType(**one.model_dump()) for one in types)


def _check_names(**names: Iterable[str]) -> None:
    """Refuse names that cannot be stored, by their kind."""
    for kind, given in names.items():
        for name in given:
            validation.check_name(kind, name)


async def report_worker(request: ApiRequest, body: models.WorkerHeartbeat) -> dict[str, Any]:
    """Report that a worker lives. It stays in the list of live workers for two minutes after each report."""
    _check_names(schedule=body.schedules)
    worker = replace(_live_worker(body, body.contracts), busy=body.busy, schedules=body.schedules)
    request.calls.presence.record(worker, unbound=request.caller.tenant is None, complete=True)
    return {"worker_id": body.worker_id}


async def remove_worker(request: ApiRequest, body: models.WorkerExit) -> dict[str, Any]:
    """Remove a worker that stops from the list at once, unless another process has its name by now."""
    _check_names(worker=[body.worker_id], host=() if body.host is None else [body.host])
    await request.calls.presence.leave(LiveWorker(body.worker_id, (), (), host=body.host, pid=body.pid))
    return {"worker_id": body.worker_id}


async def list_due_contracts(request: ApiRequest, body: models.Due) -> dict[str, Any]:
    """Which of these contracts have jobs to claim from these queues now; a hint, which locks nothing."""
    _check_names(contract=body.contracts, queue=body.queues, type=body.types or ())
    calls = request.calls
    contracts = await calls.store.due(body.contracts, body.queues, types=body.types, tenant=request.caller.tenant)
    calls.wakeups.reset_cursors(contracts)
    return {"contracts": contracts}


async def wait_for_wakeups(request: ApiRequest, query: models.WakeupsAfter) -> dict[str, Any]:
    """The wake-ups since the cursor: where there may be jobs, and which jobs have changed."""
    wakeups = request.calls.wakeups
    found = await wakeups.read(query.after, query.wait_seconds)
    await request.authenticate()  # a key that was revoked meanwhile gets no wake-ups
    cursor = wakeups.cursor
    visible = dict.fromkeys(wakeup for one in found if (wakeup := _visible_wakeup(request, *one)))
    return {"wakeups": [{"contract": name, "queue": queue} for name, queue in visible], "cursor": cursor}


def _visible_wakeup(request: ApiRequest, contract: str, queue: str) -> tuple[str, str] | None:
    """A wake-up as its reader may see it: a tenant's key sees its own jobs, if known here, and no queue names."""
    tenant = request.caller.tenant
    if tenant is None:
        return contract, queue
    if contract != JOB_CHANGED:
        return contract, ""
    job_id = int(queue) if queue.isdecimal() and len(queue) < 20 else validation.MAX_ID
    identity = request.calls.known_identity(job_id)
    return (contract, queue) if identity is not None and identity.tenant == tenant else None


async def declare_types(request: ApiRequest, body: models.DeclareTypes) -> dict[str, Any]:
    """Declare type settings that differ from their contracts. They hold for all tenants: the key must have none."""
    request.caller.require_all_tenants()
    types = _job_types(body.types)
    if types:
        await request.calls.store.types.declare(types, application=body.application, by=body.declared_by)
    return {"declared": len(types)}
