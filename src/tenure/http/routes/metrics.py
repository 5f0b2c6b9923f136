"""Routes of metrics: in Prometheus' text format, and statistics as JSON. A key of one tenant sees that tenant's."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel
from starlette.responses import Response

from tenure.http.application import ApiRequest
from tenure.http.models.fields import described

#: The nap whose overrun is shown as the lag of the event loop.
_NAP_S = 0.005


class Metrics(RootModel[str]):
    """Metrics in Prometheus' text format."""

    root: str = Field(examples=["# TYPE tenure_workers gauge\ntenure_workers 2"])


class StatsQuery(BaseModel):
    """Which time the statistics are about."""

    since_seconds: Annotated[
        float, Field(ge=60, le=34_560_000, description="From this many seconds ago until now.", examples=[3600])
    ] = 3600


class DurationStats(BaseModel):
    """Durations of the jobs of a type."""

    count: int = described("How many.")
    mean_s: float | None = described("Their mean, in seconds; null: there are none.")
    p50_s: float | None = described("Half of them took at most this many seconds, within a bucket's error.")
    p95_s: float | None = described("95 % of them took at most this many seconds, within a bucket's error.")


class TypeFigures(BaseModel):
    """What the jobs of a contract and type did."""

    contract: str = described("The contract.", examples=["standard"])
    type: str = described("The type; (other): types beyond the bound.", examples=["mail.send"])
    tenant_id: str | None = described("The tenant; null: all tenants.")
    enqueued: int = described("Jobs that were made.")
    claims: int = described("Claims.")
    claim_conflicts: int = described("Claims of named jobs that another caller won.")
    lease_renewals: int = described("Renewals of leases.")
    lease_expiries: int = described("Leases that expired.")
    retries: int = described("Failures after which the job runs again.")
    failures: int = described("Failures that holders reported.")
    stale_writes: int = described("Writes that were refused because the lease was lost.")
    dlq_count: int = described("Jobs that went to the dead letters.")
    wait: DurationStats = described("From due to claimed.")
    run: DurationStats = described("From claimed to the end that the holder reported.")


class TypeSlice(BaseModel):
    """What the jobs of a type did in one minute or hour."""

    start: datetime = described("When it began.")
    contract: str | None = described("The contract; null: all.", examples=["standard"])
    type: str | None = described("The type; null: all.", examples=["mail.send"])
    enqueued: int = described("Jobs that were made.")
    claimed: int = described("Claims.")
    ended: int = described("Jobs that ended, well or badly.")
    failures: int = described("Runs that failed, whether they are tried again or not.")
    wait_p50_s: float | None = described("Half of the claimed jobs were due for at most this many seconds.")
    wait_p95_s: float | None = described("95 % of the claimed jobs were due for at most this many seconds.")
    run_p50_s: float | None = described("Half of the runs that ended took at most this many seconds.")
    run_p95_s: float | None = described("95 % of the runs that ended took at most this many seconds.")


class LiveJobs(BaseModel):
    """The live jobs in a state."""

    contract: str = described("The contract.", examples=["standard"])
    queue: str = described("The queue.", examples=["mail"])
    state: str = described("The state.", examples=["queued"])
    jobs: int = described("How many.")


class CurrentFigures(BaseModel):
    """Workers and what waits for upkeep."""

    workers: int = described("Workers that were seen in the last minute.")
    slots: int = described("Their slots.")
    busy: int = described("Their slots in which jobs run.")
    outbox_age_s: float | None = described("Seconds for which the oldest due wake-up waits; null: none does.")
    fold_lag_s: float | None = described("Seconds since the oldest count that is not folded; null: all are.")


class Statistics(BaseModel):
    """Figures of types, minutes, queues and workers."""

    since_seconds: float = described("From this many seconds ago until now.")
    types: list[TypeFigures] = described("By contract and type.")
    slices: list[TypeSlice] = described("By type, and by minute up to six hours, then by hour.")
    totals: list[TypeSlice] = described("The same of all types together.")
    live: list[LiveJobs] = described("The live jobs now.")
    now: CurrentFigures | None = described("Workers and upkeep now; null for a key of one tenant.")


async def show_metrics(request: ApiRequest) -> Response:
    """Metrics for Prometheus; a key that is bound to a tenant sees its own."""
    from tenure.metrics.database import expose
    from tenure.metrics.text import CONTENT_TYPE

    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(_NAP_S)
    lag = max(0.0, loop.time() - began - _NAP_S)
    tenant = request.caller.tenant
    shown = await request.calls.store.counts.snapshot(tenant=tenant, loop_lag_s=lag if tenant is None else None)
    # Tens of milliseconds where there are many types and tenants: other requests are answered meanwhile.
    return Response(await asyncio.to_thread(expose, shown), headers={"content-type": CONTENT_TYPE})


async def show_stats(request: ApiRequest, query: StatsQuery) -> dict[str, Any]:
    """Statistics: counts and durations by type, and what lives now; a key that is bound to a tenant sees its own."""
    found = await request.calls.store.counts.stats(query.since_seconds, tenant=request.caller.tenant)
    return found.to_json()
