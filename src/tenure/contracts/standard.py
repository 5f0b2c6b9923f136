"""`standard`: the default contract. Retries, soft and hard cancel, snooze, dead letters; the fastest path."""

from __future__ import annotations

from tenure.contracts import declaration as declare

_STATES = declare.states(queued="ready", running="active", succeeded="done", cancelled="done", dead="done")

STANDARD = declare.Contract(
    name="standard",
    version="1",
    title="Tenure's own: queued, running, then succeeded, cancelled or dead",
    states=_STATES,
    initial="queued",
    paths=declare.paths(
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
    counter=declare.Counter("attempt", initial=0, on=("claim",)),
    budget=declare.Budget("max_attempts", default=5),
    backoff=declare.Backoff(
        base_ms=1_000, cap_ms=600_000, cap_after_jitter=True,
        jitter=declare.Jitter(form="multiply", low=0.75, high=1.25),
    ),
    lease=declare.Lease(
        default_ms=30_000, error={"type": "LeaseExpired", "message": "the worker was lost", "code": "WORKER_LOST"}
    ),
    retryable=declare.Retryable("class", {
        "PermanentError": declare.RetryVerdict("fatal", "permanent_error"),
        "ValidationError": declare.RetryVerdict("fatal", "validation_failed"),
    }),
    dead_letters=declare.DeadLetterRules("record"),
    cancel_modes=("soft", "hard"),
    facts=("cancel_requested",),
    views=(
        declare.view("jobs", "jobs",
            "id queue type tenant_id=tenant state attempt=counter max_attempts=limit priority payload due_at=due "
            "lease_owner=owner lease_expires_at=lease_expires started_at=last_started finished_at=finished "
            "created_at=created updated_at=updated last_error=error result idempotency_key=key trace_id=trace "
            "correlation_id=correlation cancel_requested_at=cancel_requested progress checkpoint "
            "origin_dead_letter=origin_letter"
        ),
        declare.view("events", "events", "job_id seq ts type=name from_state to_state attempt=counter actor payload"),
        declare.view("dead_letters", "letters",
            "id job_id tenant_id=tenant type reason_code=reason stage last_error=error attempts=counter last_owner "
            "last_lease_expires_at=last_lease_expires correlation_id=correlation payload status created_at=created "
            "updated_at=updated"
        ),
    ),
    events=(
        declare.event("claimed", "claim"),
        declare.event("succeeded", "succeed"),
        declare.event("retried", "retry", "reason error delay_ms due_at=due"),
        declare.event("dead", "exhaust fatal expire_at_cap dead_letter", "reason error"),
        declare.event("expired", "expire", "reason"),
        declare.event("snoozed", "snooze", "due_at=due"),
        declare.event("handed_back", "hand_back", "due_at=due"),
        declare.event("cancelled", "cancel", "reason"),
        declare.event("cancel_requested", "cancel_requested", "reason"),
    ),
)  # fmt: skip
