"""What the worker of document 001 does with messages, through a real server of message queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tenure.app import App
from tenure.client.sqs_source import SqsSource
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, ConnectionLost
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.sqs.message_queue import MessageQueues
from tenure.worker.receive_loop import ReceiveLoop
from tests.harness import Harness
from tests.http.stub import HANG, RESET, Asked, refused, stub
from tests.message_queues import MessageServer
from tests.worker.woken import dispatcher, make, queue, sqs, status, through
from tests.worker.working import until, working

__all__ = ["dispatcher", "queue", "sqs"]


#: The answers to a claim after which a message is deleted.
NEEDED_BY_NOBODY = ("Completed", "Canceled", "Failed", "NotFound", "NotDue", "WaitingForParents", "QueuePaused")


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
        *(({"status": "NotClaimed", "reason": reason}, True) for reason in NEEDED_BY_NOBODY),
        *(
            ({"status": "NotClaimed", "reason": reason}, False)
            for reason in ("AlreadyRunning", "Busy", "LeaseLost", "UnknownType", "UnknownVersion", "SomethingNew")
        ),
        pytest.param((409, refused("LEASE_CONFLICT")), False, id="409"),
        pytest.param((500, b"oops"), False, id="500"),
        pytest.param((503, refused("E-UNAVAILABLE")), False, id="503"),
        pytest.param((403, refused("AUTH_FORBIDDEN")), False, id="403"),
        pytest.param(RESET, False, id="reset"),
        pytest.param(HANG, False, id="timeout"),
    ],
    ids=lambda value: str(value.get("reason", "")) if isinstance(value, dict) else None,
)
async def test_no_handler_runs_without_a_claim_and_only_messages_that_nobody_needs_are_deleted(
    answer: Any, is_deleted: bool, sqs: MessageServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.client.sqs_source._TRIES", 2)
    if answer is HANG:
        monkeypatch.setattr("tenure.client.dispatcher_requests.READ_S", 0.2)
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
    bodies += [
        '{"task_id": "999999"}',
        '{"task_id": "no number"}',
        r'{"task_id": "\ud800"}',
        r'{"task_id": "a\u0000b"}',
    ]
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


async def test_a_message_is_kept_no_longer_when_a_job_that_nobody_here_knows_cannot_be_handed_back(
    dispatcher: str, store: Store, sqs: MessageServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise ConnectionLost("no answer")

    monkeypatch.setattr(SqsSource, "report", fails)
    async with through(dispatcher) as app:

        @app.task
        async def work() -> None: ...

        async with working(app, sqs=queue) as worker:
            await until(lambda: worker._claim_loop is not None)
            assert isinstance(worker._claim_loop, ReceiveLoop)
            inbox = worker._claim_loop._source.inbox
            worker._claim_loop._contracts = {}
            sqs.put(queue, *await make(store))
            await until(lambda: len(sqs.asked("ReceiveMessage", queue)) > 1 and not inbox._kept)
    assert sqs.count(queue) == 1


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
