"""Completions, routing and rollbacks of datasets that are killed between two statements: all of it, or nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest

from tenure.errors import Refused, TenureError
from tenure.jobs.dataset import Append, DatasetEvent, Generation, NewDataset, NewSubscription, Output, Pointer, Replace
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, Job, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.store import Store
from tests.faults.steps import Point, Work, killed_everywhere
from tests.harness import Harness
from tests.races.sessions import Arena
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

T = TypeVar("T")
_NUMBERS = count()
OLD, NEW = ["old 1", "old 2"], ["new 1", "new 2", "new 3"]


def on_store(dsn: str, call: Callable[[Store], Awaitable[T]]) -> T:
    """The result of this call on a store of its own."""

    async def run() -> T:
        async with Store.open(dsn, connections=1) as store:
            return await call(store)

    return asyncio.run(run())


async def running(store: Store, name: str) -> Job:
    """A job that writes the dataset, held."""
    await store.enqueue(NewJob("t", queue=name, writes=(DatasetUse(name),)))
    (job,) = await store.claim("standard", [name], worker="w")
    return job


async def prepared(store: Store) -> str:
    """A new dataset with two subscribers and the old content in its scope."""
    name = f"prices-{next(_NUMBERS)}"
    await store.datasets.declare(NewDataset(name))
    job = await running(store, name)
    await store.report_one("succeed", HolderCall(job.held, outputs=[Replace(name, "may", OLD)]))
    jobs = [NewJob(one, queue=f"{name}-{one}") for one in ("index", "report")]
    await store.datasets.subscribe([NewSubscription(name, job) for job in jobs])
    return name


async def content(store: Store, name: str, scope: str | None = None) -> list[Any]:
    (generation,) = (await store.datasets.current([name])).values()
    return [row.value async for row in store.datasets.rows(generation.id, scope)]


def additions(name: str, staged: int | None = None) -> Sequence[Output]:
    replace = Replace(name, "may", NEW) if staged is None else Replace(name, "may", staged=staged)
    return [Append(name, ["appended"], ["k"]), replace, Pointer(name, "s3://x")]


def stored(db: Harness, job_id: int) -> list[int]:
    """How many outputs, events and deliveries the completion of a job has stored."""
    return [
        db.value("select count(*) from tenure.dataset_output where job_id = %s", job_id),
        db.value("select count(*) from tenure.dataset_event where job_id = %s", job_id),
        db.value(
            "select count(*) from tenure.dataset_delivery where event_id in "
            "(select id from tenure.dataset_event where job_id = %s)", job_id,
        ),
    ]  # fmt: skip


@pytest.mark.req("S1-10", "S1-11")
def test_a_completion_that_dies_has_all_its_outputs_and_events_or_none(arena: Arena) -> None:
    db, dsn = arena.db, arena.dsn

    def scene() -> tuple[tuple[str, Job], Work]:
        name = on_store(dsn, prepared)
        job = on_store(dsn, lambda store: running(store, name))

        async def work(store: Store, _: Point) -> None:
            staged = await store.datasets.stage(job.held, name, NEW[:1])
            await store.datasets.stage(job.held, name, NEW[1:], staged=staged)
            events = [DatasetEvent(name, cursor=1), DatasetEvent(name, cursor=2)]
            call = HolderCall(job.held, outputs=additions(name, staged), dataset_events=events)
            await store.report_one("succeed", call)

        return (name, job), work

    def at(subject: tuple[str, Job], point: str) -> None:
        # A reader never sees a part of it, whatever the process has done so far; after the commit it sees all.
        if point != "answer":
            assert db.value("select state from tenure.job where id = %s", subject[1].id) == "running"
            assert stored(db, subject[1].id) == [0, 0, 0]

    ended = []
    for (name, job), reached in killed_everywhere(db, scene, at):
        is_done = db.row(job.id)["state"] == "succeeded"
        ended.append(is_done)
        assert stored(db, job.id) == ([3, 2, 4] if is_done else [0, 0, 0]), reached
        assert on_store(dsn, partial(content, name=name)) == (["appended", *NEW] if is_done else OLD), reached
        if not is_done:
            db.expire(job.id)
            on_store(dsn, partial(again, db=db, job=job, name=name))
        assert on_store(dsn, partial(content, name=name)) == ["appended", *NEW], reached
        assert stored(db, job.id) == [3, 2, 4]
        db.log_is_sound(job.id)
    assert ended == sorted(ended)
    assert set(ended) == {False, True}


async def again(store: Store, db: Harness, job: Job, name: str) -> None:
    """The next attempt of a job whose holder died, from the start."""
    await store.reap("standard")
    db.due(job.id)
    await store.promote("standard")
    (found,) = await store.claim("standard", [name], worker="w2")
    assert found.id == job.id
    events = [DatasetEvent(name, cursor=1), DatasetEvent(name, cursor=2)]
    await store.report_one("succeed", HolderCall(found.held, outputs=additions(name), dataset_events=events))


async def current_of(store: Store, names: Sequence[str]) -> Mapping[str, Generation]:
    return await store.datasets.current(names)


async def emitted(store: Store, name: str, cursors: Sequence[int]) -> None:
    """A completion that reports these events."""
    job = await running(store, name)
    events = [DatasetEvent(name, cursor=one) for one in cursors]
    await store.report_one("succeed", HolderCall(job.held, dataset_events=events))


def made(db: Harness, name: str) -> list[tuple[str, int]]:
    """(task, cursor) of the jobs that the events of a dataset made."""
    rows = db.sql(
        "select type, (payload -> 'event' ->> 'cursor')::integer as cursor from tenure.job "
        "where payload -> 'event' ->> 'dataset' = %s order by 1, 2", name,
    )  # fmt: skip
    return [(row["type"], row["cursor"]) for row in rows]


@pytest.mark.req("S1-52")
def test_routing_that_dies_makes_each_job_once_in_the_end(arena: Arena) -> None:
    db, dsn = arena.db, arena.dsn

    def scene() -> tuple[str, Work]:
        name = on_store(dsn, prepared)
        on_store(dsn, lambda store: emitted(store, name, [1, 2, 2]))

        async def work(store: Store, _: Point) -> None:
            await store.datasets.route()

        return name, work

    all_of_them = [(task, cursor) for task in ("index", "report") for cursor in (1, 2)]
    left = []
    for name, reached in killed_everywhere(db, scene, lambda *_: None):
        left.append(len(made(db, name)))
        assert left[-1] in (0, 2, 4), reached
        on_store(dsn, lambda store: store.datasets.route())
        assert made(db, name) == all_of_them, reached
        assert db.value("select count(*) from tenure.dataset_delivery") == 0
        assert db.value("select count(*) from tenure.dataset_event where open <> 0") == 0
        assert on_store(dsn, lambda store: store.datasets.route()).events == 0
    assert left == sorted(left)
    assert set(left) == {0, 2, 4}


@pytest.mark.prove
@pytest.mark.req("S1-81", "S1-82")
def test_a_rollback_that_dies_leaves_a_whole_set_and_is_finished_by_upkeep(arena: Arena) -> None:
    db, dsn = arena.db, arena.dsn

    async def prepare(store: Store) -> tuple[list[str], list[int]]:
        names = [f"set-{next(_NUMBERS)}" for _ in range(3)]
        for name in names:
            await store.datasets.declare(NewDataset(name))
            await store.datasets.new_generation(name)
        await store.datasets.cutover(dict.fromkeys(names, 2), actor="ada")
        jobs = [NewJob("t", queue=names[0], writes=(DatasetUse(name),)) for name in names]
        made = await store.enqueue_many(jobs)
        return names, [one.job_id for one in made if isinstance(one, Enqueued)]

    def scene() -> tuple[tuple[list[str], list[int]], Work]:
        names, ids = on_store(dsn, prepare)

        async def work(store: Store, _: Point) -> None:
            await store.datasets.rollback(names[:1], actor="eve")

        return (names, ids), work

    undone = []
    for (names, ids), reached in killed_everywhere(db, scene, lambda *_: None):
        current = on_store(dsn, partial(current_of, names=names))
        numbers = {one.number for one in current.values()}
        assert numbers in ({1}, {2}), reached
        undone.append(numbers == {1})
        on_store(dsn, lambda store: store.datasets.finish_rollbacks())
        states = {db.row(job_id)["state"] for job_id in ids}
        assert states == ({"cancelled"} if undone[-1] else {"queued"}), reached
    assert undone == sorted(undone)
    assert set(undone) == {False, True}


@pytest.mark.req("S1-52", "S1-81")
@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.prove)])
async def test_routing_under_kills_and_switches_reaches_each_subscriber_once(arena: Arena, rounds: int) -> None:
    """A writer with cutovers and three routers at once, while connections are killed again and again."""
    dsn, chance = arena.dsn, random.Random(rounds)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.open(dsn, connections=2))
        name = await prepared(store)
        expected = set[tuple[str, int, int]]()
        writing = True

        async def patiently(call: Callable[[], Awaitable[T]]) -> T | None:
            """Make a call until it is answered; None: it is refused, because its lost first try was done."""
            while True:
                try:
                    return await call()
                except Refused:
                    return None
                except (TenureError, psycopg.Error):
                    await asyncio.sleep(0.01)

        async def write() -> None:
            for _ in range(rounds):
                generation = await patiently(partial(store.datasets.new_generation, name))
                assert generation is not None
                number = generation.number
                for cursor in range(3):
                    job = await patiently(partial(written, store, name, number, uuid4()))
                    assert job is not None
                    event = DatasetEvent(name, number, cursor=cursor)
                    call = HolderCall(job.held, dataset_events=[event, event])
                    await patiently(partial(store.report_one, "succeed", call))
                await patiently(partial(store.datasets.cutover, {name: number}, actor="ada"))
                expected.update((task, number, cursor) for task in ("index", "report") for cursor in range(3))
                await until(lambda: arena.db.value("select count(*) from tenure.dataset_delivery") == 0, 60)

        async def route(own: Store) -> None:
            while writing:
                await patiently(own.datasets.route)
                await asyncio.sleep(0.005)

        async def kill() -> None:
            while writing:
                arena.db.sql(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and pid <> pg_backend_pid() and backend_type = 'client backend' order by random() limit 1"
                )
                await asyncio.sleep(chance.uniform(0.05, 0.2))

        routers = [await stack.enter_async_context(Store.open(dsn, connections=1)) for _ in range(3)]
        others = [asyncio.create_task(one) for one in (*map(route, routers), kill())]
        await write()
        writing = False
        await asyncio.gather(*others)
        rows = arena.db.sql(
            "select type, (payload -> 'event' ->> 'dataset_version')::bigint as version, "
            "(payload -> 'event' ->> 'cursor')::integer as cursor from tenure.job "
            "where payload -> 'event' ->> 'dataset' = %s", name,
        )  # fmt: skip
        found = [(row["type"], row["version"], row["cursor"]) for row in rows]
        assert len(found) == len(set(found)), "a task runs twice for one input"
        assert set(found) == expected


async def written(store: Store, name: str, number: int, key: UUID) -> Job:
    """A held job that writes this generation; the same one where an answer was lost."""
    queue = f"{name}-{key}"
    await store.enqueue(NewJob("t", queue=queue, key=queue, writes=(DatasetUse(name, number),)))
    (job,) = await store.claim("standard", [queue], worker="w", claim_key=key)
    return job
