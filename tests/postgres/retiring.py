"""What the tests of ranges that leave share: ranges filled by moving the sequence, and aged by moving their rows."""

from __future__ import annotations

import time

from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.harness import Harness

WIDTH = 1_048_576
FATAL = Failure("broken for good", type="PermanentError", code="BROKEN")


async def ended(store: Store, *, well: bool = True, queue: str = "q", key: str | None = None) -> int:
    """A job that has run and ended."""
    made = await store.enqueue(NewJob("t", {"n": 7}, queue=queue, key=key))
    (job,) = await store.claim(queues=[queue], worker="w")
    assert job.id == made.job_id
    if well:
        await store.succeed(job.held)
    else:
        await store.fail(job.held, FATAL)
    return job.id


def full(db: Harness, number: int = 0) -> None:
    """Let the ids of this range, and of all before it, be used up."""
    db.sql("select setval('tenure.job_id_seq', %s)", (number + 1) * WIDTH)


def long_ago(db: Harness, *numbers: int) -> None:
    """Let these ranges have been made, and the jobs in them have ended, a hundred days ago."""
    for low in (number * WIDTH for number in numbers):
        db.sql("update tenure.range set made_at = now() - interval '100 days' where low = %s", low)
        db.sql(
            "update tenure.job_done set finished_at = now() - interval '100 days' where id >= %s and id < %s",
            low, low + WIDTH,
        )  # fmt: skip


async def leaving(store: Store, db: Harness) -> int:
    """A finished job in the first range, which may leave."""
    job_id = await ended(store)
    full(db)
    long_ago(db, 0)
    return job_id


async def retired(store: Store, count: int = 1) -> int:
    """How many ranges left, in as many calls as this takes.

    A range waits for every older transaction of the whole cluster, and other tests have theirs: a call may answer 0.
    """
    give_up = time.monotonic() + 90
    total = await store.history.retire_ranges()
    while total < count and time.monotonic() < give_up:
        total += await store.history.retire_ranges()
    return total


def crashed_long_ago(db: Harness) -> None:
    """Let the time be over for which a range is kept for the process that was at it."""
    db.sql("update tenure.range set taken = now() - interval '1 second' where taken is not null")


def begun(db: Harness) -> list[int]:
    """The ranges whose leaving was begun."""
    return [row["low"] // WIDTH for row in db.sql("select low from tenure.range where leaving is not null order by 1")]


def taken(db: Harness) -> list[int]:
    """The ranges that a process is at."""
    return [row["low"] // WIDTH for row in db.sql("select low from tenure.range where taken > now() order by 1")]


def tables(db: Harness, number: int = 0) -> list[str]:
    """What is there of a range's own tables, attached or not."""
    names = (f"event_{number}", f"job_done_{number}")
    return [name for name in names if db.value("select to_regclass(%s)", f"tenure.{name}") is not None]


def detaching(db: Harness) -> list[str]:
    """The tables whose detaching was begun and not ended."""
    rows = db.sql("select inhrelid::regclass::text as name from pg_inherits where inhdetachpending order by 1")
    return [row["name"] for row in rows]


def lows(db: Harness) -> list[int]:
    """Where the ranges begin that are there."""
    return [row["low"] // WIDTH for row in db.sql("select low from tenure.range order by low")]


async def gone(store: Store, db: Harness, *ids: int) -> None:
    """Assert that the first range has left with all its jobs, and that everything else goes on."""
    assert tables(db) == []
    assert 0 not in lows(db)
    assert await store.jobs(ids) == []
    assert [await store.events(job_id) for job_id in ids] == [[]] * len(ids)
    assert await store.extend_ranges(9) >= 0
    later = await ended(store, queue="later")
    db.log_is_sound(later)
    assert (await audit(store)).violations == []
    for table in ("effect", "emitted"):
        assert db.value(f"select count(*) from tenure.{table} where job_id < %s", WIDTH) == 0
    assert (begun(db), taken(db)) == ([], []), "nobody is left who keeps others from retiring"
