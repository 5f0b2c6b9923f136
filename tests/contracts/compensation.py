"""What the tests of compensation share: a two-step handler that fails at its second step, and what is seen of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tenure.jobs.job import Failure, Job
from tenure.postgres.store import Store
from tests.contracts.reliability import INVALID, PERMANENT, TRANSIENT, make, running
from tests.harness import Harness


class Ending(NamedTuple):
    """A way for a job to end badly in its holder's hands: on which budget, by which failure, and where that leads."""

    max_attempts: int
    failure: Failure
    state: str
    reason: str | None
    #: Whether the holder was asked to stop before.
    asked: bool = False


ENDINGS = {
    "exhausted": Ending(1, TRANSIENT, "dead_lettered", "exhausted_retries"),
    "permanent": Ending(3, PERMANENT, "failed", None),
    "invalid": Ending(3, INVALID, "dead_lettered", "validation_failed"),
    "asked to stop": Ending(3, TRANSIENT, "cancelled", None, asked=True),
}

REFUND_REFUSED = Failure("the bank refused the refund", type="PermanentError", code="NO_REFUND", stage="commit")


async def worked(store: Store, *nodes: str, **given: Any) -> Job:
    """A running job whose nodes (charge, then ship) have had their effects, which can be undone."""
    await make(store, **given)
    job = await running(store)
    for node in nodes or ("charge", "ship"):
        assert (await store.effect(job.held, node, {"of": node}, compensable=True)).recorded
    return job


async def compensating(store: Store, failure: Failure = PERMANENT, **given: Any) -> Job:
    """A job that has failed for good and whose effects are to be undone."""
    job = await worked(store, **given)
    assert (await store.fail(job.held, failure)).compensate == ("ship", "charge")
    return job


async def ended_badly(store: Store, ending: Ending) -> Job:
    """A job whose holder was told, at this ending, which effects to undo."""
    job = await worked(store, max_attempts=ending.max_attempts)
    if ending.asked:
        await store.cancel(job.id, actor="ada")
    assert (await store.fail(job.held, ending.failure)).compensate == ("ship", "charge")
    return job


def undone(db: Harness, job_id: int) -> dict[str, bool]:
    """Which of the job's effects are undone, oldest first."""
    rows = db.sql("select node, compensated_at from tenure.effect where job_id = %s order by at", job_id)
    return {row["node"]: row["compensated_at"] is not None for row in rows}


def everything(db: Harness, job_id: int) -> list[dict[str, Any]]:
    """What a call without effect leaves as it was, the effects included."""
    effects = db.sql("select xmin::text, * from tenure.effect where job_id = %s order by node", job_id)
    return db.fingerprint(job_id) + effects
