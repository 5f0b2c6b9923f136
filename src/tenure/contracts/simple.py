"""`simple`: document 003. Five statuses; the queue alone decides retries; every failure passes through FAILED."""

from __future__ import annotations

from tenure.contracts.declaration import Contract, Retryable
from tenure.contracts.notation import path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Jitter, Lease

SIMPLE = Contract(
    name="simple",
    version="1",
    title="Task queue core: PENDING, RUNNING, SUCCESS, FAILED, CANCELLED (document 003)",
    states=states(PENDING="ready", RUNNING="active", SUCCESS="done", FAILED="settling done", CANCELLED="done"),
    initial="PENDING",
    paths=(
        path("claim", "PENDING > RUNNING"),
        path("succeed", "RUNNING > SUCCESS"),
        path("retry", "RUNNING > FAILED:settling > PENDING", due="backoff"),
        path("exhaust", "RUNNING > FAILED:done"),
        path("expire", "RUNNING > FAILED:settling > PENDING", due="backoff"),
        path("expire_at_cap", "RUNNING > FAILED:done"),
        path("cancel", "PENDING|RUNNING > CANCELLED"),
    ),
    counter=Counter("attempts", initial=0, on=("claim",)),
    # `max_retries` is the document's word for executions: 0 and 1 both give one.
    budget=Budget("max_retries", default=3, minimum=0),
    backoff=Backoff(base_seconds=1, cap_seconds=60, jitter=Jitter(form="multiply", low=0.75, high=1.25)),
    lease=Lease(
        seconds=60, error={"type": "WorkerLost", "message": "worker lost", "code": "WORKER_LOST"}
    ),
    retryable=Retryable("any"),
    cancel_modes=("soft",),
    early_retry=False,  # "MUST NOT make the task due before the new eta"
    views=(
        view("tasks", "jobs",
            "id status=state type queue tenant_id=tenant payload attempts=counter max_retries=limit eta=due error "
            "created_at=created updated_at=updated last_attempt_at=last_started trace_id=trace "
            "correlation_id=correlation"
        ),
        view("task_results", "finished",
            "task_id=id status=state result error=final_error attempts=counter finished_at=finished "
            "last_attempt_at=last_started"
        ),
    ),
)  # fmt: skip
