"""The worker of document 001: woken by a real server of message queues, through a real dispatcher."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

import tenure
from tenure.app import App
from tenure.client.dispatcher_requests import DispatcherRequests
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.sqs.message_queue import MessageQueues
from tenure.upkeep.publisher import Publisher
from tests.harness import Harness
from tests.http.conftest import Clock, clock, serving
from tests.http.stub import RESET, Asked, refused, stub
from tests.http.unreliable import network
from tests.message_queues import MessageServer, message_server
from tests.worker.working import QUICK, STEADY, until, working

__all__ = ["clock"]

LEASE_S = 120


@pytest.fixture(scope="module")
def sqs() -> Iterator[MessageServer]:
    """A server of message queues."""
    with message_server() as server:
        yield server


@pytest.fixture
def queue(sqs: MessageServer) -> str:
    """The address of a queue that hides messages for five minutes."""
    return sqs.make_queue(VisibilityTimeout="300")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receives that end soon: this server gives a message to one whose worker has gone, too."""
    monkeypatch.setattr("tenure.worker.worker.WAIT_S", 0)


@pytest.fixture
def dispatcher(dsn: str) -> Iterator[str]:
    """The address of a dispatcher whose leases only a test ends."""
    with serving(dsn, numbers=STEADY) as address:
        yield address


def through(url: str) -> App:
    """An application that knows a dispatcher alone."""
    return App(dispatcher_url=url, settings=Settings(), contract="dispatcher")


async def make(store: Store, task: str = "work", count: int = 1, **options: Any) -> list[int]:
    """Make tasks; returns their ids."""
    jobs = [NewJob(task, contract="dispatcher", **options) for _ in range(count)]
    return [made.job_id for made in await store.enqueue_many(jobs)]  # type: ignore[misc]


def status(db: Harness, task_id: int) -> str:
    """The status of a task."""
    return str(db.value("select status from tenure_dispatcher.tasks where task_id = %s", task_id))


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


def answers(claim: Any) -> Callable[[Asked], Any]:
    """A dispatcher that answers every claim so."""
    contract = {"name": "dispatcher", "version": "1", "declaration": BUILT_IN["dispatcher"].describe()}
    known = {
        "/api/v1/contracts": {"contracts": [contract]}, "/api/v1/due": {"contracts": []}, "/api/v1/workers": {},
        "/api/v1/workers/leave": {}, "/internal/task-claim": claim,
    }  # fmt: skip
    return lambda asked: known[asked.path]


