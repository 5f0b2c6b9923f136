"""Lives that share a task do not notice: each handler finds a task, a context and a limit as if they were its own."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.context import Context, current
from tenure.jobs.job import Job
from tenure.middleware import Middleware
from tenure.postgres.store import Store
from tenure.worker import worker as worker_module
from tenure.worker.context_port import SourcePort
from tenure.worker.handler import Returned
from tenure.worker.running_job import RunningJob
from tests.harness import Harness
from tests.worker.rounds import HALF_S, Pulse
from tests.worker.working import steady, until, working

#: What a handler may leave behind, as a library that knows its user or its trace does.
who: ContextVar[int | None] = ContextVar("who", default=None)
left_behind: ContextVar[Context | None] = ContextVar("left_behind", default=None)

_SUCCEEDED = "select count(*) from tenure.job_done where state = 'succeeded' and claims = 1"


def cancelling() -> int:
    """How often the task in which this runs was asked to stop."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def done(app: App, db: Harness, jobs: int, **options: Any) -> None:
    """Run a worker until so many jobs have succeeded at their first attempt."""
    async with working(app, **options):
        await until(lambda: db.value(_SUCCEEDED) == jobs)


@pytest.mark.parametrize("waits", ["never", "before", "after", "some"])
async def test_context_variables_of_a_handler_are_not_seen_by_the_next_job(app: App, db: Harness, waits: str) -> None:
    seen: list[int | None] = []

    @app.task
    async def leave_something_behind(n: int) -> None:
        if waits == "before" or (waits == "some" and n % 3 == 0):
            await asyncio.sleep(0)
        seen.append(who.get())
        who.set(n)
        if waits == "after":
            await asyncio.sleep(0)

    await app.enqueue_many(leave_something_behind.call(n) for n in range(20))
    await done(app, db, 20)
    assert seen == [None] * 20


class Setting(Middleware):
    """Sets a variable around each handler and leaves it; tells what its other hooks found there."""

    def __init__(self) -> None:
        self.claimed: list[int | None] = []
        self.finished: list[tuple[int, int | None]] = []

    async def claim(self, jobs: Any) -> None:
        self.claimed.append(who.get())

    async def run(self, ctx: Context, call_next: Any) -> Any:
        assert who.get() is None
        who.set(ctx.job.id)
        return await call_next()

    async def finish(self, job: Job, became: object) -> None:
        self.finished.append((job.id, who.get()))


@pytest.mark.parametrize("waits", [False, True])
async def test_middleware_around_one_handler_is_not_around_another(dsn: str, db: Harness, waits: bool) -> None:
    seen: list[tuple[int, int | None]] = []
    setting = Setting()
    async with steady(dsn, middleware=[setting]) as app:

        @app.task
        async def look(ctx: tenure.Context) -> None:
            if waits:
                await asyncio.sleep(0.01)
            seen.append((ctx.job.id, who.get()))

        ids = await app.enqueue_many(look.call() for _ in range(20))
        await done(app, db, 20)
    assert sorted(seen) == [(job_id, job_id) for job_id in ids]
    assert set(setting.claimed) == {None}
    assert sorted(job_id for job_id, _ in setting.finished) == ids
    strange = [(job_id, found) for job_id, found in setting.finished if found not in (None, job_id)]
    assert strange == [], "finish runs in the context of another job's handler"


@pytest.mark.parametrize("then", ["return", "raise", "wait", "take it back"])
async def test_handler_that_cancels_its_own_task_cancels_no_other_job(app: App, db: Harness, then: str) -> None:
    found: list[int] = []

    @app.task(max_attempts=1)
    async def work(n: int) -> None:
        found.append(cancelling())
        if n == 3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if then == "raise":
                raise ValueError
            if then == "take it back":
                task.uncancel()
        if n > 3 or then == "wait":
            await asyncio.sleep(0.01)

    ids = await app.enqueue_many(work.call(n) for n in range(10))
    async with working(app):
        await until(lambda: len(found) >= 10)
        await until(lambda: db.value(f"{_SUCCEEDED} and id <> %s", ids[3]) == 9)
    assert set(found) == {0}


async def test_a_hundred_handlers_that_wait_for_each_other_begin_at_once(app: App, db: Harness) -> None:
    together = asyncio.Barrier(100)

    @app.task
    async def meet() -> None:
        await together.wait()

    await app.enqueue_many(meet.call() for _ in range(100))
    await done(app, db, 100, concurrency=100)


