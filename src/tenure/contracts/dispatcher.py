"""`dispatcher`: document 001. A failed task waits; a reconciler queues the next attempt and wakes a worker."""

from __future__ import annotations

from tenure.contracts.declaration import Contract, Retryable
from tenure.contracts.notation import path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Jitter, Lease

DISPATCHER = Contract(
    name="dispatcher",
    version="1",
    title="Task lifecycle: workers speak HTTP, SQS is a wake-up (document 001)",
    states=states(Queued="ready", Running="active", Completed="done", Failed="waiting done", Canceled="done"),
    initial="Queued",
    paths=(
        path("claim", "Queued > Running"),
        path("succeed", "Running > Completed"),
        path("retry", "Running > Failed:waiting", due="backoff"),
        path("promote", "Failed > Queued", due="now"),
        path("exhaust", "Running > Failed:done"),
        path("expire", "Running > Failed:waiting", due="backoff"),
        path("expire_at_cap", "Running > Failed:done"),
        path("cancel", "Queued|Running|Failed > Canceled"),
    ),
    counter=Counter("attempt", initial=1, on=("promote",)),
    budget=Budget("max_attempts", default=3),
    backoff=Backoff(base_seconds=30, cap_seconds=600, jitter=Jitter(form="multiply", low=0.5, high=1.5)),
    lease=Lease(
        seconds=120,
        error={"type": "LeaseExpired", "message": "timeout", "code": "timeout"},
        # Every heartbeat extends the lease. The document counts no missed heartbeats, so they orphan no task.
        heartbeat=None,
        renew_at=1.0,
    ),
    retryable=Retryable("any"),
    cancel_modes=("soft", "hard"),
    wakeup="pointer",
    views=(
        view("tasks", "jobs",
            "task_id=id status=state type queue tenant_id=tenant payload attempt=counter max_attempts=limit "
            "worker_id=owner lease_token=token lease_expires_at=lease_expires last_heartbeat started_at=last_started "
            "completed_at=succeeded next_retry_at=due_while_waiting error_message error outputs=result "
            "dedupe_key=key created_at=created updated_at=updated trace_id=trace correlation_id=correlation"
        ),
        view("outbox", "outbox", "id task_id=job_id body created_at=created published_at=published"),
    ),
)  # fmt: skip
