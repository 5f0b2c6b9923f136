"""A job that this worker runs: what the rest of the worker may do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from tenure.context import Context
from tenure.job import Held, Job
from tenure.task import Task

#: Why a handler was interrupted.
Why = Literal["lost", "timeout", "stopping"]


class Running:
    """One claimed job from its claim until the database has heard what became of it."""

    def __init__(self, job: Job, task: Task[..., Any] | None, asked: float) -> None:
        self.job = job
        self.held: Held = job.held
        self.task = task
        #: When it was asked for, by the monotonic clock, and how long its lease was given for: it may only be shorter.
        self.asked = asked
        self.lease_s = 0.0
        self.ctx: Context | None = None
        #: Set while a handler runs: ends it as well as it can be ended.
        self.interrupt: Callable[[], None] | None = None
        #: Set while a handler runs elsewhere: tells it that it is asked to stop.
        self.ask_to_stop: Callable[[], None] | None = None
        self.why: Why | None = None
        #: Whether the database may have heard something of which its answer did not come.
        self.answer_lost = False
        #: Whether the handler has ended: from then on the job is not interrupted, but told of.
        self.is_ended = False

    def was_ended(self) -> bool:
        """Whether the handler was interrupted, and what it did is no longer ours to tell."""
        return self.why is not None

    def end(self, why: Why) -> None:
        """Interrupt the handler; the first reason stands."""
        if self.why is None:
            self.why = why
            if self.interrupt is not None:
                self.interrupt()

    def cancel_requested(self) -> None:
        """Let the handler see that it is asked to stop."""
        if self.ctx is not None:
            self.ctx._ask_to_stop()
        if self.ask_to_stop is not None:
            self.ask_to_stop()


def cancels(task: asyncio.Task[Any]) -> Callable[[], None]:
    """An interrupt that cancels what this asyncio task is waiting for."""

    def cancel() -> None:
        task.cancel()

    return cancel
