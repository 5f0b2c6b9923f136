"""What the tests of contract `gate_b2` share: its jobs, items and records in the document's own words, and failures."""

from __future__ import annotations

from typing import Any

from tenure.contracts import BUILT_IN
from tenure.jobs.job import Failure, Held, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.harness import Harness

GATE_B2 = BUILT_IN["gate_b2"]
TRANSIENT = Failure("the network went away", type="NetworkError", code="NET_DOWN", retryable=True)
PERMANENT = Failure("no such account", type="BusinessError", code="NO_ACCOUNT", retryable=False)

RETRY = ["running->retrying", "retrying->running"]
DEAD = ["running->dlq_pending", "dlq_pending->dlq_recorded", "dlq_recorded->failed"]

NO_PAPER = """
create function public.no_paper() returns trigger language plpgsql as $$ begin raise 'no paper'; end $$;
create trigger no_paper before insert on tenure.dead_letter for each row execute function public.no_paper()
"""


async def make(store: Store, **given: Any) -> int:
    """A job of this contract; its id."""
    return (await store.enqueue(NewJob("settle", contract="gate_b2", **given))).job_id


async def take(store: Store, db: Harness, job_id: int, worker: str = "w1") -> Held:
    """Claim this job, whose time has come."""
    db.due(job_id)
    (job,) = await store.claim("gate_b2", worker=worker)
    assert job.id == job_id
    return job.held


async def fail(store: Store, db: Harness, job_id: int, times: int, failure: Failure = TRANSIENT) -> list[Moved]:
    """Run this job so often, and let each run fail; the answers."""
    return [await store.fail(await take(store, db, job_id, f"w{n + 1}"), failure) for n in range(times)]


async def left_pending(store: Store, db: Harness, *ids: int, key: str | None = None) -> list[Held]:
    """Let these jobs fail for good while nothing can be written into dlq_items, as a crash would leave them."""
    db.sql(NO_PAPER)
    held = [job.held for job in await store.claim("gate_b2", worker="w1", limit=len(ids))]
    assert {each.id for each in held} == set(ids)
    for each in held:
        answer = await store.fail(each, PERMANENT, key=key)
        assert (answer.state, answer.will_retry) == ("dlq_pending", False)
    db.sql("drop trigger no_paper on tenure.dead_letter; drop function public.no_paper")
    return held


def shown(db: Harness, job_id: int) -> dict[str, Any]:
    """The job in the document's own words."""
    return db.one("select * from tenure_gate_b2.jobs where job_id = %s", job_id)


def items(db: Harness, job_id: int) -> list[dict[str, Any]]:
    """The job's rows in dlq_items."""
    return db.sql("select * from tenure_gate_b2.dlq_items where job_id = %s", job_id)


def records(db: Harness, job_id: int) -> list[dict[str, Any]]:
    """The job's replay records, in order."""
    return db.sql("select * from tenure_gate_b2.replay_records where job_id = %s order by seq", job_id)


def transitions(db: Harness, job_id: int) -> list[str]:
    """The job's transitions as its records tell them."""
    return [record["status_transition"] for record in records(db, job_id)]


def gaps_filled(db: Harness, job_id: int) -> None:
    """Assert that the log tells what the spy saw, and fills exactly the gap where one row change made two hops."""
    told = iter(db.hops(job_id))
    for hop in db.seen(job_id):
        seen = f"{hop.old}->{hop.new}"
        if seen == "dlq_pending->failed":
            assert [next(told), next(told)] == DEAD[1:]
        else:
            assert next(told) == seen
    assert list(told) == []
