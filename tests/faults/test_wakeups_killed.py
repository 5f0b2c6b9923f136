"""A backend is killed between a task and its wake-up: both are there, or neither, and none points to nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tenure.errors import ConnectionLost
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.store import Store
from tests.faults.kills import Pauses, again, halted, kill_at_the_gate, killed_after, prepared
from tests.harness import Harness
from tests.races.sessions import Arena

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

#: Tasks that nobody would be told of, and wake-ups that lead nowhere.
_ALONE = """
select task_id from tenure_dispatcher.tasks full join tenure_dispatcher.outbox using (task_id)
where queue = %s and outbox.id is null or status is null
"""
_POINTS = ["before insert on outbox", "after insert on outbox"]


@pytest.fixture
async def publishing(arena: Arena, victim: Store) -> Store:
    """The store that is killed, with nothing in the outbox."""
    arena.db.sql("delete from tenure.outbox")
    return victim


async def publish(store: Store, queue: str) -> None:
    """Let the wake-ups of this queue be published."""
    await store.outbox.publish({queue: "https://queue.example/1/jobs"})


def wake_ups(db: Harness, task_id: int | None) -> int:
    """How many wake-ups there are for a task."""
    return int(db.value("select count(*) from tenure_dispatcher.outbox where task_id = %s", task_id))


async def killed_at(arena: Arena, point: str, call: Any) -> None:
    """Make the call, and kill its backend at this point."""
    with halted(arena, point):
        calling = asyncio.create_task(call)
        await kill_at_the_gate(arena.db)
        with pytest.raises(ConnectionLost):
            await calling


@pytest.mark.req("S1-64")
@pytest.mark.parametrize("point", ["before update on job", "after insert on event", *_POINTS])
async def test_promote_killed_between_its_statements_did_all_or_nothing(
    arena: Arena, publishing: Store, point: str
) -> None:
    scene = prepared(arena, "promote", "dispatcher")
    await publish(publishing, arena.db.value("select queue from tenure.job where id = %s", scene.id))
    before = scene.print(arena.db)
    await killed_at(arena, point, scene.call(publishing))
    assert scene.print(arena.db) == before, "neither moved, nor counted, nor woken"
    await again(scene.call, publishing)
    assert scene.happened(arena.db)
    shown = arena.db.one("select status, attempt from tenure_dispatcher.tasks where task_id = %s", scene.id)
    assert (shown, wake_ups(arena.db, scene.id)) == ({"status": "Queued", "attempt": 2}, 1)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("point", ["before insert on job", "after insert on job", *_POINTS])
async def test_creation_killed_between_its_statements_left_nothing(
    arena: Arena, publishing: Store, point: str, key: str | None
) -> None:
    queue = f"queue-{point}-{key}"
    await publish(publishing, queue)
    job = NewJob("extract", contract="dispatcher", queue=queue, key=key and f"{key} {point}")
    await killed_at(arena, point, publishing.enqueue(job))
    assert arena.db.value("select count(*) from tenure.job where queue = %s", queue) == 0
    assert arena.db.value("select count(*) from tenure.key where key = %s", job.key) == 0
    assert arena.db.value("select count(*) from tenure.outbox") == 0
    made = await again(publishing.enqueue, job)
    assert isinstance(made, Enqueued)
    assert made.made
    assert wake_ups(arena.db, made.job_id) == 1


@pytest.mark.parametrize("key", [None, "again"])
@pytest.mark.parametrize("point", _POINTS)
async def test_rerun_killed_before_its_wake_up_was_written_never_happened(
    arena: Arena, publishing: Store, point: str, key: str | None
) -> None:
    held, queue = arena.held("dispatcher")
    await publish(publishing, queue)
    arena.second.finish("succeed", held)
    key = key and f"{key} {point}"
    await killed_at(arena, point, publishing.requeue(held.id, actor="ada", key=key))
    assert arena.db.value("select count(*) from tenure.job where queue = %s", queue) == 0, "queued, and nobody is told"
    made = await again(publishing.requeue, held.id, actor="ada", key=key)
    assert isinstance(made, int)
    assert wake_ups(arena.db, made) == 1


@pytest.mark.req("S1-85")
@pytest.mark.parametrize(("keyed", "kills"), [(False, 200), (True, 50)])
async def test_creation_killed_at_random_leaves_tasks_with_their_wake_ups_or_none(
    arena: Arena, publishing: Store, kills: int, keyed: bool
) -> None:
    chance, queue, db = random.Random(85), f"queue-{keyed}", arena.db
    await publish(publishing, queue)

    def batch(turn: int) -> list[NewJob]:
        keys = [f"{queue} {turn} {n}" if keyed else None for n in range(5)]
        return [NewJob("extract", contract="dispatcher", queue=queue, key=key) for key in keys]

    pauses = Pauses(chance)
    cut_off = turns = 0
    while cut_off < kills:
        turns += 1
        assert turns < 20 * kills, "hardly any kill fell into a creation"
        known = db.value("select count(*) from tenure.job where queue = %s", queue)
        call = publishing.enqueue_many(batch(turns))
        told = await killed_after(db, publishing, pauses.next(), call)
        pauses.learn(cut_off=isinstance(told, ConnectionLost))
        cut_off += isinstance(told, ConnectionLost)
        made = db.value("select count(*) from tenure.job where queue = %s", queue) - known
        assert made == 5 if isinstance(told, list) else made in (0, 5)
        assert db.sql(_ALONE, queue) == []
        if keyed:  # a key lets the caller find out, and get what it asked for
            await again(publishing.enqueue_many, batch(turns))
            assert db.value("select count(*) from tenure.job where queue = %s", queue) == known + 5
    states = db.sql("select distinct status, attempt, lease_token from tenure_dispatcher.tasks where queue = %s", queue)
    assert states == [{"status": "Queued", "attempt": 1, "lease_token": None}]
    tasks = db.value("select count(*) from tenure.job where queue = %s", queue)
    assert (
        db.value("select count(*) from tenure.outbox join tenure.job on job.id = job_id where job.queue = %s", queue)
        == tasks
    )
