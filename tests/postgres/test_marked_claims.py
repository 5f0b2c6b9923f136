"""Claims that begin at a mark lose nothing that lies at it, in any lane."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tenure.jobs.claim_cursor import ClaimCursor
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

pytestmark = pytest.mark.core


def slow() -> Callable[[], float]:
    """A clock by which everything takes two seconds, so that no claim begins at the beginning if it can help it."""
    moments = count(1_000.0, 2.0)
    return lambda: next(moments)


def still() -> Callable[[], float]:
    """A clock that stands: a mark is believed for as long as claims come back full."""
    return lambda: 1_000.0


@pytest.mark.parametrize("clock", [slow, still])
async def test_jobs_that_are_due_at_the_moment_of_the_mark_come_next(
    store: Store, db: Harness, clock: Callable[[], Callable[[], float]]
) -> None:
    ids = [one.job_id for one in await store.enqueue_many([NewJob("t", {"n": n}) for n in range(11)])]
    assert db.value("select count(distinct due_at) from tenure.job") == 1
    cursor = ClaimCursor(clock())
    claimed = [[job.id for job in await store.claim(worker="w", limit=2, cursor=cursor)] for _ in range(6)]
    assert claimed == [ids[0:2], ids[2:4], ids[4:6], ids[6:8], ids[8:10], ids[10:]]


@pytest.mark.parametrize("clock", [slow, still])
async def test_each_lane_has_its_own_mark(store: Store, db: Harness, clock: Callable[[], Callable[[], float]]) -> None:
    jobs = [NewJob("t", queue=queue, priority=priority) for priority in (9, 0, 5) for queue in "ab" for _ in range(3)]
    for job in jobs:  # one by one, so that each has a due time of its own
        await store.enqueue(job)
    cursor, seen = ClaimCursor(clock()), list[tuple[str, int]]()
    for _ in range(9):
        seen += [
            (job.queue, job.priority)
            for job in await store.claim(queues=["a", "b"], worker="w", limit=2, cursor=cursor)
        ]
    assert seen == [(queue, priority) for queue in "ab" for priority in (0, 5, 9) for _ in range(3)]
    assert db.value("select count(*) from tenure.job where role = 'ready'") == 0
