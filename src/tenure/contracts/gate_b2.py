"""`gate_b2`: document 004. Tenants, three fixed retries, and a dead-letter record before every failed state."""

from __future__ import annotations

from tenure.contracts import declaration as declare

_STATES = declare.states(
    queued="ready", running="active", retrying="ready", succeeded="done", dlq_pending="settling",
    dlq_recorded="settling", failed="done",
)  # fmt: skip

GATE_B2 = declare.Contract(
    name="gate_b2",
    version="2026.02.21-r3",
    title="Job system and retry specification, Gate B-2 (document 004)",
    states=_STATES,
    initial="queued",
    paths=declare.paths(
        _STATES,
        ("claim", "queued|retrying > running"),
        ("succeed", "running > succeeded"),
        ("retry", "running > retrying", {"due": "backoff"}),
        # The commit point: dlq_pending is visible to every session before the record is written.
        ("exhaust", "running > dlq_pending"),
        ("fatal", "running > dlq_pending"),
        ("expire", "running > retrying", {"due": "backoff"}),
        ("expire_at_cap", "running > dlq_pending"),
        ("dead_letter", "running|retrying > dlq_pending"),
        ("settle", "dlq_pending > dlq_recorded > failed", {"letter": "exhausted_retries"}),
        ("settle", "dlq_recorded > failed", {"letter": "exhausted_retries"}),
    ),
    counter=declare.Counter("retry_count", initial=0, on=("retry", "expire")),
    budget=declare.Budget("max_retries", default=3, minimum=3, maximum=3, extra=1),
    backoff=declare.Backoff(base_ms=1_000, cap_ms=30_000, jitter=declare.Jitter(form="add", low=0, high=300)),
    lease=declare.Lease(
        default_ms=60_000, error={"type": "WorkerLost", "message": "the worker was lost", "code": "WORKER_LOST"}
    ),
    retryable=declare.Retryable("flag"),
    dead_letters=declare.DeadLetterRules("staged", reviewers=2),
    execution_key="counter",
    invalid_transition="WF_STATE_TRANSITION_INVALID",
    views=(
        declare.view("jobs", "jobs",
            "job_id=id tenant_id=tenant job_type=type status=state retry_count=counter idempotency_key=key "
            "trace_id=trace error_code payload_json=payload created_at=created updated_at=updated "
            "next_retry_at=due_until_run source_dlq_id=origin_letter"
        ),
        declare.view("dlq_items", "letters",
            "dlq_id=id tenant_id=tenant job_id error_class error_code payload_json=payload context_json=context "
            "status first_failed_at=failed created_at=created updated_at=updated"
        ),
        declare.view("replay_records", "events",
            "job_id seq ts trace_id=trace retry_count=counter status_transition=transition"
        ),
    ),
    events=(
        declare.event("transition", "claim succeed retry exhaust fatal expire expire_at_cap dead_letter settle",
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
