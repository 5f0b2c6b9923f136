"""The inbox of a worker: the message of each task that it claims or holds.

The worker's event loop and its service thread share it. A message is kept from its receipt until the task's completion
is answered, or until the worker no longer holds the task.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from tenure.sqs.message_queue import Message

#: Where a queue hides messages for no time at all, they are kept for this many seconds.
_SHORTEST_S = 1


@dataclass(slots=True)
class KeptMessage:
    """A message, under the lease token with which its task is claimed. Times are monotonic seconds."""

    token: UUID
    task_id: str
    message: Message
    #: When it is to be kept hidden for longer.
    keep_at: float
    #: Whether the claim is under way; afterwards only a held task keeps its message.
    is_claimed: bool = False
    #: The attempt, where document 001's own routes report about the task.
    attempt: int | None = None
    #: When the lease ends, as the last answer said.
    lease_expires_at: datetime | None = None


@dataclass(slots=True)
class Inbox:
    """The messages of one worker from one queue; safe for several threads."""

    url: str
    #: For how long the queue hides a message that was received, in seconds.
    visibility_s: int = 60
    _kept: dict[UUID, KeptMessage] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def extension_s(self) -> int:
        """For how many seconds a message is hidden each time that it is kept."""
        return max(self.visibility_s, _SHORTEST_S)

    def next_keep(self, sent_at: float) -> float:
        """When to keep a message again that was received or kept at this time: at half of its visibility."""
        return sent_at + self.extension_s / 2

    def add(self, token: UUID, task_id: str, message: Message, received_at: float) -> KeptMessage:
        """Keep a message while its task is claimed."""
        kept = KeptMessage(token, task_id, message, self.next_keep(received_at))
        with self._lock:
            self._kept[token] = kept
        return kept

    def get(self, token: UUID) -> KeptMessage | None:
        """The message of the task with this lease; None without one."""
        with self._lock:
            return self._kept.get(token)

    def take(self, token: UUID) -> Message | None:
        """Stop keeping a message, and return it; only one caller gets it."""
        with self._lock:
            kept = self._kept.pop(token, None)
        return None if kept is None else kept.message

    def due(self, now: float, held: Callable[[], Mapping[UUID, bool]]) -> list[KeptMessage]:
        """The messages to keep now. One whose claim has ended and whose task is not held is forgotten, not deleted.

        `held` returns the leases that the worker holds, and whether to keep the message of each.
        """
        with self._lock:
            known = [(kept, kept.is_claimed) for kept in self._kept.values()]
        holds = held()  # read after `is_claimed`: a task whose claim has ended is among the held ones before
        due = []
        for kept, is_claimed in known:
            if is_claimed and kept.token not in holds:
                self.take(kept.token)
            elif kept.keep_at <= now and holds.get(kept.token, True):
                due.append(kept)
        return due


def read_task_id(body: str) -> str:
    """The id of the task that a message points to; ValueError says why the message is no pointer."""
    try:
        pointer = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    task_id = pointer.get("task_id") if isinstance(pointer, dict) else None
    if task_id is None:
        raise ValueError("it has no task_id")
    # Without this check a claim for text that cannot be sent would fail, and hold up the claims for other messages.
    if not isinstance(task_id, str) or not 1 <= len(task_id) <= 100 or not task_id.isprintable():
        raise ValueError("its task_id is not a text of 1 to 100 printable characters")
    return task_id
