"""`phase27`: document 000. Attempt counted at claim, jitter ±30 %, reclaim in place, events with exact keys."""

from __future__ import annotations

from tenure.contract import (
    Backoff,
    Budget,
    Contract,
    Counter,
    Event,
    Jitter,
    Lease,
    Retryable,
    View,
    paths,
    states,
)  # fmt: skip

_STATES = states(queued="ready", running="active", completed="done", failed="done")

#: Keys that every event of the document has.
_RUN = {"ts": "ts_text", "task_id": "job_id_text", "run_id": "run", "actor": "actor", "attempt": "counter"}
_FAILED = {**_RUN, "max_attempts": "limit", "terminal": "terminal", "error": "error"}

PHASE27 = Contract(
    name="phase27",
    version="1",
    title="Phase 27: task worker failure and retry semantics (document 000)",
    states=_STATES,
    initial="queued",
    paths=paths(
        _STATES,
        ("claim", "queued > running"),
        ("reclaim", "running > running"),
        ("succeed", "running > completed"),
        ("retry", "running > queued", {"due": "backoff"}),
        ("exhaust", "running > failed"),
        ("expire_at_cap", "running > failed"),
    ),
    counter=Counter("attempt", initial=0, on=("claim", "reclaim")),
    budget=Budget("max_attempts", default=5),
    # The letter of the document: jitter after the cap, so a delay may stand up to 30 % above it.
    backoff=Backoff(1_500, 60_000, Jitter("multiply", 0.7, 1.3)),
    lease=Lease(60_000, error={"type": "LeaseExpired", "message": "lease expired", "code": "LEASE_EXPIRED"}),
    retryable=Retryable("any"),
    views=(
        View(
            "tasks",
            "jobs",
            {
                "task_id": "id", "status": "state", "type": "type", "queue": "queue", "tenant_id": "tenant",
                "payload": "payload", "attempt": "counter", "max_attempts": "limit", "available_at": "due",
                "locked_by": "owner", "lock_expires_at": "lease_expires", "last_error": "error",
                "started_at": "first_started", "completed_at": "succeeded", "created_at": "created",
                "updated_at": "updated", "result": "result", "trace_id": "trace", "correlation_id": "correlation",
            },
            objects={
                "last_error": {
                    "ts": "error_ts", "message": "error_message", "code": "error_code", "stack": "error_stack",
                    "attempt": "error_attempt", "max_attempts": "error_limit", "terminal": "error_terminal",
                    "backoff_ms": "error_delay_ms", "next_available_at": "error_due",
                }
            },
        ),
        View(
            "task_events",
            "events",
            {
                "id": "id", "kind": "name", "task_id": "job_id", "run_id": "run", "actor": "actor", "ts": "ts",
                "payload": "payload",
            },
        ),
    ),
    events=(
        Event("task.running", ("claim", "reclaim"), {**_RUN, "max_attempts": "limit"}),
        Event("task.completed", ("succeed",), _RUN),
        Event("task.failed", ("retry",), {**_FAILED, "backoff_ms": "delay_ms"}),
        Event("task.requeued", ("retry",), {**_RUN, "max_attempts": "limit", "available_at": "due"}),
        Event("task.failed", ("exhaust", "expire_at_cap"), _FAILED),
    ),
    knobs={
        "TASK_LOCK_MS": "lease_ms",
        "TASK_MAX_ATTEMPTS": "max_attempts",
        "TASK_RETRY_BASE_MS": "backoff_base_ms",
        "TASK_RETRY_CAP_MS": "backoff_cap_ms",
    },
)  # fmt: skip