async def test_handlers_that_never_wait_pass_those_that_do(app: App, db: Harness) -> None:
    go = asyncio.Event()
    begun: list[int] = []

    @app.task
    async def work(n: int) -> None:
        begun.append(n)
        if n % 3 == 0:
            await go.wait()

    await app.enqueue_many(work.call(n) for n in range(60))
    async with working(app, concurrency=60):
        await until(lambda: db.value(_SUCCEEDED) == 40)
        assert begun == list(range(60)), "they begin in the order in which they were claimed"
        go.set()
        await until(lambda: db.value(_SUCCEEDED) == 60)


async def test_each_handler_has_its_own_job_before_and_after_it_waits(app: App, db: Harness) -> None:
    @app.task
    async def look(ctx: tenure.Context, n: int) -> list[int]:
        seen = [ctx.job.id]
        for _ in range(n % 4):
            mine = current.get()
            assert mine is ctx
            seen.append(mine.job.id)
            await asyncio.sleep(0.001)
        made = await other.enqueue()
        assert current.get() is ctx
        return [*seen, made.id]

    @app.task(queue="elsewhere")
    async def other() -> None: ...

    ids = await app.enqueue_many(look.call(n) for n in range(20))
    await done(app, db, 20, queues=["default"])
    for job_id in ids:
        *seen, child = db.row(job_id)["result"]
        assert set(seen) == {job_id}
        trace = db.value(
            "select coalesce(trace_id, tenure.made_id('trace', id)) from tenure.job_done where id = %s", job_id
        )
        assert db.row(child)["trace_id"] == trace
    assert current.get() is None


async def test_lost_lease_ends_its_own_handler_alone(app: App, store: Store, db: Harness, pulse: Pulse) -> None:
    go, ended = asyncio.Event(), list[int]()

    @app.task
    async def work(ctx: tenure.Context) -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            ended.append(ctx.job.id)
            raise

    ids = await app.enqueue_many(work.call() for _ in range(12))
    async with working(app, upkeep=False) as worker:
        await until(lambda: db.value("select count(*) from tenure.job where role = 'active'") == 12)
        lost = ids[2:4]
        db.sql("update tenure.job set queue = 'elsewhere' where id = any(%s)", lost)  # nobody takes them again
        db.expire(*lost)
        assert len(await store.reap("standard")) == 2
        pulse.passes(HALF_S)
        await until(lambda: worker.counts["lost"] == 2)
        go.set()
        await until(lambda: worker.counts["succeeded"] == 10)
    assert sorted(ended) == lost
    assert db.value(_SUCCEEDED) == 10


async def test_worker_that_stops_in_the_middle_tells_of_what_ended_and_hands_back_the_rest(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_LAST_CALLS_S", 60.0)
    begun: list[int] = []

    @app.task
    async def work(n: int) -> None:
        begun.append(n)
        if n % 2:
            await asyncio.sleep(600)

    ids = await app.enqueue_many(work.call(n) for n in range(20))
    async with working(app, grace=0.2) as worker:
        await until(lambda: len(begun) == 20)
        worker.stop()
    assert dict(worker.counts) == {"claimed": 20, "succeeded": 10, "handed back": 10}
    assert db.value(_SUCCEEDED) == 10
    for job_id in ids[1::2]:
        assert [row["trigger"] for row in db.log(job_id)] == ["claim", "hand_back"]


def left_over() -> Counter[str]:
    """What there is in this process of jobs, handled and ended."""
    ours = (RunningJob, Context, SourcePort, Returned, Job)
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in ours)


@pytest.mark.parametrize("kind", ["never waits", "waits", "fails", "leaves its context"])
@pytest.mark.parametrize("jobs", [1_000, pytest.param(20_000, marks=[pytest.mark.prove, pytest.mark.timeout(600)])])
async def test_nothing_of_a_job_that_ended_is_left_for_the_garbage_collector(
    app: App, db: Harness, jobs: int, kind: str
) -> None:
    @app.task(max_attempts=1)
    async def work(ctx: tenure.Context) -> None:
        if kind == "leaves its context":
            left_behind.set(ctx)
        elif kind == "waits":
            await asyncio.sleep(0)
        elif kind == "fails":
            raise ValueError("no")

    await app.enqueue_many(work.call() for _ in range(jobs))
    gc.collect()
    before = left_over()  # of earlier tests in this process
    gc.disable()
    try:
        async with working(app, concurrency=50) as worker:
            await until(lambda: worker.counts["succeeded"] + worker.counts["failed"] == jobs, 500)
            await until(lambda: len(asyncio.all_tasks()) < 20)  # the last of them have told
            await until(lambda: (left_over() - before).total() <= 20)
    finally:
        gc.enable()
    assert (left_over() - before).total() <= 20, left_over()
