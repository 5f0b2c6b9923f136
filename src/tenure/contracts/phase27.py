"""`phase27`: document 000. Attempt counted at claim, jitter ±30 %, reclaim in place, events with exact keys."""

from __future__ import annotations

from tenure.contracts.declaration import Contract, Retryable
from tenure.contracts.notation import event, path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Jitter, Lease

#: Keys that every event of the document has.
_RUN = "ts=ts_text task_id=job_id_text run_id=run actor attempt=counter"
_FAILED = f"{_RUN} max_attempts=limit terminal error"

PHASE27 = Contract(
    name="phase27",
    version="1",
    title="Phase 27: task worker failure and retry semantics (document 000)",
    states=states(queued="ready", running="active", completed="done", failed="done"),
    initial="queued",
    paths=(
        path("claim", "queued > running"),
        path("reclaim", "running > running"),
        path("succeed", "running > completed"),
        path("retry", "running > queued", due="backoff"),
        path("exhaust", "running > failed"),
        path("expire_at_cap", "running > failed"),
    ),
    counter=Counter("attempt", initial=0, on=("claim", "reclaim")),
    budget=Budget("max_attempts", default=5),
    # As the document says, the jitter comes after the cap: a delay may exceed the cap by up to 30 %.
    backoff=Backoff(base_seconds=1.5, cap_seconds=60, jitter=Jitter(form="multiply", low=0.7, high=1.3)),
    lease=Lease(
        seconds=60, error={"type": "LeaseExpired", "message": "lease expired", "code": "LEASE_EXPIRED"}
    ),
    retryable=Retryable("any"),
    views=(
        view("tasks", "jobs",
            "task_id=id status=state type queue tenant_id=tenant payload attempt=counter max_attempts=limit "
            "available_at=due locked_by=owner lock_expires_at=lease_expires last_error=error "
            "started_at=first_started completed_at=succeeded created_at=created updated_at=updated result "
            "trace_id=trace correlation_id=correlation",
            last_error=(
                "ts=error_ts message=error_message code=error_code stack=error_stack attempt=error_attempt "
                "max_attempts=error_limit terminal=error_terminal backoff_ms=error_delay_ms "
                "next_available_at=error_due"
            ),
        ),
        view("task_events", "events", "id kind=name task_id=job_id run_id=run actor ts payload"),
    ),
    events=(
        event("task.running", "claim reclaim", f"{_RUN} max_attempts=limit"),
        event("task.completed", "succeed", _RUN),
        event("task.failed", "retry", f"{_FAILED} backoff_ms=delay_ms"),
        event("task.requeued", "retry", f"{_RUN} max_attempts=limit available_at=due"),
        event("task.failed", "exhaust expire_at_cap", _FAILED),
    ),
    knobs={
        "TASK_LOCK_MS": "lease_ms",
        "TASK_MAX_ATTEMPTS": "max_attempts",
        "TASK_RETRY_BASE_MS": "backoff_base_ms",
        "TASK_RETRY_CAP_MS": "backoff_cap_ms",
    },
)  # fmt: skip
