"""Message queues for tests: moto's HTTP server on loopback, and what a test asks of its queues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from uuid import uuid4

import boto3
from moto.server import ThreadedMotoServer

#: What the AWS tools find in the environment; moto accepts any.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class MessageServer:
    """A server of message queues."""

    def __init__(self, port: int) -> None:
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

    def purge(self, url: str) -> None:
        """Lose all messages of a queue."""
        self.client.purge_queue(QueueUrl=url)


@contextmanager
def message_server() -> Iterator[MessageServer]:
    """A server of message queues, with credentials for it in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        with mock.patch.dict(os.environ, CREDENTIALS):
            yield MessageServer(port)
    finally:
        server.stop()
