"""`reliability`: document 002. Assigned before running, monotonic inside an attempt, leases forfeited at expiry."""

from __future__ import annotations

from tenure.contract import (
    Backoff,
    Budget,
    Contract,
    Counter,
    DeadLetters,
    Event,
    Heartbeat,
    Jitter,
    Lease,
    Retryable,
    Verdict,
    View,
    paths,
    states,
)  # fmt: skip

_STATES = states(
    queued="ready", assigned="leased", running="active", succeeded="done", failed="done", cancelled="done",
    dead_lettered="done",
)  # fmt: skip

_WHY = {"reason": "reason", "attempt": "counter", "from": "from_state", "to": "to_state", "trace_id": "trace"}

RELIABILITY = Contract(
    name="reliability",
    version="1",
    title="Job state machine v1: distributed reliability (document 002)",
    states=_STATES,
    initial="queued",
    paths=paths(
        _STATES,
        ("claim", "queued > assigned"),
        ("start", "assigned > running"),
        ("succeed", "running > succeeded"),
        # Back to queued only by closing the attempt (an epoch): no request can do it.
        ("retry", "running > queued", {"due": "backoff"}),
        ("exhaust", "running > dead_lettered", {"letter": "exhausted_retries"}),
        ("exhaust", "running > failed", {"choice": "failed"}),
        ("fatal", "running > failed"),
        ("expire", "assigned|running > queued", {"due": "now"}),
        ("expire_at_cap", "assigned|running > dead_lettered", {"letter": "timeout"}),
        ("cancel", "queued|assigned|running > cancelled"),
        ("dead_letter", "queued|assigned|running > dead_lettered", {"letter": "policy_violation"}),
        ("compensation_failed", "assigned|running > dead_lettered", {"letter": "compensation_failed"}),
    ),
    counter=Counter("attempts", initial=0, on=("claim",)),
    budget=Budget("max_attempts", default=3),
    backoff=Backoff(500, 60_000, Jitter("multiply", 0.5, 1.5), cap_after_jitter=True),
    lease=Lease(
        60_000,
        minimum_ms=30_000,
        maximum_ms=120_000,
        after_expiry="forfeited",
        error={"type": "LeaseExpired", "message": "the lease expired", "code": "lease_expired"},
        heartbeat=Heartbeat(15_000, minimum_ms=10_000, maximum_ms=30_000, missed=2),
        closed_by_claim=True,
    ),
    retryable=Retryable(
        "class",
        {
            "TransientError": Verdict("retry"),
            "PermanentError": Verdict("fatal"),
            "ValidationError": Verdict("dead_letter", "validation_failed"),
            "PolicyViolation": Verdict("dead_letter", "policy_violation"),
            # These are tried again; when the last attempt ends with one, it is the dead letter's reason.
            "DependencyUnavailable": Verdict("retry", "dependency_unavailable"),
            "InfrastructureFailure": Verdict("retry", "infrastructure_failure"),
            "TimeoutError": Verdict("retry", "timeout"),
        },
    ),
    dead_letters=DeadLetters(
        "record",
        reasons=(
            "parse_error", "validation_failed", "dependency_unavailable", "timeout", "exhausted_retries",
            "policy_violation", "infrastructure_failure", "compensation_failed",
        ),
        stages=("fetch", "input", "exec", "output", "commit"),
    ),
    cancel_modes=("soft", "hard"),
    closed_to_requests=("retry",),
    indexed_log=True,
    facts=("heartbeat", "renewed", "compensating", "compensated"),
    views=(
        View(
            "jobs",
            "jobs",
            {
                "job_id": "id", "status": "state", "type": "type", "queue": "queue", "tenant_id": "tenant",
                "payload": "payload", "attempts": "counter", "max_attempts": "limit", "due_at": "due",
                "owner": "owner", "lease_expires_at": "lease_expires", "last_heartbeat_at": "last_heartbeat",
                "started_at": "last_started", "finished_at": "finished", "created_at": "created",
                "updated_at": "updated", "last_error": "error", "result": "result", "idempotency_key": "key",
                "trace_id": "trace", "correlation_id": "correlation", "cancel_requested_at": "cancel_requested",
                "checkpoint": "checkpoint",
            },
        ),
        View(
            "job_events",
            "events",
            {
                "id": "id", "job_id": "job_id", "type": "name", "ts": "ts", "actor": "actor",
                "correlation_id": "correlation", "cause": "cause", "payload": "payload", "version": "version",
                "trace_id": "trace",
            },
        ),
        View(
            "dead_letters",
            "letters",
            {
                "id": "id", "job_id": "job_id", "tenant_id": "tenant", "type": "type", "reason_code": "reason",
                "stage": "stage", "last_error": "error", "attempts": "counter", "last_owner": "last_owner",
                "last_lease_expires_at": "last_lease_expires", "correlation_id": "correlation",
                "trace_id": "trace", "payload": "payload", "status": "status", "created_at": "created",
            },
        ),
    ),
    events=(
        Event("job_claimed", ("claim",), _WHY),
        Event("job_started", ("start",), _WHY),
        Event("job_succeeded", ("succeed",), _WHY),
        Event("job_failed", ("fatal", "exhaust>failed"), {**_WHY, "error": "error"}),
        Event("job_cancelled", ("cancel",), _WHY),
        Event(
            "job_dead_lettered",
            ("exhaust", "expire_at_cap", "dead_letter", "compensation_failed"),
            {**_WHY, "error": "error"},
        ),
        # The document has no word for it; its own rule allows additive extensions.
        Event("job_requeued", ("retry", "expire"), {**_WHY, "error": "error", "delay_ms": "delay_ms"}),
        Event("job_heartbeat", ("heartbeat",), _WHY, fades=True),
        Event("job_lease_renewed", ("renewed",), _WHY, fades=True),
        Event("job_compensated", ("compensated",), _WHY),
    ),
)  # fmt: skip