@pytest.mark.req("S1-40")
@pytest.mark.parametrize(
    ("answer", "is_deleted"),
    [
        *(
            ({"status": "NotClaimed", "reason": reason}, True)
            for reason in ("Completed", "Canceled", "Failed", "NotFound", "NotDue")
        ),
        *(
            ({"status": "NotClaimed", "reason": reason}, False)
            for reason in ("AlreadyRunning", "Busy", "LeaseLost", "UnknownType", "UnknownVersion", "SomethingNew")
        ),
        pytest.param((409, refused("LEASE_CONFLICT")), False, id="409"),
        pytest.param((500, b"oops"), False, id="500"),
        pytest.param((503, refused("E-UNAVAILABLE")), False, id="503"),
        pytest.param((403, refused("AUTH_FORBIDDEN")), False, id="403"),
        pytest.param(RESET, False, id="reset"),
    ],
    ids=lambda value: str(value.get("reason", "")) if isinstance(value, dict) else None,
)
async def test_no_handler_runs_without_a_claim_and_only_messages_that_nobody_needs_are_deleted(
    answer: Any, is_deleted: bool, sqs: MessageServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.client.sqs_source._TRIES", 2)
    calls: list[int] = []
    async with stub(answers(answer)) as server, App(dispatcher_url=server.url, settings=Settings()) as app:

        @app.task
        async def work() -> None:
            calls.append(1)

        sqs.put(queue, 42)
        async with working(app, sqs=queue, wakeups=False) as worker:
            await until(lambda: len(server.of("/internal/task-claim")) >= 1)
            await until(lambda: not worker._claim_loop._claiming)  # type: ignore[union-attr]
    assert calls == []
    assert sqs.count(queue) == (0 if is_deleted else 1)
    asked = server.of("/internal/task-claim")
    keys = {one.headers.get("idempotency-key") for one in asked}
    assert len(keys) == 1, "a repeat has the same key"
    assert None not in keys
    assert (asked[0].body["task_id"], asked[0].body["types"]) == ("42", ["work"])
    assert sqs.asked("ChangeMessageVisibility", queue) == [], "what is left is shown again by the queue itself"


async def test_a_message_that_names_no_task_is_deleted_with_its_reason(
    dispatcher: str, sqs: MessageServer, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = ["no JSON", "[1]", '{"task": "1"}', '{"task_id": 7}', '{"task_id": ""}', "x" * 100_000]
    bodies += ['{"task_id": "999999"}', '{"task_id": "no number"}']
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        for body in bodies:
            sqs.client.send_message(QueueUrl=queue, MessageBody=body)
        async with working(app, sqs=queue):
            await until(lambda: sqs.count(queue) == 0)
    logged = [one.message for one in caplog.records if "deletes a message" in one.message]
    assert len(logged) == len(bodies)
    for why in ("it is not JSON: 'no JSON'", "it has no task_id", "is not a text", "there is no such task"):
        assert any(why in line for line in logged), why
    assert {one.levelno for one in caplog.records if "deletes a message" in one.message} == {logging.WARNING}
    assert max(map(len, logged)) < 600, "a long body is shortened"


async def test_a_worker_takes_only_the_messages_that_it_can_start_at_once(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    go = asyncio.Event()
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None:
            await go.wait()

        sqs.put(queue, *await make(store, count=7))
        async with working(app, sqs=queue, concurrency=2) as worker:
            await until(lambda: worker.counts["claimed"] == 2)
            assert len([one for one in sqs.messages(queue) if one.approximate_receive_count]) == 2
            go.set()
            await until(lambda: sqs.count(queue) == 0)
        assert worker.counts["succeeded"] == 7
    assert db.value("select count(*) from tenure_dispatcher.tasks where status = 'Completed'") == 7


async def test_a_message_that_comes_while_the_worker_stops_is_visible_again_at_once(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = MessageQueues.receive
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        async with working(app, sqs=queue) as worker:

            async def too_late(self: MessageQueues, url: str, **options: Any) -> Any:
                messages = await receive(self, url, **options)
                worker.stopping = worker._claim_loop.stopping = True  # type: ignore[union-attr]
                return messages

            monkeypatch.setattr(MessageQueues, "receive", too_late)
            (task_id,) = await make(store)
            sqs.put(queue, task_id)  # the receive under way takes it, or the next one
            sqs.put(queue, task_id)
            await until(lambda: bool(worker.stopping))
    assert all(one.visible for one in sqs.messages(queue)), "nobody waits for five minutes"
    assert worker.counts["claimed"] <= 1


async def test_a_stop_does_not_wait_for_a_message(dispatcher: str, sqs: MessageServer, queue: str) -> None:
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        async with working(app, sqs=queue) as worker:
            await until(lambda: bool(sqs.asked("ReceiveMessage", queue)))
            loop = asyncio.get_running_loop()
            asked_at = loop.time()
            worker.stop()
        assert loop.time() - asked_at < 15, "a receive waits for 20 s"
    assert sqs.asked("ReceiveMessage", queue)[0]["WaitTimeSeconds"] == 20


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


async def test_a_queue_that_cannot_be_reached_is_said_once_and_tried_again(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.worker")
    queue = f"{sqs.address}/123456789012/later"
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        (task_id,) = await make(store)
        async with working(app, sqs=queue):
            await until(lambda: len(sqs.asked("GetQueueAttributes", queue)) >= 3)
            sqs.client.create_queue(QueueName="later", Attributes={"VisibilityTimeout": "300"})
            sqs.put(queue, task_id)
            await until(lambda: status(db, task_id) == "Completed")
    sqs.client.delete_queue(QueueUrl=queue)
    assert caplog.text.count("cannot receive messages, retrying") == 1
    assert caplog.text.count("receives messages again") == 1
    assert f"receives messages from {queue}, hidden for 300 s" in caplog.text
    assert "Next: set its visibility timeout" not in caplog.text


@pytest.mark.req("S1-57")
@pytest.mark.parametrize(("seconds", "is_usual"), [(59, False), (60, True), (900, True), (901, False)])
async def test_a_visibility_that_is_not_minutes_is_warned_of(
    seconds: int, is_usual: bool, dispatcher: str, sqs: MessageServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.worker")
    queue = sqs.make_queue(VisibilityTimeout=str(seconds))
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        async with working(app, sqs=queue):
            await until(lambda: bool(sqs.asked("ReceiveMessage", queue)))
    assert f"hidden for {seconds} s" in caplog.text
    assert ("Next: set its visibility timeout to between 60 and 900 s" in caplog.text) == (not is_usual)


async def test_until_idle_ends_when_no_message_is_left(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        sqs.put(queue, *await make(store, count=15))
        worker = app.worker(sqs=queue, concurrency=3)
        await worker.run(until_idle=True)
    assert worker.counts["succeeded"] == 15
    assert sqs.count(queue) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [({"sqs": "no address"}, "must be the address"), ({"sqs": "http://q/1/q.fifo"}, "standard queue")],
)
async def test_a_bad_address_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        App(dispatcher_url="http://127.0.0.1:9", settings=Settings()).worker(**options)


async def test_sqs_needs_a_dispatcher_and_takes_every_contract(dispatcher: str, queue: str) -> None:
    with pytest.raises(BadInput, match="through a dispatcher"):
        App("postgresql://nowhere", settings=Settings()).worker(sqs=queue)
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        with pytest.raises(BadInput, match="any contract"):
            await app.worker(sqs=queue, contracts=["dispatcher"]).run()


@asynccontextmanager
async def publishing(store: Store, queue: str) -> AsyncIterator[Publisher]:
    """A publisher whose rounds the test runs."""
    publisher = Publisher(store, {"default": queue}, rewake_ms=60_000)
    async with publisher.connected():
        await publisher.register()
        yield publisher


@pytest.mark.req("S1-24")
async def test_a_purged_queue_changes_no_status_and_its_tasks_are_announced_again(
    dispatcher: str, store: Store, db: Harness, sqs: MessageServer, queue: str
) -> None:
    async with publishing(store, queue) as publisher, through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        ids = await make(store, count=5)
        await publisher.publish()
        before = db.fingerprint(*ids)
        sqs.purge(queue)
        assert db.fingerprint(*ids) == before
        assert {status(db, task_id) for task_id in ids} == {"Queued"}
        async with working(app, sqs=queue) as worker:
            db.sql("update tenure.outbox set check_at = clock_timestamp()")
            assert (await publisher.renew()).did == 5
            await publisher.publish()
            await until(lambda: worker.counts["succeeded"] == 5)
    assert {status(db, task_id) for task_id in ids} == {"Completed"}


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
