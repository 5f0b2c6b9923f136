"""The client of a worker that messages wake: a call without an answer holds up no other one."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

from tenure.client.sqs_source import SqsSource
from tenure.errors import Busy, ConnectionLost, Unavailable
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held
from tenure.jobs.outcome import Noted
from tenure.sqs.inbox import Inbox, KeptMessage
from tenure.sqs.message_queue import Message
from tests.http.stub import HANG, Asked, stub
from tests.message_queues import MessageServer
from tests.worker.woken import queue, sqs

__all__ = ["queue", "sqs"]


def kept(inbox: Inbox, task_id: str) -> KeptMessage:
    """The message of a task that this worker holds by document 001's own routes."""
    found = inbox.add(uuid4(), task_id, Message("", "handle", 1), time.monotonic())
    found.attempt = 1
    return found


def heartbeat(one: KeptMessage) -> HolderCall:
    return HolderCall(Held(int(one.task_id), 1, one.token, "dispatcher", "1"))


def answer(asked: Asked) -> Any:
    """Heartbeats are answered, but for task 2."""
    is_answered = asked.body["task_id"] != "2"
    return {"lease_expires_at": "2026-11-19T12:00:00Z", "cancel_requested": False} if is_answered else HANG


async def test_a_heartbeat_without_an_answer_costs_the_others_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.client.sqs_source._HEARTBEAT_S", 0.5)
    inbox = Inbox("http://q/1/q")
    async with stub(answer) as server:
        source = SqsSource(server.url, None, inbox)
        calls = [heartbeat(kept(inbox, task_id)) for task_id in ("1", "2", "3")]
        async with asyncio.timeout(30):
            first, second, third = await source.report("heartbeat", calls)
            with pytest.raises(ConnectionLost, match="did not answer a heartbeat"):
                await source.report("heartbeat", calls[1:2])
        await source.close()
    assert isinstance(first, Noted)
    assert isinstance(second, Busy), "it is sent again"
    assert isinstance(third, Noted)


async def test_a_message_that_cannot_be_kept_in_time_is_an_error(
    monkeypatch: pytest.MonkeyPatch, sqs: MessageServer, queue: str
) -> None:
    async def hangs(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("tenure.client.sqs_source._KEEP_S", 0.1)
    monkeypatch.setattr("tenure.sqs.message_queue.MessageQueues.keep", hangs)
    source = SqsSource("http://127.0.0.1:1", None, Inbox(queue))
    await source.open()
    with pytest.raises(Unavailable, match=r"did not answer for 0\.1 s"):
        await asyncio.wait_for(source.keep(kept(source.inbox, "1")), 30)
    await source.close()
