"""`standard`: the default contract. Retries, soft and hard cancel, snooze, dead letters; the fastest path."""

from __future__ import annotations

from tenure.contracts.declaration import Contract, DeadLetterRules, Retryable, RetryVerdict
from tenure.contracts.notation import event, path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Jitter, Lease

STANDARD = Contract(
    name="standard",
    version="1",
    title="Tenure's own: queued, running, then succeeded, cancelled or dead",
    states=states(queued="ready", running="active", succeeded="done", cancelled="done", dead="done"),
    initial="queued",
    paths=(
        path("claim", "queued > running"),
        path("succeed", "running > succeeded"),
        path("retry", "running > queued", due="backoff"),
        path("exhaust", "running > dead", letter="exhausted_retries"),
        path("fatal", "running > dead", letter="permanent_error"),
        path("expire", "running > queued", due="now"),
        path("expire_at_cap", "running > dead", letter="worker_lost"),
        path("snooze", "running > queued", due="given"),
        path("hand_back", "running > queued", due="given"),
        path("cancel", "queued|running > cancelled"),
        path("dead_letter", "queued|running > dead", letter="operator"),
    ),
    counter=Counter("attempt", initial=0, on=("claim",)),
    budget=Budget("max_attempts", default=5),
    backoff=Backoff(
        base_seconds=1, cap_seconds=600, cap_after_jitter=True,
        jitter=Jitter(form="multiply", low=0.75, high=1.25),
    ),
    lease=Lease(
        seconds=30, error={"type": "LeaseExpired", "message": "the worker was lost", "code": "WORKER_LOST"}
    ),
    retryable=Retryable("class", {
        "PermanentError": RetryVerdict("fatal", "permanent_error"),
        "ValidationError": RetryVerdict("fatal", "validation_failed"),
    }),
    dead_letters=DeadLetterRules("record"),
    cancel_modes=("soft", "hard"),
    facts=("cancel_requested",),
    views=(
        view("jobs", "jobs",
            "id queue type tenant_id=tenant state attempt=counter max_attempts=limit priority payload due_at=due "
            "lease_owner=owner lease_expires_at=lease_expires started_at=last_started finished_at=finished "
            "created_at=created updated_at=updated last_error=error result idempotency_key=key trace_id=trace "
            "correlation_id=correlation cancel_requested_at=cancel_requested progress checkpoint "
            "origin_dead_letter=origin_letter"
        ),
        view("events", "events", "job_id seq ts type=name from_state to_state attempt=counter actor payload"),
        view("dead_letters", "letters",
            "id job_id tenant_id=tenant type reason_code=reason stage last_error=error attempts=counter last_owner "
            "last_lease_expires_at=last_lease_expires correlation_id=correlation payload status created_at=created "
            "updated_at=updated"
        ),
    ),
    events=(
        event("claimed", "claim"),
        event("succeeded", "succeed"),
        event("retried", "retry", "reason error delay_ms due_at=due"),
        event("dead", "exhaust fatal expire_at_cap dead_letter", "reason error"),
        event("expired", "expire", "reason"),
        event("snoozed", "snooze", "due_at=due"),
        event("handed_back", "hand_back", "due_at=due"),
        event("cancelled", "cancel", "reason"),
        event("cancel_requested", "cancel_requested", "reason"),
    ),
)  # fmt: skip
