"""`gate_b2`: document 004. Tenants, three fixed retries, and a dead-letter record before every failed state."""

from __future__ import annotations

from tenure.contracts.declaration import Contract, DeadLetterRules, Retryable
from tenure.contracts.notation import event, path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Jitter, Lease

GATE_B2 = Contract(
    name="gate_b2",
    version="2026.02.21-r3",
    title="Job system and retry specification, Gate B-2 (document 004)",
    states=states(
        queued="ready", running="active", retrying="ready", succeeded="done", dlq_pending="settling",
        dlq_recorded="settling", failed="done",
    ),
    initial="queued",
    paths=(
        path("claim", "queued|retrying > running"),
        path("succeed", "running > succeeded"),
        path("retry", "running > retrying", due="backoff"),
        # The commit point: dlq_pending is visible to every session before the record is written.
        path("exhaust", "running > dlq_pending"),
        path("fatal", "running > dlq_pending"),
        path("expire", "running > retrying", due="backoff"),
        path("expire_at_cap", "running > dlq_pending"),
        path("dead_letter", "running|retrying > dlq_pending"),
        path("settle", "dlq_pending > dlq_recorded > failed", letter="exhausted_retries"),
        path("settle", "dlq_recorded > failed", letter="exhausted_retries"),
    ),
    counter=Counter("retry_count", initial=0, on=("retry", "expire")),
    budget=Budget("max_retries", default=3, minimum=3, maximum=3, extra=1),
    backoff=Backoff(base_seconds=1, cap_seconds=30, jitter=Jitter(form="add", low=0, high=300)),
    lease=Lease(
        seconds=60, error={"type": "WorkerLost", "message": "the worker was lost", "code": "WORKER_LOST"}
    ),
    retryable=Retryable("flag"),
    dead_letters=DeadLetterRules("staged", reviewers=2),
    execution_key="counter",
    invalid_transition="WF_STATE_TRANSITION_INVALID",
    views=(
        view("jobs", "jobs",
            "job_id=id tenant_id=tenant job_type=type status=state retry_count=counter idempotency_key=key "
            "trace_id=trace error_code payload_json=payload created_at=created updated_at=updated "
            "next_retry_at=due_until_run source_dlq_id=origin_letter"
        ),
        view("dlq_items", "letters",
            "dlq_id=id tenant_id=tenant job_id error_class error_code payload_json=payload context_json=context "
            "status first_failed_at=failed created_at=created updated_at=updated"
        ),
        view("replay_records", "events",
            "job_id seq ts trace_id=trace retry_count=counter status_transition=transition"
        ),
    ),
    events=(
        event("transition", "claim succeed retry exhaust fatal expire expire_at_cap dead_letter settle",
            "trace_id=trace job_id=job_id_text retry_count=counter status_transition=transition"
        ),
    ),
    knobs={
        "WORKER_MAX_RETRIES": "max_attempts",
        "WORKER_RETRY_BACKOFF_BASE_MS": "backoff_base_ms",
        "WORKER_RETRY_BACKOFF_MAX_MS": "backoff_cap_ms",
    },
    alerts={
        "retrying_ratio": {"max": 0.2, "window_s": 300},
        "tenant_dlq_pending": {"max": 10, "window_s": 300},
        "invalid_transitions": {"in_a_row": 5, "window_s": 60, "severity": "P1"},
    },
)  # fmt: skip
