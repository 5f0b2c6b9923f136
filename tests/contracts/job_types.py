"""What the tests of job types share: jobs in a queue of their own type, taken, failed, and looked at on their rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.harness import Harness

#: Every contract takes this failure for one that may work next time.
TRANSIENT = Failure("no answer", type="TransientError", retryable=True)


async def make(store: Store, contract: str, kind: str, **given: Any) -> int:
    """A job of this type, in the queue of that name; its id."""
    return (await store.enqueue(NewJob(kind, contract=contract, queue=kind, **given))).job_id


async def take(store: Store, contract: str, kind: str, **options: Any) -> Job:
    """The one job of this type that is due, claimed and, where the contract has that step, started."""
    (job,) = await store.claim(contract, [kind], worker="w1", **options)
    await store.start(job.held)
    return job


async def take_by_id(store: Store, contract: str, job_id: int, **options: Any) -> Job:
    """The same by its id."""
    (job,) = await store.claim_by_id([job_id], contract=contract, worker="w1", **options)
    assert isinstance(job, Job)
    await store.start(job.held)
    return job


async def made_and_taken(store: Store, contract: str, kind: str, **given: Any) -> Job:
    """A new job of this type in the hands of its handler."""
    await make(store, contract, kind, **given)
    return await take(store, contract, kind)


async def fail_to_the_end(store: Store, db: Harness, contract: str, kind: str, job_id: int) -> list[Moved]:
    """Let every run fail, without waiting for the backoff, until the job runs no more; the answers."""
    answers: list[Moved] = []
    while not answers or answers[-1].will_retry:
        db.due(job_id)
        await store.promote(contract)
        answers.append(await store.fail((await take(store, contract, kind)).held, TRANSIENT))
    return answers


def lease(db: Harness, job_id: int) -> timedelta:
    """How long the job's lease was, from its claim on."""
    row = db.row(job_id)
    length: timedelta = row["lease_expires_at"] - row["started_at"]
    return length


def left(db: Harness, job_id: int, seconds: float) -> None:
    """Let so many seconds of the lease be left."""
    db.sql("update tenure.job set lease_expires_at = now() + make_interval(secs => %s) where id = %s", seconds, job_id)


def beat(db: Harness, job_id: int, seconds_ago: float) -> None:
    """Let the holder's last beat be so long ago."""
    db.sql("update tenure.job set last_heartbeat_at = now() - make_interval(secs => %s) where id = %s", seconds_ago,
           job_id)  # fmt: skip
