"""`dispatcher`: document 001. A failed task waits; a reconciler queues the next attempt and wakes a worker."""

from __future__ import annotations

from tenure.contracts import declaration as declare

_STATES = declare.states(Queued="ready", Running="active", Completed="done", Failed="waiting done", Canceled="done")

DISPATCHER = declare.Contract(
    name="dispatcher",
    version="1",
    title="Task lifecycle: workers speak HTTP, SQS is a wake-up (document 001)",
    states=_STATES,
    initial="Queued",
    paths=declare.paths(
        _STATES,
        ("claim", "Queued > Running"),
        ("succeed", "Running > Completed"),
        ("retry", "Running > Failed:waiting", {"due": "backoff"}),
        ("promote", "Failed > Queued", {"due": "now"}),
        ("exhaust", "Running > Failed:done"),
        ("expire", "Running > Failed:waiting", {"due": "backoff"}),
        ("expire_at_cap", "Running > Failed:done"),
        ("cancel", "Queued|Running|Failed > Canceled"),
    ),
    counter=declare.Counter("attempt", initial=1, on=("promote",)),
    budget=declare.Budget("max_attempts", default=3),
    backoff=declare.Backoff(base_ms=30_000, cap_ms=600_000, jitter=declare.Jitter(form="multiply", low=0.5, high=1.5)),
    lease=declare.Lease(
        default_ms=120_000,
        error={"type": "LeaseExpired", "message": "timeout", "code": "timeout"},
        # Every heartbeat extends the lease. The document counts no missed heartbeats, so they orphan no task.
        heartbeat=None,
        renew_at=1.0,
    ),
    retryable=declare.Retryable("any"),
    cancel_modes=("soft", "hard"),
    wakeup="pointer",
    views=(
        declare.view("tasks", "jobs",
            "task_id=id status=state type queue tenant_id=tenant payload attempt=counter max_attempts=limit "
            "worker_id=owner lease_token=token lease_expires_at=lease_expires last_heartbeat started_at=last_started "
            "completed_at=succeeded next_retry_at=due_while_waiting error_message error outputs=result "
            "dedupe_key=key created_at=created updated_at=updated trace_id=trace correlation_id=correlation"
        ),
        declare.view("outbox", "outbox", "id task_id=job_id body created_at=created published_at=published"),
    ),
)  # fmt: skip
