"""A job that this worker runs: what the rest of the worker may do to it."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tenure.context import Context
from tenure.job import Held, Job
from tenure.task import Task

#: Why a handler was interrupted.
Why = Literal["lost", "stopping"]

_FLOOR_S = 1.0
#: How often somebody looks whose heart is to beat.
TICK_S = 0.1


class Terms(NamedTuple):
    """What the jobs of one claim and one type have in common."""

    task: Task[..., Any] | None
    #: For how long they are leased: by the database's clock it may only be longer.
    lease_s: float
    #: How often their holder beats, where their contract or type says so.
    interval_s: float | None
    #: How long one run may take, where the job does not say so itself.
    longest_s: float


class Running:
    """One claimed job from its claim until the database has heard what became of it."""

    __slots__ = (
        "answer_lost", "ask_to_stop", "asked", "began", "context", "ctx", "expires", "held", "interrupt", "is_ended",
        "is_handling", "is_late", "is_waiting", "job", "longest_s", "next_beat", "runner", "stage", "task", "terms",
        "timer", "until", "why",
    )  # fmt: skip

    def __init__(self, job: Job, terms: Terms, asked: float, longest_s: float) -> None:
        self.job = job
        self.held: Held = job.held
        self.task = terms.task
        self.terms = terms
        #: When it was asked for, by the monotonic clock; and how long its handler may run, in seconds.
        self.asked = asked
        self.longest_s = longest_s
        #: When its lease would run out, and until when anybody beats: not for a handler that hangs longer than any may.
        self.expires = asked + terms.lease_s
        self.until = self.expires + longest_s
        self.plan_beat(asked)
        #: The asyncio task in which it lives.
        self.runner: asyncio.Task[None] | None = None
        self.ctx: Context | None = None
        #: The stage that its handler has named, while it is in that block.
        self.stage: str | None = None
        #: What its handler left behind, for those who hear of its end.
        self.context: contextvars.Context | None = None
        #: Set while a handler runs: ends it as well as it can be ended.
        self.interrupt: Callable[[], Any] | None = None
        #: Set while a handler runs elsewhere: tells it that it is asked to stop.
        self.ask_to_stop: Callable[[], None] | None = None
        self.why: Why | None = None
        #: Whether the database may have heard something of which its answer did not come.
        self.answer_lost = False
        #: Whether the handler has ended: from then on the job is not interrupted, but told of.
        self.is_ended = False
        self.began = 0.0
        #: Whether it has waited for anything, whether its handler is at it, and whether that took too long.
        self.is_waiting = self.is_handling = self.is_late = False
        self.timer: asyncio.TimerHandle | None = None

    def plan_beat(self, now: float) -> None:
        """Beat at half of what remains, or at the contract's interval, whichever comes first.

        Not sooner than in a second, unless that could be too late for a lease of which less is left than half.
        """
        left, interval_s = self.expires - now, self.terms.interval_s
        half = max(TICK_S if left < self.terms.lease_s / 2 else _FLOOR_S, left / 2)
        self.next_beat = now + (half if interval_s is None else min(half, interval_s))

    def waits(self) -> None:
        """It waits for something. If that is the handler, its time runs: only while it waits can it be interrupted."""
        self.is_waiting = True
        if self.is_handling:
            left = self.longest_s - (time.monotonic() - self.began)
            self.timer = asyncio.get_running_loop().call_later(max(0.0, left), self._late)

    def begins(self, interrupt: Callable[[], Any]) -> None:
        """Its handler begins, and can be interrupted so."""
        self.interrupt, self.is_handling, self.began = interrupt, True, time.monotonic()
        self.until = self.began + self.terms.lease_s + self.longest_s
        if self.is_waiting:
            self.waits()

    def returns(self) -> None:
        """Its handler is over, however it ended."""
        self.interrupt = self.ask_to_stop = None
        self.is_handling = False
        if self.timer is not None:
            self.timer.cancel()

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

    def _late(self) -> None:
        if self.interrupt is not None and self.why is None:
            self.is_late = True
            self.interrupt()
