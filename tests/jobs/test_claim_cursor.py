"""Marks: a claim begins where the last one ended, and nothing that comes to lie before the mark is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.jobs.claim_cursor import ClaimCursor, is_full
from tenure.jobs.job import Job, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


def job(second: float, queue: str = "default", priority: int = 5) -> Job:
    """A job that was due so long after noon."""
    columns: dict[str, Any] = dict.fromkeys(Job._fields)
    due_at = NOON + timedelta(seconds=second)
    given = {"id": 1, "queue": queue, "priority": priority, "due_at": due_at, "payload_json": "{}"}
    return Job(**columns | given)


def test_a_claim_is_full_when_it_took_as_many_as_it_should_or_as_much_as_it_could() -> None:
    large = job(0)._replace(payload_json="x" * 200_000)
    assert is_full([job(0)] * 3, 3)
    assert not is_full([job(0)] * 2, 3)
    assert not is_full([], 1)
    assert not is_full([large], 3)
    assert is_full([large] * 2, 3)
    assert is_full([job(0)._replace(checkpoint_json="x" * 300_000)], 3)


def lanes(**marks: float) -> list[str | None]:
    """The marks of a queue, by the name p0…p9 of the priority."""
    found: list[str | None] = [None] * 10
    for name, second in marks.items():
        found[int(name[1])] = (NOON + timedelta(seconds=second)).isoformat()
    return found


def test_a_claim_that_came_back_full_leaves_a_mark_in_each_lane_it_took_from() -> None:
    cursor = ClaimCursor(Clock())
    assert cursor.begin() == {}
    cursor.end([job(3, priority=1), job(1), job(2), job(7, "mail")], 4)
    assert cursor.begin() == {"default": lanes(p1=3, p5=2), "mail": lanes(p5=7)}


def test_a_mark_is_believed_for_half_a_second_and_only_while_claims_come_back_full() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    cursor.begin()
    cursor.end([job(1)], 1)
    clock.now += 0.4
    assert cursor.begin() != {}
    cursor.end([job(2)], 1)
    clock.now += 0.2
    assert cursor.begin() == {}, "half a second after the last beginning"
    cursor.end([job(3)], 2)
    assert cursor.begin() == {}, "there may be more of them than those after the mark"


def test_where_the_beginning_is_dear_the_mark_is_believed_for_ten_times_as_long_as_it_took() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)

    def beginning(took: float) -> None:
        clock.now += 100
        assert cursor.begin() == {}
        clock.now += took
        cursor.end([job(1)], 2)

    beginning(0.001)
    beginning(3.0)
    clock.now += 0.02
    assert cursor.begin() == {}, "one that took long may be anybody's stall"
    beginning(2.0)
    beginning(3.0)
    clock.now += 19.9
    assert cursor.begin() != {}, "ten times the less of two"
    cursor.end([], 2)
    clock.now += 0.2
    assert cursor.begin() == {}
    beginning(60.0)
    beginning(60.0)
    clock.now += 30.1
    assert cursor.begin() == {}, "half a minute is the longest"


def test_who_hears_of_something_due_begins_at_the_beginning() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    for _ in range(2):
        clock.now += 100
        cursor.begin()
        clock.now += 2.0
        cursor.end([job(1)], 1)
    assert cursor.begin() != {}
    cursor.restart()
    assert cursor.begin() == {}


def test_a_claim_that_finds_nothing_begins_anew_at_once_unless_that_is_very_dear() -> None:
    clock = Clock()
    for took, anew in ((0.004, True), (0.3, False)):
        cursor = ClaimCursor(clock)
        for _ in range(2):
            clock.now += 100
            cursor.begin()
            clock.now += took
            cursor.end([job(1)], 2)
        assert cursor.begin() != {}
        cursor.end([], 2)
        assert cursor.found_nothing() is anew
        assert (cursor.begin() == {}) is anew


async def test_a_job_that_comes_to_lie_before_the_mark_is_found(store: Store, db: Harness) -> None:
    cursor = ClaimCursor(Clock())
    for _ in range(3):
        await store.enqueue(NewJob("t"))
    first, second = await store.claim(worker="w", limit=2, cursor=cursor, types=["t"])
    late = (await store.enqueue(NewJob("t"))).job_id
    db.sql("update tenure.job set due_at = due_at - interval '1 hour' where id = %s", late)
    (third,) = await store.claim(worker="w", limit=1, cursor=cursor, types=["t"])
    assert third.id > second.id > first.id
    assert third.id != late, "while claims come back full, the mark is believed"
    (found,) = await store.claim(worker="w", limit=1, cursor=cursor, types=["t"])
    assert found.id == late, "nothing is left after the mark, so the claim begins at the beginning"


async def test_without_marks_a_claim_begins_at_the_beginning(store: Store, db: Harness) -> None:
    ids = [(await store.enqueue(NewJob("t"))).job_id for _ in range(3)]
    await store.claim(worker="w", limit=1)
    db.sql("update tenure.job set due_at = due_at - interval '1 hour' where id = %s", ids[2])
    (found,) = await store.claim(worker="w", limit=1)
    assert found.id == ids[2]
