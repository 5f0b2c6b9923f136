"""Message queues for tests: moto's HTTP server on loopback, and what a test asks of its queues."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock
from uuid import uuid4

import boto3
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends

#: What the AWS tools find in the environment; moto accepts any.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Asked(NamedTuple):
    """A request to the server: what it asks for, and its fields."""

    action: str
    fields: dict[str, Any]


class Post:
    """The way to the server: keeps a log of the requests, and is a bad one where a test says so."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._changing = threading.Lock()
        self.asked: list[Asked] = []
        #: With it, half of the messages get lost on their way, half of the others arrive twice, late and in any order.
        self.chance: random.Random | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        fields = json.loads(body) if action else {}
        self.asked.append(Asked(action, fields))
        if action == "ReceiveMessage":
            body = json.dumps(self._wait(fields)).encode()
        if action == "SendMessageBatch" and self.chance is not None:
            body = json.dumps(fields | {"Entries": self._mistreat(fields["Entries"], self.chance)}).encode()
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        if action == "SendMessageBatch" and body.endswith(b'"Entries": []}'):
            start_response("200 OK", [("Content-Type", "application/x-amz-json-1.0")])
            return [b'{"Successful": [], "Failed": []}']
        with self._changing:  # the server breaks when two requests change a queue at once
            return self._app(environ, start_response)

    def _wait(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Wait for a message, because the server would keep the others waiting; the request without a wait."""
        until = time.monotonic() + fields.get("WaitTimeSeconds", 0)
        while time.monotonic() < until:
            with self._changing:
                queue = _queues().get(fields["QueueUrl"].rpartition("/")[2])
                if queue is None or any(one.visible and not one.delayed for one in queue._messages):
                    break
            time.sleep(0.02)
        return fields | {"WaitTimeSeconds": 0}

    @staticmethod
    def _mistreat(entries: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
        kept = [one for one in entries if chance.random() < 0.5]
        kept += [one | {"Id": f"{one['Id']}again"} for one in kept if chance.random() < 0.5]
        chance.shuffle(kept)
        return [one | {"DelaySeconds": chance.choice([0, 0, 1])} for one in kept][:10]


def _milliseconds() -> float:
    return 1_000 * time.time()


def _queues() -> Any:
    """The server's queues by their names."""
    return sqs_backends["123456789012"]["us-east-1"].queues


class MessageServer:
    """A server of message queues."""

    def __init__(self, port: int, post: Post) -> None:
        self.post = post
        self.address = f"http://127.0.0.1:{port}"
        self.client: Any = boto3.client(
            "sqs",
            endpoint_url=self.address,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def make_queue(self, **attributes: str) -> str:
        """Make a queue; returns its address."""
        url: str = self.client.create_queue(QueueName=f"jobs-{uuid4().hex[:8]}", Attributes=attributes)["QueueUrl"]
        return url.replace("localhost", "127.0.0.1")

    def count(self, url: str) -> int:
        """How many messages the queue has, also those that somebody has received."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def take_all(self, url: str) -> list[str]:
        """Receive and delete all visible messages; returns their bodies."""
        bodies = []
        while True:
            answer = self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0)
            for message in answer.get("Messages", ()):
                bodies.append(message["Body"])
                self.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            if not answer.get("Messages"):
                return bodies

    def tasks(self, url: str) -> list[int]:
        """Receive and delete all visible messages; returns the ids of their tasks."""
        return [int(json.loads(body)["task_id"]) for body in self.take_all(url)]

    def put(self, url: str, *task_ids: int | str) -> None:
        """Send a pointer to each of these tasks."""
        for task_id in task_ids:
            self.client.send_message(QueueUrl=url, MessageBody=json.dumps({"task_id": str(task_id)}))

    def asked(self, action: str, url: str) -> list[dict[str, Any]]:
        """The requests for this action on this queue, oldest first."""
        return [one.fields for one in list(self.post.asked) if one.action == action and one.fields["QueueUrl"] == url]

    def messages(self, url: str) -> list[Any]:
        """The messages of a queue as the server keeps them, hidden or not."""
        return list(_queues()[url.rpartition("/")[2]]._messages)

    def passes(self, url: str, seconds: float) -> None:
        """Let so much of the visibility of received messages pass."""
        for message in self.messages(url):
            message.visible_at -= 1_000 * seconds

    def purge(self, url: str) -> None:
        """Lose all messages of a queue."""
        self.client.purge_queue(QueueUrl=url)


@contextmanager
def message_server() -> Iterator[MessageServer]:
    """A server of message queues, with credentials for it in the environment."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        assert server._server is not None
        server._server.app = post = Post(server._server.app)
        # Each request reads the time twice for each message of its queue, and moto's own way takes microseconds.
        quick = mock.patch("moto.sqs.models.unix_time_millis", _milliseconds)
        with mock.patch.dict(os.environ, CREDENTIALS), quick:
            yield MessageServer(port, post)
    finally:
        server.stop()
