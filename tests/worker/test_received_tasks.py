"""Tasks of document 001 from the message to the end: they run once an attempt, whatever the queue does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

import tenure
from tenure.app import App
from tenure.client.dispatcher_requests import DispatcherRequests
from tenure.client.sqs_source import SqsSource
from tenure.postgres.store import Store
from tenure.sqs.message_queue import MessageQueues
from tests.harness import Harness
from tests.http.conftest import Clock, clock, serving
from tests.http.unreliable import network
from tests.message_queues import MessageServer
from tests.worker.woken import dispatcher, make, publishing, queue, short_waits, sqs, status, through
from tests.worker.working import QUICK, STEADY, until, working

__all__ = ["clock", "dispatcher", "queue", "short_waits", "sqs"]

#: Seconds of a lease that the test moves by.
LEASE_S = 120


@pytest.mark.req("S1-16", "S1-42", "S1-56", "S1-58")
async def test_a_task_three_leases_long_is_received_claimed_run_kept_completed_and_its_message_deleted(
    dsn: str, store: Store, db: Harness, sqs: MessageServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    is_over = asyncio.Event()
    send, receive, delete = DispatcherRequests.send, MessageQueues.receive, MessageQueues.delete

    async def sent(self: DispatcherRequests, method: Any, path: str, *rest: Any, **options: Any) -> Any:
        if path.startswith("/internal/"):
            log.append(path.rpartition("/")[2])
        return await send(self, method, path, *rest, **options)

    async def received(self: MessageQueues, url: str, **options: Any) -> Any:
        messages = await receive(self, url, **options)
        log.extend("receive" for _ in messages)
        return messages

    async def deleted(self: MessageQueues, url: str, handle: str) -> None:
        log.append("delete")
        await delete(self, url, handle)

    monkeypatch.setattr(DispatcherRequests, "send", sent)
    monkeypatch.setattr(MessageQueues, "receive", received)
    monkeypatch.setattr(MessageQueues, "delete", deleted)
    queue = sqs.make_queue(VisibilityTimeout="120")
    with serving(dsn, numbers={"dispatcher": {"lease_ms": 1_000 * LEASE_S}}) as url:
        async with through(url) as app:

            @app.task
            async def work() -> str:
                log.append("execute")
                await is_over.wait()
                return "done"

            async with working(app, sqs=queue) as worker:
                (task_id,) = await make(store)
                sqs.put(queue, task_id)
                await until(lambda: "execute" in log)
                for _ in range(12):  # a quarter of its lease, and of the message's visibility, each time
                    db.sql("update tenure.job set lease_expires_at = lease_expires_at - interval '30 s'")
                    sqs.passes(queue, LEASE_S / 4)
                    clock.ahead += LEASE_S / 4
                    await until(lambda: all(one.heartbeat_at > clock.now() for one in worker._heartbeats.held))
                    kept = worker._source.inbox  # type: ignore[union-attr]
                    await until(lambda: all(one.keep_at > clock.now() for one in kept._kept.values()))  # noqa: B023
                    assert await store.reap("dispatcher") == []
                (message,) = sqs.messages(queue)
                assert message.approximate_receive_count == 1
                extensions = len(sqs.asked("ChangeMessageVisibility", queue))
                is_over.set()
                await until(lambda: sqs.count(queue) == 0)
    beats = log.count("heartbeat")
    assert log == ["receive", "task-claim", "execute", *["heartbeat"] * beats, "task-complete", "delete"]
    assert beats >= 6, "two in each lease"
    assert extensions >= 3, "one in each visibility"
    assert len(sqs.asked("ChangeMessageVisibility", queue)) == extensions, "none after the completion"
    assert db.hops(task_id) == ["Queued->Running", "Running->Completed"]
    assert db.row(task_id)["result"] == "done"


@pytest.mark.req("S1-02")
async def test_messages_for_a_completed_task_have_no_effect(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    ran: list[int] = []
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None:
            ran.append(1)

        (task_id,) = await make(store)
        async with working(app, sqs=queue):
            sqs.put(queue, task_id)
            await until(lambda: sqs.count(queue) == 0)
            before = db.fingerprint(task_id)
            sqs.put(queue, *[task_id] * 100)
            await until(lambda: sqs.count(queue) == 0)
    assert db.fingerprint(task_id) == before
    assert ran == [1]


async def test_a_lost_lease_leaves_the_message_in_the_queue_and_keeps_it_no_longer(
    dsn: str, store: Store, db: Harness, sqs: MessageServer
) -> None:
    queue = sqs.make_queue(VisibilityTimeout="2")
    log: list[str] = []
    with serving(dsn, numbers=QUICK) as url:
        async with through(url) as app:

            @app.task
            async def work() -> None:
                log.append("begins")
                try:
                    await asyncio.Event().wait()
                finally:
                    log.append("ends")

            async with working(app, sqs=queue) as worker:
                (task_id,) = await make(store)
                sqs.put(queue, task_id)
                await until(lambda: log == ["begins"])
                db.sql("update tenure.job set lease_token = gen_random_uuid() where id = %s", task_id)
                await until(lambda: worker.counts["lost"] == 1)
                await until(lambda: worker._source.inbox._kept == {})  # type: ignore[union-attr]
    assert log == ["begins", "ends"]
    assert sqs.asked("DeleteMessage", queue) == []
    assert sqs.count(queue) == 1


async def test_a_blocked_event_loop_keeps_its_message(dsn: str, store: Store, db: Harness, sqs: MessageServer) -> None:
    queue = sqs.make_queue(VisibilityTimeout="3")
    kept = threading.Event()

    def watch() -> None:
        while len(sqs.asked("ChangeMessageVisibility", queue)) < 3:
            kept.wait(0.05)
        kept.set()

    with serving(dsn, numbers=STEADY) as url:
        async with through(url) as app:

            @app.task
            async def work() -> bool:
                return kept.wait(100)

            async with working(app, sqs=queue):
                (task_id,) = await make(store)
                watching = threading.Thread(target=watch)
                sqs.put(queue, task_id)
                watching.start()
                await until(lambda: status(db, task_id) == "Completed", 100)
                watching.join()
    assert db.row(task_id)["result"] is True


@pytest.mark.req("S1-55")
async def test_a_visibility_far_shorter_than_the_task_never_runs_it_twice_at_once(
    dsn: str, store: Store, db: Harness, sqs: MessageServer
) -> None:
    queue = sqs.make_queue(VisibilityTimeout="1")
    ran, contended = list[int](), list[int]()

    def work(n: int) -> None:
        ran.append(n)
        with psycopg.connect(dsn, autocommit=True) as connection:
            (row,) = connection.execute("select pg_try_advisory_lock(55, %s)", [n]).fetchall()
            if not row[0]:
                contended.append(n)
            while len(sqs.asked("ChangeMessageVisibility", queue)) < 6:  # several visibilities long
                threading.Event().wait(0.05)

    with serving(dsn, numbers=STEADY) as url:
        apps = [through(url) for _ in range(8)]
        async with _woken([(app, work) for app in apps], queue):
            (task_id,) = await make(store, payload={"n": 1})
            sqs.put(queue, task_id)
            await until(lambda: status(db, task_id) == "Completed", 100)
            await until(lambda: sqs.count(queue) == 0)
    assert (ran, contended) == ([1], [])
    assert db.row(task_id)["claims"] == 1


@asynccontextmanager
async def _woken(apps: list[tuple[App, Callable[..., Any]]], queue: str) -> AsyncIterator[None]:
    """Workers of these applications with this task, for as long as a block lasts."""
    async with asyncio.TaskGroup() as group:
        workers = []
        for app, work in apps:
            app.task(name="work")(work)
            worker = app.worker(sqs=queue, poll=3_600)
            workers.append(worker)
            group.create_task(worker.run(handle_signals=False))
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()


async def test_failures_and_cancels_are_reported_and_their_messages_deleted(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    async with through(dispatcher) as app:

        @app.task
        async def fails(ctx: tenure.Context) -> None:
            await ctx.checkpoint({"page": 7})
            raise ValueError("out of paper")

        @app.task
        async def resumes(ctx: tenure.Context) -> Any:
            if ctx.attempt == 1:
                await ctx.checkpoint({"page": 7})
                raise tenure.TransientError("not yet")
            return ctx.last_checkpoint

        @app.task
        async def gives_up() -> tenure.Cancel:
            return tenure.Cancel("no need")

        @app.task
        async def too_large() -> str:
            return "x" * 2_000_000

        limits = {"fails": 1, "resumes": 3, "gives_up": 3, "too_large": 1}
        ids = [(await make(store, task, max_attempts=limit))[0] for task, limit in limits.items()]
        async with working(app, sqs=queue):
            sqs.put(queue, *ids)
            await until(lambda: sqs.count(queue) == 0)
            db.due(ids[1])
            await store.promote("dispatcher")
            sqs.put(queue, ids[1])
            await until(lambda: sqs.count(queue) == 0)
    assert [status(db, task_id) for task_id in ids] == ["Failed", "Completed", "Canceled", "Failed"]
    error = db.row(ids[0])["last_error"]
    assert (error["type"], error["message"]) == ("ValueError", "out of paper")
    assert "out of paper" in error["stack"]
    assert db.row(ids[1])["result"] == {"page": 7}
    assert "1048576" in db.row(ids[3])["last_error"]["message"]
    db.log_is_sound(*ids)


async def test_lost_answers_cost_no_attempt(
    dsn: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    ran: list[int] = []
    async with network(17, lost=0.15, reset=0.15) as between:
        with serving(dsn, numbers=STEADY) as url:
            between.leads_to([url])
            async with through(between.url) as app:

                @app.task
                async def work() -> None:
                    ran.append(1)

                ids = await make(store, count=20)
                sqs.put(queue, *ids)
                async with working(app, sqs=queue):
                    await until(lambda: sqs.count(queue) == 0, 100)
        assert between.did["lost"] + between.did["reset"] > 0
    rows = db.sql("select status, attempt from tenure_dispatcher.tasks")
    assert {(row["status"], row["attempt"]) for row in rows} == {("Completed", 1)}
    assert len(ran) == 20
    db.log_is_sound(*ids)


@pytest.mark.req("S1-24", "S1-71")
async def test_a_purged_queue_changes_no_status_and_its_tasks_are_announced_again_and_run_once(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    ran: list[int] = []
    async with publishing(store, queue) as publisher, through(dispatcher) as app:

        @app.task
        async def work(ctx: tenure.Context) -> None:
            ran.append(ctx.job.id)

        ids = await make(store, count=5)
        await publisher.publish()
        before = db.fingerprint(*ids)
        sqs.purge(queue)
        assert db.fingerprint(*ids) == before
        assert {status(db, task_id) for task_id in ids} == {"Queued"}
        for _ in range(2):  # nobody took them after the first time
            db.sql("update tenure.outbox set check_at = clock_timestamp() where check_at is not null")
            assert (await publisher.renew()).did == 5
            await publisher.publish()
        assert sqs.count(queue) == 10
        async with working(app, sqs=queue) as worker:
            await until(lambda: worker.counts["succeeded"] == 5)
            sqs.passes(queue, 600)  # the second messages, which were left while their tasks ran
            await until(lambda: sqs.count(queue) == 0)
    assert sorted(ran) == ids
    assert {status(db, task_id) for task_id in ids} == {"Completed"}


async def test_a_task_whose_queue_is_paused_after_its_message_runs_when_it_is_resumed(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    ran: list[int] = []
    async with publishing(store, queue) as publisher, through(dispatcher) as app:

        @app.task
        async def work() -> None:
            ran.append(1)

        (task_id,) = await make(store)
        await publisher.publish()
        await store.queues.pause("default", actor="ada")
        async with working(app, sqs=queue):
            await until(lambda: sqs.count(queue) == 0)
            assert (ran, status(db, task_id)) == ([], "Queued")
            db.sql("update tenure.outbox set check_at = clock_timestamp()")
            await publisher.renew()
            assert (await publisher.publish()).did == 0
            await store.queues.resume("default", actor="ada")
            assert (await publisher.publish()).did == 1
            await until(lambda: status(db, task_id) == "Completed")
    assert ran == [1]
    assert db.row(task_id)["claims"] == 1


@pytest.mark.req("S1-64", "S1-70")
async def test_one_tick_queues_a_due_retry_with_its_next_attempt_and_one_message(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str, short_waits: None
) -> None:
    attempts: list[int] = []
    async with publishing(store, queue) as publisher, through(dispatcher) as app:

        @app.task
        async def work(ctx: tenure.Context) -> None:
            attempts.append(ctx.attempt)
            if ctx.attempt == 1:
                raise tenure.TransientError("not yet")

        (task_id,) = await make(store)
        async with working(app, sqs=queue) as worker:
            await publisher.publish()
            await until(lambda: worker.counts["retried"] == 1 and sqs.count(queue) == 0)
        db.sql("update tenure.job set due_at = clock_timestamp() + interval '1 hour'")
        assert await store.promote("dispatcher") == []
        assert (await publisher.publish()).did == 0, "not before it is due"
        db.due(task_id)
        await store.promote("dispatcher")
        row = db.one("select status, attempt from tenure_dispatcher.tasks where task_id = %s", task_id)
        assert row == {"status": "Queued", "attempt": 2}
        assert [(await publisher.publish()).did for _ in range(2)] == [1, 0]
        assert sqs.count(queue) == 1
        async with working(app, sqs=queue):
            await until(lambda: status(db, task_id) == "Completed")
    assert attempts == [1, 2]


async def test_a_claim_that_a_blocked_event_loop_does_not_start_is_handed_back(
    dsn: str,
    store: Store,
    db: Harness,
    sqs: MessageServer,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    claim, attempts, blocked = SqsSource.claim_task, list[int](), list[int]()

    async def blocking(self: SqsSource, *arguments: Any) -> Any:
        answer = await claim(self, *arguments)
        if threading.current_thread() is threading.main_thread() and not blocked:
            blocked.append(1)
            limit = time.monotonic() + 60
            while status(db, task_id) == "Running":
                assert time.monotonic() < limit, "nobody handed it back"
                time.sleep(0.05)  # noqa: ASYNC251 (that is the fault)
        return answer

    monkeypatch.setattr(SqsSource, "claim_task", blocking)
    with serving(dsn, numbers=QUICK) as url:
        async with through(url) as app:

            @app.task
            async def work(ctx: tenure.Context) -> None:
                attempts.append(ctx.attempt)

            (task_id,) = await make(store)
            async with working(app, sqs=queue):
                sqs.put(queue, task_id)
                await until(lambda: bool(blocked))
                await until(lambda: sqs.count(queue) == 0)
                db.due(task_id)
                await store.promote("dispatcher")
                sqs.put(queue, task_id)
                await until(lambda: status(db, task_id) == "Completed")
    assert attempts == [2]
    assert "handed back 1 jobs" in caplog.text
