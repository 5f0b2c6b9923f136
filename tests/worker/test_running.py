"""What a handler is given, what it may return or raise, and what becomes of its job."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta

import pytest

import tenure
from tenure.app import App
from tests.harness import Harness, lock_out
from tests.worker.rounds import Limits, Polls
from tests.worker.tasks import poisonous, slow, where
from tests.worker.working import steady, until, working


async def test_async_handler_runs_on_the_loop_and_its_result_is_stored(app: App) -> None:
    @app.task
    async def add(left: int, *, right: int = 1) -> int:
        assert threading.current_thread() is threading.main_thread()
        return left + right

    async with working(app):
        assert await app.result(await add.enqueue(40, right=2), timeout=60) == 42
        assert await app.result(await add.enqueue(40), timeout=60) == 41


async def test_a_worker_that_begins_before_its_database_waits_for_it(
    app: App, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    lock_out(dsn, out=True)
    try:
        async with working(app, name="early"):
            await until(lambda: "early cannot connect, retrying: " in caplog.text)
            lock_out(dsn, out=False)
            assert await app.result(await work.enqueue(), timeout=60) == "done"
    finally:
        lock_out(dsn, out=False)


async def test_plain_handler_runs_in_a_thread_and_may_use_its_context(app: App, db: Harness) -> None:
    @app.task
    def count(ctx: tenure.Context, n: int) -> str:
        ctx.progress_sync({"at": n})
        ctx.checkpoint_sync({"kept": n})
        return threading.current_thread().name

    async with working(app):
        ticket = await count.enqueue(7)
        assert (await app.result(ticket, timeout=60)).startswith("tenure-handler")
    row = db.row(ticket.id)
    assert row["checkpoint"] == {"kept": 7}


async def test_isolated_handler_runs_in_a_process_of_its_own(dsn: str) -> None:
    from tests.worker.tasks import app as isolated

    async with steady(dsn) as app:
        app.tasks.update(isolated.tasks)
        async with working(app):
            ticket = await app._enqueue(where.call(1).job)
            found = await app.result(ticket, timeout=60)
    assert found["pid"] != os.getpid()
    assert found["attempt"] == 1


async def test_isolated_handler_that_runs_too_long_is_killed_and_fails_by_timeout(dsn: str, db: Harness) -> None:
    from tests.worker.tasks import app as isolated

    async with steady(dsn) as app:
        app.tasks.update(isolated.tasks)
        async with working(app):
            ticket = await app._enqueue(slow.options(timeout=1.5, max_attempts=1).call(60).job)
            with pytest.raises(tenure.JobFailed, match=r"ran longer than 1\.5 s"):
                await app.result(ticket, timeout=60)
    assert db.row(ticket.id)["last_error"]["code"] == "TIMEOUT"


async def test_process_that_dies_under_a_handler_fails_its_job_alone(dsn: str, db: Harness) -> None:
    from tests.worker.tasks import app as isolated

    async with steady(dsn) as app:
        app.tasks.update(isolated.tasks)
        async with working(app) as worker:
            ticket = await app._enqueue(poisonous.options(max_attempts=2).call().job)
            with pytest.raises(tenure.JobFailed, match="exit code 7"):
                await app.result(ticket, timeout=60)
            assert worker.counts["claimed"] == 2
    assert db.row(ticket.id)["last_error"]["code"] == "PROCESS_DIED"


async def test_snooze_puts_a_job_off_without_spending_an_attempt(app: App, db: Harness) -> None:
    seen: list[int] = []

    @app.task(max_attempts=1)
    async def wait(ctx: tenure.Context) -> tenure.Snooze | str:
        seen.append(ctx.attempt)
        return tenure.Snooze(timedelta(milliseconds=10)) if len(seen) < 3 else "done"

    async with working(app):
        ticket = await wait.enqueue()
        assert await app.result(ticket, timeout=60) == "done"
    assert seen == [1, 2, 3]
    assert [hop["trigger"] for hop in db.log(ticket.id)] == ["claim", "snooze", "claim", "snooze", "claim", "succeed"]


async def test_cancel_as_a_return_value_ends_the_job_with_its_reason(app: App, db: Harness) -> None:
    @app.task
    async def give_up() -> tenure.Cancel:
        return tenure.Cancel("nothing to do")

    async with working(app):
        ticket = await give_up.enqueue()
        with pytest.raises(tenure.JobFailed, match="ended cancelled"):
            await app.result(ticket, timeout=60)
    assert db.log(ticket.id)[-1]["reason"] == "nothing to do"


@pytest.mark.parametrize(
    ("error", "runs", "state"),
    [
        (ValueError("odd"), 3, "dead"),
        (tenure.TransientError("busy"), 3, "dead"),
        (tenure.PermanentError("no"), 1, "dead"),
        (tenure.ValidationError("no"), 1, "dead"),
        (SystemExit(3), 3, "dead"),
        (asyncio.CancelledError(), 3, "dead"),
    ],
)
async def test_what_is_raised_is_a_failure_of_its_kind(app: App, error: BaseException, runs: int, state: str) -> None:
    ran: list[int] = []

    @app.task(max_attempts=3)
    async def fail() -> None:
        ran.append(1)
        raise error

    async with working(app):
        with pytest.raises(tenure.JobFailed) as failed:
            await app.result(await fail.enqueue(), timeout=60)
    assert (len(ran), failed.value.state) == (runs, state)


async def test_async_handler_that_runs_too_long_is_cancelled_and_fails_by_timeout(app: App) -> None:
    ended: list[str] = []

    @app.task(timeout=0.2, max_attempts=1)
    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async with working(app):
        with pytest.raises(tenure.JobFailed, match=r"ran longer than 0\.2 s"):
            await app.result(await hang.enqueue(), timeout=60)
    assert ended == ["cancelled"]


async def test_thread_that_runs_too_long_keeps_its_slot_until_it_ends(
    app: App, db: Harness, polls: Polls, limits: Limits
) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task(timeout=0.2, max_attempts=1)
    def hang() -> None:
        began.set()
        go.wait(100)

    @app.task
    async def other() -> str:
        return "ran"

    async with working(app, concurrency=1):
        ticket = await hang.enqueue()
        await until(began.is_set)
        limits.passes(0.2)
        with pytest.raises(tenure.JobFailed, match=r"ran longer than 0\.2 s"):
            await app.result(ticket, timeout=60)
        blocked = await other.enqueue()
        await polls.another()
        assert db.row(blocked.id)["claims"] == 0
        go.set()
        assert await app.result(blocked, timeout=60) == "ran"


async def test_result_that_cannot_be_stored_ends_the_job_and_says_so(app: App) -> None:
    @app.task
    async def odd() -> object:
        return object()

    async with working(app):
        with pytest.raises(tenure.JobFailed, match="object"):
            await app.result(await odd.enqueue(), timeout=60)


async def test_worker_runs_no_more_at_a_time_than_it_has_slots(app: App, polls: Polls) -> None:
    now, most, go = 0, 0, asyncio.Event()

    @app.task
    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go.wait()
        await asyncio.sleep(0.01)
        now -= 1

    async with working(app, concurrency=3) as worker:
        await app.enqueue_many(work.call() for _ in range(30))
        await until(lambda: now >= 3)
        await polls.another()
        go.set()
        await until(lambda: worker.counts["succeeded"] == 30)
    assert most == 3


async def test_worker_holds_only_what_it_runs(app: App, db: Harness, polls: Polls) -> None:
    go = asyncio.Event()

    @app.task
    async def work() -> None:
        await go.wait()

    async with working(app, concurrency=4) as worker:
        await app.enqueue_many(work.call() for _ in range(20))
        await until(lambda: worker.counts["claimed"] == 4)
        await polls.another()
        assert db.value("select count(*) from tenure.job where role = 'active'") == 4
        go.set()
        await until(lambda: worker.counts["succeeded"] == 20)


async def test_job_due_later_runs_when_its_time_has_come(app: App, db: Harness, polls: Polls) -> None:
    @app.task
    async def tell() -> str:
        return "now"

    async with working(app):
        ticket = await tell.options(delay=3_600).enqueue()
        await polls.another()
        assert db.row(ticket.id)["claims"] == 0
        db.due(ticket.id)
        assert await app.result(ticket, timeout=60) == "now"
