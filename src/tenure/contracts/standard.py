"""`standard`: what a new user gets. Retries, soft and hard cancel, snooze, dead letters; the fastest path."""

from __future__ import annotations

from tenure.contract import (
    Backoff,
    Budget,
    Contract,
    Counter,
    DeadLetters,
    Event,
    Jitter,
    Lease,
    Retryable,
    Verdict,
    View,
    paths,
    states,
)  # fmt: skip

_STATES = states(queued="ready", running="active", succeeded="done", cancelled="done", dead="done")

STANDARD = Contract(
    name="standard",
    version="1",
    title="Tenure's own: queued, running, then succeeded, cancelled or dead",
    states=_STATES,
    initial="queued",
    paths=paths(
        _STATES,
        ("claim", "queued > running"),
        ("succeed", "running > succeeded"),
        ("retry", "running > queued", {"due": "backoff"}),
        ("exhaust", "running > dead", {"letter": "exhausted_retries"}),
        ("fatal", "running > dead", {"letter": "permanent_error"}),
        ("expire", "running > queued", {"due": "now"}),
        ("expire_at_cap", "running > dead", {"letter": "worker_lost"}),
        ("snooze", "running > queued", {"due": "given"}),
        ("hand_back", "running > queued", {"due": "given"}),
        ("cancel", "queued|running > cancelled"),
        ("dead_letter", "queued|running > dead", {"letter": "operator"}),
    ),
    counter=Counter("attempt", initial=0, on=("claim",)),
    budget=Budget("max_attempts", default=5),
    backoff=Backoff(1_000, 600_000, Jitter("multiply", 0.75, 1.25), cap_after_jitter=True),
    lease=Lease(30_000, error={"type": "LeaseExpired", "message": "the worker was lost", "code": "WORKER_LOST"}),
    retryable=Retryable(
        "class",
        {
            "PermanentError": Verdict("fatal", "permanent_error"),
            "ValidationError": Verdict("fatal", "validation_failed"),
        },
    ),
    dead_letters=DeadLetters("record"),
    cancel_modes=("soft", "hard"),
    facts=("cancel_requested",),
    views=(
        View(
            "jobs",
            "jobs",
            {
                "id": "id", "queue": "queue", "type": "type", "tenant_id": "tenant", "state": "state",
                "attempt": "counter", "max_attempts": "limit", "priority": "priority", "payload": "payload",
                "due_at": "due", "lease_owner": "owner", "lease_expires_at": "lease_expires",
                "started_at": "last_started", "finished_at": "finished", "created_at": "created",
                "updated_at": "updated", "last_error": "error", "result": "result", "idempotency_key": "key",
                "trace_id": "trace", "correlation_id": "correlation", "cancel_requested_at": "cancel_requested",
                "progress": "progress", "checkpoint": "checkpoint", "origin_dead_letter": "origin_letter",
            },
        ),
        View(
            "events",
            "events",
            {
                "job_id": "job_id", "seq": "seq", "ts": "ts", "type": "name", "from_state": "from_state",
                "to_state": "to_state", "attempt": "counter", "actor": "actor", "payload": "payload",
            },
        ),
        View(
            "dead_letters",
            "letters",
            {
                "id": "id", "job_id": "job_id", "tenant_id": "tenant", "type": "type", "reason_code": "reason",
                "stage": "stage", "last_error": "error", "attempts": "counter", "last_owner": "last_owner",
                "last_lease_expires_at": "last_lease_expires", "correlation_id": "correlation",
                "payload": "payload", "status": "status", "created_at": "created", "updated_at": "updated",
            },
        ),
    ),
    events=(
        Event("claimed", ("claim",), {}),
        Event("succeeded", ("succeed",), {}),
        Event("retried", ("retry",), {"reason": "reason", "error": "error", "delay_ms": "delay_ms", "due_at": "due"}),
        Event("dead", ("exhaust", "fatal", "expire_at_cap", "dead_letter"), {"reason": "reason", "error": "error"}),
        Event("expired", ("expire",), {"reason": "reason"}),
        Event("snoozed", ("snooze",), {"due_at": "due"}),
        Event("handed_back", ("hand_back",), {"due_at": "due"}),
        Event("cancelled", ("cancel",), {"reason": "reason"}),
        Event("cancel_requested", ("cancel_requested",), {"reason": "reason"}),
    ),
)  # fmt: skip
