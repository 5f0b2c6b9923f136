"""What the tests of contract `reliability` share: jobs, events and letters in the document's own words, and holders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tenure.contracts import BUILT_IN
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

RELIABILITY = BUILT_IN["reliability"]
TRANSIENT = Failure("the network went away", type="TransientError", code="NET_DOWN")
PERMANENT = Failure("no such account", type="PermanentError", code="NO_ACCOUNT")
INVALID = Failure("not a date", type="ValidationError", code="BAD_DATE", stage="input")


async def make(store: Store, **given: Any) -> int:
    """A job of this contract; its id."""
    return (await store.enqueue(NewJob("index", contract="reliability", **given))).job_id


async def assigned(store: Store, worker: str = "w1", **options: Any) -> Job:
    """The one job that is due, claimed."""
    (job,) = await store.claim("reliability", worker=worker, **options)
    return job


async def running(store: Store, worker: str = "w1", **options: Any) -> Job:
    """The one job that is due, claimed and started."""
    job = await assigned(store, worker, **options)
    await store.start(job.held)
    return job


def shown(db: Harness, job_id: int) -> dict[str, Any]:
    """The job in the document's own words."""
    return db.one("select * from tenure_reliability.jobs where job_id = %s", job_id)


def events(db: Harness, job_id: int) -> list[dict[str, Any]]:
    """The job's events in the document's own words, in the published order."""
    return db.sql("select * from tenure_reliability.job_events where job_id = %s order by ts, id", job_id)


def types(db: Harness, job_id: int) -> list[str]:
    """The types of the job's events, in order."""
    return [event["type"] for event in events(db, job_id)]


def letters(db: Harness, job_id: int) -> list[dict[str, Any]]:
    """The job's dead letters, at most one."""
    return db.sql("select * from tenure_reliability.dead_letters where job_id = %s", job_id)


@asynccontextmanager
async def stores(dsn: str, count: int) -> AsyncIterator[list[Store]]:
    """Several processes' stores: each with a connection of its own, open and warm."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Store.open(dsn, connections=1)) for _ in range(count)]
        for each in opened:
            await each.jobs([0])
        yield opened
