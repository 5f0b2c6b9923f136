"""The pairs of states that documents 002 and 004 allow, and jobs that stand in any of their states."""

from __future__ import annotations

from uuid import uuid4

from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

TRANSIENT = Failure("try again", retryable=True)
FATAL = Failure("broken", type="PermanentError", retryable=False)

#: Document 004's eight pairs; document 002's, of which running -> queued is the system's alone.
ALLOWED = {
    "gate_b2": {
        ("queued", "running"), ("running", "succeeded"), ("running", "retrying"), ("running", "dlq_pending"),
        ("retrying", "running"), ("retrying", "dlq_pending"), ("dlq_pending", "dlq_recorded"),
        ("dlq_recorded", "failed"),
    },
    "reliability": {
        ("queued", "assigned"), ("assigned", "running"), ("running", "succeeded"), ("running", "failed"),
        *((state, end) for state in ("queued", "assigned", "running") for end in ("cancelled", "dead_lettered")),
    },
}  # fmt: skip


async def job_in(store: Store, db: Harness, contract: str, state: str) -> int:
    """A job that stands in this state."""
    queue = uuid4().hex
    made = await store.enqueue(NewJob("t", contract=contract, queue=queue))
    if state == "queued":
        return made.job_id
    (job,) = await store.claim(contract, [queue], worker="w1")
    if state != "assigned":
        await store.start(job.held)
    if state == "succeeded":
        await store.succeed(job.held)
    elif state in ("retrying",):
        await store.fail(job.held, TRANSIENT)
        db.due(job.id)
    elif state == "failed":
        await store.fail(job.held, FATAL)
    elif state == "cancelled":
        await store.cancel(job.id, mode="hard", actor="ada")
    elif state == "dead_lettered":
        await store.dead_letter(job.id, reason_code="policy_violation", actor="ada")
    elif state.startswith("dlq"):  # a commit point, where only a crash leaves a job
        db.sql(
            "update tenure.job set state = %s, role = 'settling', lease_token = null, lease_owner = null, "
            "lease_expires_at = null where id = %s", state, job.id,
        )  # fmt: skip
    return made.job_id
