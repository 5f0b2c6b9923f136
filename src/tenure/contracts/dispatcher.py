"""`dispatcher`: document 001. Failed waits for a reconciler that queues the next attempt and wakes a worker."""

from __future__ import annotations

from tenure.contract import (
    Backoff,
    Budget,
    Contract,
    Counter,
    Jitter,
    Lease,
    Retryable,
    View,
    paths,
    states,
)  # fmt: skip

_STATES = states(Queued="ready", Running="active", Completed="done", Failed="waiting done", Canceled="done")

DISPATCHER = Contract(
    name="dispatcher",
    version="1",
    title="Task lifecycle: workers speak HTTP, SQS is a wake-up (document 001)",
    states=_STATES,
    initial="Queued",
    paths=paths(
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
    counter=Counter("attempt", initial=1, on=("promote",)),
    budget=Budget("max_attempts", default=3),
    backoff=Backoff(30_000, 600_000, Jitter("multiply", 0.5, 1.5)),
    lease=Lease(
        120_000,
        error={"type": "LeaseExpired", "message": "timeout", "code": "timeout"},
        # Every beat extends the lease; the document gives no second clock, so no number of missed beats orphans.
        heartbeat=None,
        renew_at=1.0,
    ),
    retryable=Retryable("any"),
    cancel_modes=("soft", "hard"),
    wakeup="pointer",
    views=(
        View(
            "tasks",
            "jobs",
            {
                "task_id": "id", "status": "state", "type": "type", "queue": "queue", "tenant_id": "tenant",
                "payload": "payload", "attempt": "counter", "max_attempts": "limit", "worker_id": "owner",
                "lease_token": "token", "lease_expires_at": "lease_expires", "last_heartbeat": "last_heartbeat",
                "started_at": "last_started", "completed_at": "succeeded", "next_retry_at": "due_while_waiting",
                "error_message": "error_message", "error": "error", "outputs": "result", "dedupe_key": "key",
                "created_at": "created", "updated_at": "updated", "trace_id": "trace",
                "correlation_id": "correlation",
            },
        ),
        View(
            "outbox",
            "outbox",
            {"id": "id", "task_id": "job_id", "body": "body", "created_at": "created", "published_at": "published"},
        ),
    ),
)  # fmt: skip
