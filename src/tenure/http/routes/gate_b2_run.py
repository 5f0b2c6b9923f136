"""Document 004's run endpoint: run a job by request, to success or failure, without a worker and without waiting.

For development only: it uses the lease of the job's holder, and skips the wait before a retry. It is closed unless
TENURE_INTERNAL_RUN=1.
"""

from __future__ import annotations

from typing import Any

from tenure.contracts.declaration import HELD
from tenure.errors import BadInput, JobNotFound, Refused
from tenure.http.application import ApiRequest
from tenure.http.error_response import Forbidden
from tenure.http.models import gate_b2_run as models
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Job
from tenure.postgres.store import Store

_FORCED = Failure("the run was asked to fail", "ForcedFailure", "FORCED_FAIL", retryable=False)
_TRANSIENT = Failure("the run was asked to fail for now", "TransientFailure", "TRANSIENT_FAIL", retryable=True)


async def run_job(request: ApiRequest, query: models.RunQuery) -> dict[str, Any]:
    """Run a job now: to success, or to the requested failure."""
    if not request.application.internal_run:
        raise Forbidden("running jobs by request is closed. Next: start the dispatcher with TENURE_INTERNAL_RUN=1")
    if query.force_fail and query.transient_fail:
        raise BadInput("a run fails for good or for now, not both. Next: give one of force_fail and transient_fail")
    number, actor, calls = await request.own_job_id(), request.caller.actor, request.calls
    job = await _hold(calls.store, number, actor)
    if query.transient_fail or query.force_fail:
        await calls.report("fail", HolderCall(job.held, failure=_FORCED if query.force_fail else _TRANSIENT))
    else:
        await calls.store.succeed(job.held, {"run_by": actor})
    meta = {"trace_id": request.trace_id, "request_id": request.request_id}
    return {"success": True, "data": await _run_data(calls.store, number), "meta": meta}


async def _hold(store: Store, number: int, actor: str) -> Job:
    """The job under a lease: its holder's, or a new one, whether the job is due or not."""
    (job,) = await store.jobs([number]) or (None,)
    if job is None:
        raise JobNotFound(number)
    if job.role not in HELD:
        await store.make_due_now(number)
        (claimed,) = await store.claim_by_id([number], worker=actor, contract=job.contract)
        if isinstance(claimed, Refused):
            raise claimed
        job = claimed
    if job.role == "leased":
        await store.start(job.held)
    return job


async def _run_data(store: Store, number: int) -> dict[str, Any]:
    """The job after the run, in the document's words."""
    seen = await store.details(number)
    job = seen.job
    due_at = job.due_at if job.role == "ready" else None
    wait_s = None if due_at is None else (due_at - seen.now).total_seconds()
    return {
        "job_id": str(job.id),
        "final_status": job.state,
        "retry_count": job.counter,
        "dlq_id": None if seen.letter is None else str(seen.letter.id),
        "retry_after_ms": None if wait_s is None else max(0, round(wait_s * 1_000)),
        "retry_at": due_at,
    }
