"""`reliability`: document 002. Assigned before running, monotonic inside an attempt, leases forfeited at expiry."""

from __future__ import annotations

from tenure.contracts import declaration as declare

_STATES = declare.states(
    queued="ready", assigned="leased", running="active", succeeded="done", failed="done", cancelled="done",
    dead_lettered="done",
)  # fmt: skip

#: Keys that every event of the document has.
_WHY = "reason attempt=counter from=from_state to=to_state trace_id=trace"

RELIABILITY = declare.Contract(
    name="reliability",
    version="1",
    title="Job state machine v1: distributed reliability (document 002)",
    states=_STATES,
    initial="queued",
    paths=declare.paths(
        _STATES,
        ("claim", "queued > assigned"),
        ("start", "assigned > running"),
        ("succeed", "running > succeeded"),
        # Only the end of an attempt (an epoch) leads back to queued; no request can do it.
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
    counter=declare.Counter("attempts", initial=0, on=("claim",)),
    budget=declare.Budget("max_attempts", default=3),
    backoff=declare.Backoff(
        base_ms=500, cap_ms=60_000, jitter=declare.Jitter(form="multiply", low=0.5, high=1.5), cap_after_jitter=True
    ),
    lease=declare.Lease(
        default_ms=60_000,
        minimum_ms=30_000,
        maximum_ms=120_000,
        after_expiry="forfeited",
        error={"type": "LeaseExpired", "message": "the lease expired", "code": "lease_expired"},
        heartbeat=declare.Heartbeat(default_ms=15_000, minimum_ms=10_000, maximum_ms=30_000, missed=2),
        closed_by_claim=True,
    ),
    retryable=declare.Retryable("class", {
        "TransientError": declare.RetryVerdict("retry"),
        "PermanentError": declare.RetryVerdict("fatal"),
        "ValidationError": declare.RetryVerdict("dead_letter", "validation_failed"),
        "PolicyViolation": declare.RetryVerdict("dead_letter", "policy_violation"),
        # These are retried. After the last attempt, the reason becomes the dead letter's reason.
        "DependencyUnavailable": declare.RetryVerdict("retry", "dependency_unavailable"),
        "InfrastructureFailure": declare.RetryVerdict("retry", "infrastructure_failure"),
        "TimeoutError": declare.RetryVerdict("retry", "timeout"),
    }),
    dead_letters=declare.DeadLetterRules(
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
        declare.view("jobs", "jobs",
            "job_id=id status=state type queue tenant_id=tenant payload attempts=counter max_attempts=limit "
            "due_at=due owner lease_expires_at=lease_expires last_heartbeat_at=last_heartbeat "
            "started_at=last_started finished_at=finished created_at=created updated_at=updated last_error=error "
            "result idempotency_key=key trace_id=trace correlation_id=correlation "
            "cancel_requested_at=cancel_requested checkpoint"
        ),
        declare.view("job_events", "events",
            "id job_id type=name ts actor correlation_id=correlation cause payload version trace_id=trace"
        ),
        declare.view("dead_letters", "letters",
            "id job_id tenant_id=tenant type reason_code=reason stage last_error=error attempts=counter last_owner "
            "last_lease_expires_at=last_lease_expires correlation_id=correlation trace_id=trace payload status "
            "created_at=created"
        ),
    ),
    events=(
        declare.event("job_claimed", "claim", _WHY),
        declare.event("job_started", "start", _WHY),
        declare.event("job_succeeded", "succeed", _WHY),
        declare.event("job_failed", "fatal exhaust>failed", f"{_WHY} error"),
        declare.event("job_cancelled", "cancel", _WHY),
        declare.event("job_dead_lettered", "exhaust expire_at_cap dead_letter compensation_failed", f"{_WHY} error"),
        # The document has no event for this; its own rule allows additive extensions.
        declare.event("job_requeued", "retry expire", f"{_WHY} error delay_ms"),
        declare.event("job_heartbeat", "heartbeat", _WHY, fades=True),
        declare.event("job_lease_renewed", "renewed", _WHY, fades=True),
        declare.event("job_compensated", "compensated", _WHY),
    ),
)  # fmt: skip
