"""`reliability`: document 002. Assigned before running, monotonic inside an attempt, leases forfeited at expiry."""

from __future__ import annotations

from tenure.contracts.declaration import Contract, DeadLetterRules, Retryable, RetryVerdict
from tenure.contracts.notation import event, path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Heartbeat, Jitter, Lease

#: Keys that every event of the document has.
_WHY = "reason attempt=counter from=from_state to=to_state trace_id=trace"

RELIABILITY = Contract(
    name="reliability",
    version="1",
    title="Job state machine v1: distributed reliability (document 002)",
    states=states(
        queued="ready", assigned="leased", running="active", succeeded="done", failed="done", cancelled="done",
        dead_lettered="done",
    ),
    initial="queued",
    paths=(
        path("claim", "queued > assigned"),
        path("start", "assigned > running"),
        path("succeed", "running > succeeded"),
        # Only the end of an attempt (an epoch) leads back to queued; no request can do it.
        path("retry", "running > queued", due="backoff"),
        path("exhaust", "running > dead_lettered", letter="exhausted_retries"),
        path("exhaust", "running > failed", choice="failed"),
        path("fatal", "running > failed"),
        path("expire", "assigned|running > queued", due="now"),
        path("expire_at_cap", "assigned|running > dead_lettered", letter="timeout"),
        path("cancel", "queued|assigned|running > cancelled"),
        path("dead_letter", "queued|assigned|running > dead_lettered", letter="policy_violation"),
        path("compensation_failed", "assigned|running > dead_lettered", letter="compensation_failed"),
    ),
    counter=Counter("attempts", initial=0, on=("claim",)),
    budget=Budget("max_attempts", default=3),
    backoff=Backoff(
        base_seconds=0.5, cap_seconds=60, jitter=Jitter(form="multiply", low=0.5, high=1.5), cap_after_jitter=True
    ),
    lease=Lease(
        seconds=60,
        minimum_seconds=30,
        maximum_seconds=120,
        after_expiry="forfeited",
        error={"type": "LeaseExpired", "message": "the lease expired", "code": "lease_expired"},
        heartbeat=Heartbeat(seconds=15, minimum_seconds=10, maximum_seconds=30, missed=2),
        closed_by_claim=True,
    ),
    retryable=Retryable("class", {
        "TransientError": RetryVerdict("retry"),
        "PermanentError": RetryVerdict("fatal"),
        "ValidationError": RetryVerdict("dead_letter", "validation_failed"),
        "PolicyViolation": RetryVerdict("dead_letter", "policy_violation"),
        # These are retried. After the last attempt, the reason becomes the dead letter's reason.
        "DependencyUnavailable": RetryVerdict("retry", "dependency_unavailable"),
        "InfrastructureFailure": RetryVerdict("retry", "infrastructure_failure"),
        "TimeoutError": RetryVerdict("retry", "timeout"),
    }),
    dead_letters=DeadLetterRules(
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
        view("jobs", "jobs",
            "job_id=id status=state type queue tenant_id=tenant payload attempts=counter max_attempts=limit "
            "due_at=due owner lease_expires_at=lease_expires last_heartbeat_at=last_heartbeat "
            "started_at=last_started finished_at=finished created_at=created updated_at=updated last_error=error "
            "result idempotency_key=key trace_id=trace correlation_id=correlation "
            "cancel_requested_at=cancel_requested checkpoint"
        ),
        view("job_events", "events",
            "id job_id type=name ts actor correlation_id=correlation cause payload version trace_id=trace"
        ),
        view("dead_letters", "letters",
            "id job_id tenant_id=tenant type reason_code=reason stage last_error=error attempts=counter last_owner "
            "last_lease_expires_at=last_lease_expires correlation_id=correlation trace_id=trace payload status "
            "created_at=created"
        ),
    ),
    events=(
        event("job_claimed", "claim", _WHY),
        event("job_started", "start", _WHY),
        event("job_succeeded", "succeed", _WHY),
        event("job_failed", "fatal exhaust>failed", f"{_WHY} error"),
        event("job_cancelled", "cancel", _WHY),
        event("job_dead_lettered", "exhaust expire_at_cap dead_letter compensation_failed", f"{_WHY} error"),
        # The document has no event for this; its own rule allows additive extensions.
        event("job_requeued", "retry expire", f"{_WHY} error delay_ms"),
        event("job_heartbeat", "heartbeat", _WHY, fades=True),
        event("job_lease_renewed", "renewed", _WHY, fades=True),
        event("job_compensated", "compensated", _WHY),
    ),
)  # fmt: skip
