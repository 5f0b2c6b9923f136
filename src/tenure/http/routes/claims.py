"""Routes for workers that look for jobs: claims, due contracts, wake-ups, live workers, and type settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from tenure.errors import TenureError
from tenure.http import response
from tenure.http.application import ApiRequest
from tenure.http.long_poll import ClaimFilter
from tenure.http.models import fields
from tenure.http.models.datasets import Pin
from tenure.http.models.fields import MAX_ITEMS, MAX_WAIT_S, RequestBody, WorkerId, described, optional
from tenure.http.response import FastJsonResponse
from tenure.http.routes.jobs import Job
from tenure.jobs import job_type, validation
from tenure.jobs.dataset_json import pin_to_json
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.postgres.claim import Claimer

_Application = Annotated[StrictStr, fields.text("application")] | None
_Host = Annotated[StrictStr, fields.text("host")] | None


class JobType(RequestBody):
    """The settings of one job type. The contract gives the settings that are absent."""

    type: fields.Type = described("The job type.")
    contract: fields.Contract = described("The contract of these jobs.")
    max_attempts: fields.Count | None = optional("The limit of attempts, as the contract counts them.", examples=[3])
    lease_ttl_sec: fields.Seconds | None = optional("Seconds that a lease lasts.")
    heartbeat_sec: fields.Seconds | None = optional("Seconds between two heartbeats.")
    sla_sec: fields.Seconds | None = optional("Seconds that a run may take; default unbounded.")
    renews: StrictBool = described("Whether heartbeats renew the lease; default true.", default=True)
    backoff_base_ms: fields.Milliseconds | None = optional("Milliseconds before the first retry.")
    backoff_cap_ms: fields.Milliseconds | None = optional("The longest wait before a retry, in milliseconds.")
    on_exhausted: Annotated[StrictStr, Field(min_length=1, max_length=100)] | None = optional(
        "Where a job without attempts left ends, if the contract gives a choice."
    )


class WorkerInfo(RequestBody):
    """What a worker reports about itself, for the list of live workers."""

    application: _Application = optional("The application that it runs.", examples=["shop"])
    version: Annotated[StrictStr, fields.text("version")] | None = optional(
        "The version of its software.", examples=["0.1.0"]
    )
    release: Annotated[StrictStr, fields.text("release")] | None = optional(
        "The version of its application.", examples=["2026.11.2"]
    )
    host: _Host = optional("The machine that it runs on.", examples=["box-7"])
    pid: fields.SmallCount | None = optional("Its process id.", examples=[4711])
    slots: fields.SmallCount | None = optional("How many jobs it runs at the same time.", examples=[50])


class Claim(RequestBody):
    """A worker's claim. The same claim key again gets the same jobs."""

    worker_id: WorkerId
    contract: fields.Contract = described("The contract of the jobs; default standard.", default="standard")
    queues: fields.Queues = described(
        'The queues to claim from, in this order; default ["default"].', default=["default"]
    )
    types: Annotated[fields.Types, Field(min_length=1)] | None = optional("Claim only these types; default any.")
    options: Annotated[list[JobType], Field(max_length=MAX_ITEMS)] | None = optional(
        "Type settings of the worker's code, used for its claims; default the stored ones."
    )
    worker: WorkerInfo | None = optional("What the worker reports about itself; default none.")
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_ITEMS), fields.AS_WHOLE] = described(
        "The largest number of jobs; default 1.", default=1, examples=[10]
    )
    claim_key: fields.ClaimKey | None = optional(
        "A new UUID of version 4, which becomes the lease token; default one is made."
    )
    wait_seconds: Annotated[fields.Number, fields.up_to(MAX_WAIT_S)] = described(
        "Seconds to wait while there is no job; default 0.", default=0, examples=[20]
    )
    record: StrictBool = described(
        "Whether each job comes with the row of its contract's view; default true.", default=True
    )
    datasets: StrictBool | None = optional(
        "Whether each job comes with the generations of datasets that it reads and writes; default as record."
    )


