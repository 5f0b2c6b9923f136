"""Message queues at their addresses: send pointers to jobs, receive, keep, and delete messages.

The address of a queue names its server and region (https://sqs.eu-west-1.amazonaws.com/123456789012/mail), so no other
setting is needed. Credentials are found as the AWS tools find them: environment, profile, or the machine's role.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tenure.errors import Unavailable, require_extra

#: SQS takes and gives at most this many messages in one call.
MAX_MESSAGES = 10
#: Seconds for one call without an answer; a receive may wait 20 s for a message on top of that.
_CALL_S = 10
#: Seconds until a send is given up, with its wait for its turn, and the sends to one queue that run at once.
_SEND_S, _SENDS_AT_ONCE = 30, 5
#: Connections to one server: a queue that does not answer keeps some, and must leave enough for the others.
_CONNECTIONS = 100
_REGION_IN_HOST = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\Z")


class Message(NamedTuple):
    """A received message: its text, and the handle that keeps or deletes this delivery of it."""

    body: str
    handle: str
    #: How often the queue has delivered it.
    deliveries: int


class Problem(NamedTuple):
    """Why a message was not taken."""

    text: str
    #: Whether the queue took nothing of the call, so that another call is likely to fail too.
    is_unavailable: bool


def pointer(job_id: int) -> str:
    """Return the body of the message that points to a job."""
    return json.dumps({"task_id": str(job_id)})


def _server(url: str) -> tuple[str, str | None]:
    """The server of a queue's address, and the region if the address names it."""
    parts = urlsplit(url)
    found = _REGION_IN_HOST.search(parts.hostname or "")
    return f"{parts.scheme}://{parts.netloc}", found and found[1]


class MessageQueues:
    """The calls to message queues; one client for each server, opened at its first use."""

    def __init__(self) -> None:
        require_extra("sqs", "wake-ups through SQS", "aiobotocore")
        self._stack = AsyncExitStack()
        self._clients: dict[str, Any] = {}
        self._sending: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_SENDS_AT_ONCE))
        self._opening = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Make the calls available during the block."""
        queues = cls()
        async with queues._stack:
            yield queues

    async def send(self, url: str, job_ids: Sequence[int]) -> list[Problem | None]:
        """Send a pointer to each job; one entry per job, in order: None, or why the message was not taken."""
        parts = [job_ids[start : start + MAX_MESSAGES] for start in range(0, len(job_ids), MAX_MESSAGES)]
        answers: list[list[Problem | None]] = await asyncio.gather(*(self._send(url, part) for part in parts))
        return [problem for part in answers for problem in part]

    async def _send(self, url: str, job_ids: Sequence[int]) -> list[Problem | None]:
        entries = [{"Id": str(n), "MessageBody": pointer(job_id)} for n, job_id in enumerate(job_ids)]
        problems: list[Problem | None] = [None] * len(job_ids)
        try:
            async with asyncio.timeout(_SEND_S), self._sending[url]:
                answer = await self._call(url, "send_message_batch", Entries=entries)
        except Unavailable as error:
            return [Problem(str(error), is_unavailable=True)] * len(job_ids)
        except TimeoutError:
            return [Problem(f"queue {url} did not answer for {_SEND_S} s", is_unavailable=True)] * len(job_ids)
        for failed in answer.get("Failed", ()):
            why = f"queue {url} refused the message: {failed.get('Code')}: {failed.get('Message')}"
            problems[int(failed["Id"])] = Problem(why, is_unavailable=False)
        return problems

    async def receive(self, url: str, *, limit: int, wait_s: int, visibility_s: int | None = None) -> list[Message]:
        """Receive messages, waiting for the first; for `visibility_s` seconds nobody else receives them."""
        options: dict[str, Any] = {"MaxNumberOfMessages": min(limit, MAX_MESSAGES), "WaitTimeSeconds": wait_s}
        if visibility_s is not None:
            options["VisibilityTimeout"] = visibility_s
        answer = await self._call(url, "receive_message", AttributeNames=["ApproximateReceiveCount"], **options)
        return [
            Message(one["Body"], one["ReceiptHandle"], int(one.get("Attributes", {}).get("ApproximateReceiveCount", 1)))
            for one in answer.get("Messages", ())
        ]

    async def keep(self, url: str, handle: str, seconds: int) -> None:
        """Hide a received message for this many seconds from now; 0 gives it back at once."""
        await self._call(url, "change_message_visibility", ReceiptHandle=handle, VisibilityTimeout=seconds)

    async def delete(self, url: str, handle: str) -> None:
        """Delete a received message."""
        await self._call(url, "delete_message", ReceiptHandle=handle)

    async def visibility_s(self, url: str) -> int:
        """Return for how many seconds the queue hides a message that was received."""
        answer = await self._call(url, "get_queue_attributes", AttributeNames=["VisibilityTimeout"])
        return int(answer["Attributes"]["VisibilityTimeout"])

    async def _call(self, url: str, action: str, **options: Any) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = await self._client(url)
            answer: Mapping[str, Any] = await getattr(client, action)(QueueUrl=url, **options)
        except ClientError as error:
            problem = error.response.get("Error", {})
            raise Unavailable(
                f"queue {url} refused {action}: {problem.get('Code')}: {problem.get('Message')}"
            ) from error
        except (BotoCoreError, OSError) as error:
            raise Unavailable(f"queue {url} cannot be reached: {error}") from error
        return answer

    async def _client(self, url: str) -> Any:
        server, region = _server(url)
        async with self._opening:
            if server not in self._clients:
                self._clients[server] = await self._stack.enter_async_context(_open_client(server, region))
        return self._clients[server]


def _open_client(server: str, region: str | None) -> Any:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    session = get_session()
    config = AioConfig(
        connect_timeout=_CALL_S,
        read_timeout=20 + _CALL_S,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": 2},
    )
    region = region or session.get_config_variable("region") or "us-east-1"
    return session.create_client("sqs", endpoint_url=server, region_name=region, config=config)
