"""One claimed job while this worker holds it: its limits, its lease, its handler and how to stop that."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tenure.context import Context
from tenure.contracts.declaration import Contract
from tenure.jobs.job import Held, Job
from tenure.task import Task

#: Why a handler was stopped, or why this worker does not report an outcome.
StopReason = Literal["lost", "stopping", "handed back", "cancelled"]

#: The shortest time to the next heartbeat, in seconds, while at least half of the lease is left.
_SHORTEST_HEARTBEAT_S = 1.0
#: How often the service thread checks which heartbeats are due, in seconds.
TICK_S = 0.1


class RunLimits(NamedTuple):
    """What the jobs of one claim and one type have in common."""

    task: Task[..., Any] | None
    contract: Contract
    #: The length of the lease. The real lease may be longer by the database's clock, never shorter.
    lease_s: float
    #: Whether the contract wants to know when the handler starts.
    reports_start: bool
    #: The heartbeat interval of the job type or the contract; None where neither has one.
    heartbeat_s: float | None
    #: How long a handler may run, where the job's payload gives no limit of its own.
    timeout_s: float
    #: How long after the claim the first heartbeat is due.
    first_heartbeat_s: float = 0.0


def seconds_to_heartbeat(left_s: float, limits: RunLimits) -> float:
    """When the next heartbeat is due: at half of the remaining lease or at the contract's interval, whichever is first.

    That is at least one second from now, except where less than half of the lease is left.
    """
    half = max(TICK_S if left_s < limits.lease_s / 2 else _SHORTEST_HEARTBEAT_S, left_s / 2)
    return half if limits.heartbeat_s is None else min(half, limits.heartbeat_s)


class RunningJob:
    """One claimed job, from its claim until the database has answered its last call. Times are monotonic seconds."""

    __slots__ = (
        "answer_lost", "ask_to_stop", "blocks_loop", "claimed_at", "context", "contract", "ctx", "ends_in_transaction",
        "handler_began_at", "handler_ended", "handler_runs", "has_waited", "heartbeat_at", "heartbeats_until", "held",
        "interrupt", "job", "lease_ends_at", "limits", "runner", "stage", "stop_reason", "task", "timed_out",
        "timeout_s", "timer", "waits_for_process",
    )  # fmt: skip

    def __init__(self, job: Job, limits: RunLimits, claimed_at: float, timeout_s: float) -> None:
        self.job = job
        self.held: Held = job.held
        self.task, self.contract = limits.task, limits.contract
        self.limits = limits
        #: When the claim was sent, and how long the handler may run.
        self.claimed_at = claimed_at
        self.timeout_s = timeout_s
        self.lease_ends_at = claimed_at + limits.lease_s
        #: No heartbeat is sent after this time: a handler that hangs past its limit does not keep its lease for ever.
        self.heartbeats_until = self.lease_ends_at + timeout_s
        self.heartbeat_at = claimed_at + limits.first_heartbeat_s
        #: The asyncio task that runs the job.
        self.runner: asyncio.Task[None] | None = None
        self.ctx: Context | None = None
        #: The stage block in which the handler is now.
        self.stage: str | None = None
        #: The context variables as the handler left them, for the middleware's `finish`.
        self.context: contextvars.Context | None = None
        #: Stops the handler, or ends the wait for a process of its own; None while neither is under way.
        self.interrupt: Callable[[], Any] | None = None
        #: Passes a cancel request to a handler in another process.
        self.ask_to_stop: Callable[[], None] | None = None
        self.stop_reason: StopReason | None = None
        #: Whether a call may have been done although its answer was lost.
        self.answer_lost = False
        #: Whether its handler called `ctx.complete_in`. Only the job's log tells whether that has committed.
        self.ends_in_transaction = False
        #: Whether the handler has ended: from then on its outcome is reported and the job no longer interrupted.
        self.handler_ended = False
        self.handler_began_at = 0.0
        #: Whether the job has awaited anything, whether its handler runs, and whether that ran longer than it may.
        self.has_waited = self.handler_runs = self.timed_out = False
        #: Whether it waits for a process of its own, and is handed back if that takes too long.
        self.waits_for_process = False
        self.timer: asyncio.TimerHandle | None = None
        #: Whether its handler blocks the event loop; the next heartbeat reports it.
        self.blocks_loop = False

    def plan_heartbeat(self, now: float) -> None:
        """Plan the next heartbeat."""
        self.heartbeat_at = now + seconds_to_heartbeat(self.lease_ends_at - now, self.limits)

    def note_wait(self) -> None:
        """Note that the job awaits something. If its handler runs, start the timer: only a wait can be interrupted."""
        self.has_waited = True
        if self.handler_runs:
            left = self.timeout_s - (time.monotonic() - self.handler_began_at)
            self.timer = asyncio.get_running_loop().call_later(max(0.0, left), self._time_out)

    def start_handler(self, interrupt: Callable[[], Any]) -> None:
        """Note that the handler starts, and how to interrupt it."""
        self.interrupt, self.handler_runs, self.handler_began_at = interrupt, True, time.monotonic()
        self.heartbeats_until = self.handler_began_at + self.limits.lease_s + self.timeout_s
        if self.has_waited:
            self.note_wait()

    def note_completion(self, ends: bool) -> None:
        """Note that a transaction of the handler's may end the job; `ends` False: the call for that was wrong."""
        self.ends_in_transaction = ends
        self.answer_lost = True  # whether it commits is not known here

    def end_handler(self) -> None:
        """Note that the handler has ended, whether it returned or raised."""
        self.interrupt = self.ask_to_stop = None
        self.handler_runs = False
        if self.timer is not None:
            self.timer.cancel()

    def is_stopped(self) -> bool:
        """Whether the handler was stopped, so that this worker does not report an outcome."""
        return self.stop_reason is not None

    def stop(self, reason: StopReason) -> None:
        """Interrupt the handler; the first reason stays."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.interrupt is not None:
                self.interrupt()

    def request_cancel(self) -> None:
        """Let the handler see that it is asked to stop."""
        if self.ctx is not None:
            self.ctx._request_cancel()
        if self.ask_to_stop is not None:
            self.ask_to_stop()

    def _time_out(self) -> None:
        if self.interrupt is not None and self.stop_reason is None:
            self.timed_out = True
            self.interrupt()