class ClaimedJob(BaseModel):
    """A claimed job, and the proof that its holder sends with every call."""

    job: Job = described("The job.")
    claims: fields.Claims
    lease_token: fields.LeaseToken
    lease_expires_at: datetime = described("When the lease ends, by the database's clock.")
    lease_seconds: float | None = described("Seconds from the claim to the lease's end.", examples=[30.0])
    execution_key: str = described(
        "Names this execution for good; use it to make outside effects idempotent.", examples=["42:1"]
    )
    datasets: list[Pin] | None = optional("The generations of datasets that it reads and writes; null: not asked for.")


class ClaimedJobs(BaseModel):
    """The claimed jobs."""

    claims: list[ClaimedJob] = described("The claimed jobs; empty when no job was due in time.")


class WorkerHeartbeat(RequestBody):
    """A live worker: what it is, and everything that it claims."""

    worker_id: WorkerId
    queues: fields.Queues = described('The queues that it claims from; default ["default"].', default=["default"])
    contracts: fields.Contracts = described(
        'The contracts whose jobs it claims; default ["standard"].', default=["standard"]
    )
    types: fields.Types | None = optional("The only types that it claims; default any.")
    options: Annotated[list[JobType], Field(max_length=10_000)] | None = optional(
        "The type settings of its code; default none."
    )
    worker: WorkerInfo | None = optional("What it reports about itself; default none.")
    busy: fields.SmallCount | None = optional("How many jobs it runs now; default unknown.")
    loop_lag_s: fields.Seconds | None = optional(
        "The longest delay of its event loop since the report before, in seconds; default unknown.", examples=[0.002]
    )
    schedules: Annotated[dict[fields.ScheduleName, fields.Fingerprint], Field(max_length=MAX_ITEMS)] = described(
        "The schedules of its code: name and fingerprint, as the declaration answered; default none.", default={}
    )


class WorkerExit(RequestBody):
    """A worker that stops; host and process id as it reported them before."""

    worker_id: WorkerId
    host: _Host = optional("The machine that it ran on; default unknown.", examples=["box-7"])
    pid: fields.SmallCount | None = optional("Its process id; default unknown.", examples=[4711])


class WorkerName(BaseModel):
    """The worker that the call was about."""

    worker_id: str = described("The worker's name.", examples=["w1"])


class Due(RequestBody):
    """A question: which contracts have jobs to claim?"""

    contracts: fields.Contracts = described("The contracts to look at.")
    queues: fields.Queues = described("The queues to look at.")
    types: Annotated[fields.Types, Field(min_length=1)] | None = optional("Look only for these types; default any.")


class DueContracts(BaseModel):
    """Contracts that have jobs to claim."""

    contracts: list[str] = described("The contracts with due jobs now; a hint.", examples=[["standard"]])


class WakeupsAfter(BaseModel):
    """The query of the wake-ups since a cursor."""

    after: str | None = optional("The cursor of the last answer.", max_length=64)
    wait_seconds: float = described(
        "Seconds to wait for one; default 0.", default=0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False
    )


class Wakeup(BaseModel):
    """There may be jobs of this contract and queue. With the contract `#`, the job that `queue` names has changed."""

    contract: str = described("The contract; empty: any; #: it is about one job.", examples=["standard"])
    queue: str = described("The queue; empty: any; with the contract #: the job's id.", examples=["mail"])


class Wakeups(BaseModel):
    """The wake-ups since the cursor."""

    wakeups: list[Wakeup] = described("Where there may be jobs, and which jobs have changed.")
    cursor: str = described("Where to continue: send it as `after` next time.", examples=["5c0f.17"])


class DeclareTypes(RequestBody):
    """The settings of an application's job types that differ from their contracts."""

    types: Annotated[list[JobType], Field(max_length=MAX_ITEMS)] = described("One entry for each type and contract.")
    application: _Application = optional("The application of these settings; those of another live one are left alone.")
    declared_by: Annotated[StrictStr, fields.text("worker")] | None = optional(
        "The worker or process that declares them."
    )


