"""What the parts of a running worker share: its job source, its tasks, its slots and its held jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.client.job_source import JobSource
from tenure.contracts.declaration import Contract
from tenure.jobs.live_worker import LiveWorker
from tenure.middleware import Middleware
from tenure.task import Task
from tenure.worker.heartbeat import HeartbeatLoop


class Slots:
    """A worker's slots: taken by a claim, released when the handler has ended (in a thread: when the thread has)."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.busy = 0
        #: How many successes wait for the database's answer.
        self.unanswered = 0
        #: Set when the claim loop may have work: a slot is free, a wake-up came, or the worker stops.
        self.changed = asyncio.Event()
        #: What happened to the jobs: claimed, succeeded, failed, retried, refused, …
        self.counts: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """How many jobs can start now; fewer while more successes than `concurrency` wait for their answers."""
        return self.concurrency - max(self.busy, self.busy + self.unanswered - self.concurrency)

    def take(self, jobs: int) -> None:
        """Take a slot for each of this many jobs."""
        self.busy += jobs

    def release(self) -> None:
        """Release one slot."""
        self.busy -= 1
        self.changed.set()

    def note_answers(self, jobs: int) -> None:
        """Note that the database has answered this many successes."""
        self.unanswered -= jobs
        self.changed.set()


@dataclass(frozen=True, slots=True)
class SharedParts:
    """One connected worker."""

    source: JobSource
    worker: LiveWorker
    #: The contracts whose jobs it claims, and the tasks of its application, by name.
    contracts: Mapping[str, Contract]
    tasks: Mapping[str, Task[..., Any]]
    middleware: Sequence[Middleware]
    slots: Slots
    #: The jobs that it holds.
    heartbeats: HeartbeatLoop
    #: The version of its application; None: unknown.
    release: str | None = None
