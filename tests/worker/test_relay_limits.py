"""Time limits and what asyncio offers inside of handlers, in tasks that may be shared: as in a task of one's own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.worker import running_job
from tests.harness import Harness
from tests.worker import tasks
from tests.worker.working import steady, until, working


async def ended(app: App, db: Harness, ids: list[int], **options: Any) -> dict[int, dict[str, Any]]:
    """Run a worker until these jobs have ended; their rows, in the order of the ids."""
    async with working(app, **options):
        await until(lambda: db.value("select count(*) from tenure.job_done where id = any(%s)", ids) == len(ids))
    return {job_id: db.row(job_id) for job_id in ids}


def code(row: dict[str, Any]) -> str | None:
    """The code of the failure for which a job ended, None where it ended well."""
    return None if row["state"] == "succeeded" else row["last_error"]["code"]


@pytest.mark.parametrize("said", ["by the task", "by the job"])
@pytest.mark.parametrize("where", ["on the loop", "in a thread"])
async def test_handler_that_waits_beyond_its_limit_fails_alone(app: App, db: Harness, where: str, said: str) -> None:
    # A neighbour of the same limit that a slow machine ends late would fail too: theirs is long.
    own, limits = (0.2, {}) if said == "by the task" else (None, {2: 0.2})
    go = threading.Event()

    if where == "on the loop":

        @app.task(max_attempts=1, name="hang", timeout=own)
        async def hang() -> None:
            await asyncio.sleep(600)

        @app.task(max_attempts=1, name="work", timeout=600)
        async def work() -> None:
            await asyncio.sleep(0)
    else:

        @app.task(max_attempts=1, name="hang", timeout=own)
        def hang() -> None:
            go.wait(100)

        @app.task(max_attempts=1, name="work", timeout=600)
        def work() -> None: ...

    tasks = [app.tasks["hang" if n == 2 else "work"] for n in range(5)]
    ids = await app.enqueue_many(task.options(timeout=limits.get(n)).call() for n, task in enumerate(tasks))
    try:
        rows = await ended(app, db, ids)
    finally:
        go.set()
    assert [code(row) for row in rows.values()] == [None, None, "TIMEOUT", None, None]
    assert rows[ids[2]]["last_error"]["message"] == "ran longer than 0.2 s"


async def test_limit_of_a_task_holds_in_a_process_of_its_own(dsn: str, db: Harness) -> None:
    async with steady(dsn) as app:
        app.tasks["slow"] = tasks.slow.options(timeout=1.5)
        ids = [(await app._enqueue(tasks.slow.options(max_attempts=1).call(60).job)).id]
        assert "$timeout" not in db.row(ids[0])["payload"]
        rows = await ended(app, db, ids)
    assert code(rows[ids[0]]) == "TIMEOUT"


class Clock:
    """The clock by which handlers are timed; it goes on, and a test moves it ahead."""

    ahead = 0.0

    def monotonic(self) -> float:
        """The time."""
        return time.monotonic() + self.ahead


async def test_limit_counts_from_the_beginning_also_for_a_handler_that_blocks_at_first(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(running_job, "time", clock)

    @app.task(timeout=600, max_attempts=1)
    async def work() -> None:
        clock.ahead = 601  # so long it does not let go of the loop
        await asyncio.sleep(600)

    (row,) = (await ended(app, db, [(await work.enqueue()).id])).values()
    assert code(row) == "TIMEOUT"


@pytest.mark.parametrize("then", ["returns", "raises", "waits"])
async def test_handler_that_swallows_its_limit_is_judged_by_what_it_does_then(app: App, db: Harness, then: str) -> None:
    asked: list[int] = []

    @app.task(max_attempts=1)
    async def work(n: int) -> str:
        task = asyncio.current_task()
        assert task is not None
        asked.append(task.cancelling())
        if n == 1:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                if then == "raises":
                    raise tenure.PermanentError("no time") from None
                if then == "waits":
                    await asyncio.sleep(0.05)
        return "done"

    ids = await app.enqueue_many(work.options(timeout=0.1).call(n) for n in range(3))
    rows = await ended(app, db, ids)
    if then == "raises":
        assert rows[ids[1]]["last_error"]["message"] == "no time"
    else:
        assert (rows[ids[1]]["state"], rows[ids[1]]["result"]) == ("succeeded", "done")
    assert [row["state"] for row in rows.values()].count("succeeded") == 3 - (then == "raises")
    assert asked == [0, 0, 0]


async def test_undoing_after_a_swallowed_limit_is_not_disturbed_by_it(app: App, db: Harness) -> None:
    undone: list[str] = []

    @app.task(contract="reliability", timeout=0.2, max_attempts=1)
    async def work(ctx: tenure.Context) -> None:
        charging = asyncio.ensure_future(ctx.effect("charge", lambda: "receipt"))
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await charging
            raise tenure.PermanentError("no time") from None

    @work.compensate("charge")
    async def refund(result: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_fails())
        except* ValueError:
            undone.append("the group said so")

    ticket = await work.enqueue()
    await ended(app, db, [ticket.id])
    assert undone == ["the group said so"]


async def _fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("one of a group")


async def test_limits_and_groups_inside_of_handlers_are_their_own(app: App, db: Harness) -> None:
    @app.task(max_attempts=1, timeout=600)
    async def work(n: int) -> str:
        if n % 4 == 0:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(600)
            except TimeoutError:
                return "timeout"
        if n % 4 == 1:
            try:
                await asyncio.wait_for(asyncio.sleep(600), 0.01)
            except TimeoutError:
                return "wait_for"
        if n % 4 == 2:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_fails())
                    await asyncio.sleep(600)
            except* ValueError:
                pass
            return "group"
        return "nothing"

    ids = await app.enqueue_many(work.call(n) for n in range(16))
    rows = await ended(app, db, ids)
    assert [row["result"] for row in rows.values()] == ["timeout", "wait_for", "group", "nothing"] * 4


@pytest.mark.parametrize("inside", ["timeout", "group", "shield"])
async def test_limit_that_ends_a_handler_inside_of_something_is_still_its_limit(
    app: App, db: Harness, inside: str
) -> None:
    go, finished = asyncio.Event(), asyncio.Event()

    async def call_next() -> None:
        await go.wait()
        finished.set()

    @app.task(max_attempts=1, timeout=0.1)
    async def work() -> None:
        if inside == "timeout":
            async with asyncio.timeout(600):
                await asyncio.sleep(600)
        elif inside == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(600))
        else:
            await asyncio.shield(asyncio.ensure_future(call_next()))

    (row,) = (await ended(app, db, [(await work.enqueue()).id])).values()
    assert code(row) == "TIMEOUT"
    if inside == "shield":
        go.set()
        await asyncio.wait_for(finished.wait(), 60)


async def test_what_a_handler_awaits_may_be_cancelled_without_the_handler(app: App, db: Harness) -> None:
    @app.task(max_attempts=1)
    async def work() -> str:
        other = asyncio.ensure_future(asyncio.sleep(600))
        asyncio.get_running_loop().call_soon(other.cancel)
        with pytest.raises(asyncio.CancelledError):
            await other
        return "on"

    @app.task(max_attempts=1)
    async def falls() -> None:
        other = asyncio.ensure_future(asyncio.sleep(600))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    ids = await app.enqueue_many([work.call(), falls.call(), work.call()])
    rows = await ended(app, db, ids)
    assert [row["state"] for row in rows.values()] == ["succeeded", "dead", "succeeded"]
    assert rows[ids[1]]["last_error"]["type"] == "CancelledError"
