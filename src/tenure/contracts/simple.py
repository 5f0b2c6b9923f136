"""`simple`: document 003. Five statuses; the queue alone decides retries; every failure passes through FAILED."""

from __future__ import annotations

from tenure.contracts import declaration as declare

_STATES = declare.states(PENDING="ready", RUNNING="active", SUCCESS="done", FAILED="settling done", CANCELLED="done")

SIMPLE = declare.Contract(
    name="simple",
    version="1",
    title="Task queue core: PENDING, RUNNING, SUCCESS, FAILED, CANCELLED (document 003)",
    states=_STATES,
    initial="PENDING",
    paths=declare.paths(
        _STATES,
        ("claim", "PENDING > RUNNING"),
        ("succeed", "RUNNING > SUCCESS"),
        ("retry", "RUNNING > FAILED:settling > PENDING", {"due": "backoff"}),
        ("exhaust", "RUNNING > FAILED:done"),
        ("expire", "RUNNING > FAILED:settling > PENDING", {"due": "backoff"}),
        ("expire_at_cap", "RUNNING > FAILED:done"),
        ("cancel", "PENDING|RUNNING > CANCELLED"),
    ),
    counter=declare.Counter("attempts", initial=0, on=("claim",)),
    # `max_retries` is the document's word for executions: 0 and 1 both give one.
    budget=declare.Budget("max_retries", default=3, minimum=0),
    backoff=declare.Backoff(base_ms=1_000, cap_ms=60_000, jitter=declare.Jitter(form="multiply", low=0.75, high=1.25)),
    lease=declare.Lease(
        default_ms=60_000, error={"type": "WorkerLost", "message": "worker lost", "code": "WORKER_LOST"}
    ),
    retryable=declare.Retryable("any"),
    cancel_modes=("soft",),
    views=(
        declare.view("tasks", "jobs",
            "id status=state type queue tenant_id=tenant payload attempts=counter max_retries=limit eta=due error "
            "created_at=created updated_at=updated last_attempt_at=last_started trace_id=trace "
            "correlation_id=correlation"
        ),
        declare.view("task_results", "finished",
            "task_id=id status=state result error=final_error attempts=counter finished_at=finished "
            "last_attempt_at=last_started"
        ),
    ),
)  # fmt: skip