class TypesDeclared(BaseModel):
    """How many types were declared."""

    declared: int = described("The number of types.")


async def claim_jobs(request: ApiRequest, body: Claim) -> dict[str, Any] | FastJsonResponse:
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
    if jobs and (body.record if body.datasets is None else body.datasets):
        pins = await request.calls.pins(jobs)
        for job, claim in zip(jobs, claims, strict=True):
            claim["datasets"] = list(map(pin_to_json, pins.get(job.id, ())))
    if not body.record or not jobs:
        return FastJsonResponse({"claims": claims})
    rows: Mapping[int, Any] = {}
    with contextlib.suppress(TenureError):  # the jobs are claimed: better without their row than lost
        rows = await calls.store.records(body.contract, [job.id for job in jobs])
    for job, claim in zip(jobs, claims, strict=True):
        claim["job"]["record"] = rows.get(job.id)
    return {"claims": claims}


def _live_worker(body: Claim | WorkerHeartbeat, contracts: list[str]) -> LiveWorker:
    """A worker as it reports itself; refuses names that cannot be stored."""
    facts = {} if body.worker is None else body.worker.model_dump()
    texts = {
        field: [facts[field]] for field in ("application", "version", "release", "host") if facts.get(field) is not None
    }
    _check_names(worker=[body.worker_id], queue=body.queues, contract=contracts, type=body.types or (), **texts)
    types = None if body.types is None else tuple(sorted(set(body.types)))
    return LiveWorker(
        body.worker_id, tuple(body.queues), tuple(contracts), types, declares=_job_types(body.options or ()), **facts
    )


def _job_types(types: Iterable[JobType]) -> tuple[job_type.JobType, ...]:
    return tuple(job_type.JobType(**one.model_dump()) for one in types)


def _check_names(**names: Iterable[str]) -> None:
    """Refuse names that cannot be stored, by their field."""
    for field, given in names.items():
        for name in given:
            validation.check_name(field, name)


async def report_worker(request: ApiRequest, body: WorkerHeartbeat) -> dict[str, Any]:
    """Report that a worker lives. It stays in the list of live workers for two minutes after each report."""
    _check_names(schedule=body.schedules)
    worker = replace(
        _live_worker(body, body.contracts), busy=body.busy, loop_lag_s=body.loop_lag_s, schedules=body.schedules
    )
    request.calls.presence.record(worker, unbound=request.caller.tenant is None, complete=True)
    return {"worker_id": body.worker_id}


async def remove_worker(request: ApiRequest, body: WorkerExit) -> dict[str, Any]:
    """Remove a worker that stops from the list at once, unless another process has its name by now."""
    _check_names(worker=[body.worker_id], host=() if body.host is None else [body.host])
    await request.calls.presence.leave(LiveWorker(body.worker_id, (), (), host=body.host, pid=body.pid))
    return {"worker_id": body.worker_id}


async def list_due_contracts(request: ApiRequest, body: Due) -> dict[str, Any]:
    """Which of these contracts have jobs to claim from these queues now; a hint, which locks nothing."""
    _check_names(contract=body.contracts, queue=body.queues, type=body.types or ())
    calls = request.calls
    contracts = await calls.store.due(body.contracts, body.queues, types=body.types, tenant=request.caller.tenant)
    calls.wakeups.reset_cursors(contracts)
    return {"contracts": contracts}


async def wait_for_wakeups(request: ApiRequest, query: WakeupsAfter) -> dict[str, Any]:
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


async def declare_types(request: ApiRequest, body: DeclareTypes) -> dict[str, Any]:
    """Declare type settings that differ from their contracts. They hold for all tenants: the key must have none."""
    request.caller.require_all_tenants()
    types = _job_types(body.types)
    if types:
        await request.calls.store.types.declare(types, application=body.application, by=body.declared_by)
    return {"declared": len(types)}
