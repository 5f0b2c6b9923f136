"""`simple`: document 003. Five statuses; the queue alone decides retries; every failure passes through FAILED."""

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

_STATES = states(PENDING="ready", RUNNING="active", SUCCESS="done", FAILED="settling done", CANCELLED="done")

SIMPLE = Contract(
    name="simple",
    version="1",
    title="Task queue core: PENDING, RUNNING, SUCCESS, FAILED, CANCELLED (document 003)",
    states=_STATES,
    initial="PENDING",
    paths=paths(
        _STATES,
        ("claim", "PENDING > RUNNING"),
        ("succeed", "RUNNING > SUCCESS"),
        ("retry", "RUNNING > FAILED:settling > PENDING", {"due": "backoff"}),
        ("exhaust", "RUNNING > FAILED:done"),
        ("expire", "RUNNING > FAILED:settling > PENDING", {"due": "backoff"}),
        ("expire_at_cap", "RUNNING > FAILED:done"),
        ("cancel", "PENDING|RUNNING > CANCELLED"),
    ),
    counter=Counter("attempts", initial=0, on=("claim",)),
    # `max_retries` is the document's word for executions: 0 and 1 both give one.
    budget=Budget("max_retries", default=3, minimum=0),
    backoff=Backoff(1_000, 60_000, Jitter("multiply", 0.75, 1.25)),
    lease=Lease(60_000, error={"type": "WorkerLost", "message": "worker lost", "code": "WORKER_LOST"}),
    retryable=Retryable("any"),
    cancel_modes=("soft",),
    views=(
        View(
            "tasks",
            "jobs",
            {
                "id": "id", "status": "state", "type": "type", "queue": "queue", "tenant_id": "tenant",
                "payload": "payload", "attempts": "counter", "max_retries": "limit", "eta": "due",
                "error": "error", "created_at": "created", "updated_at": "updated",
                "last_attempt_at": "last_started", "trace_id": "trace", "correlation_id": "correlation",
            },
        ),
        View(
            "task_results",
            "finished",
            {
                "task_id": "id", "status": "state", "result": "result", "error": "final_error", "attempts": "counter",
                "finished_at": "finished", "last_attempt_at": "last_started",
            },
        ),
    ),
)  # fmt: skip
