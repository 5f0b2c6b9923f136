"""Wake-ups: hints that jobs exist, sent by NOTIFY after their commit. Workers poll with or without them.

    enqueue ─▶ commit ─▶ request(contract, queue) ─▶ one sender per store ─▶ NOTIFY tenure, 'contract:queue'
                         (returns at once)           (pauses 20 ms per queue)

A NOTIFY takes a lock at commit that all databases of the server share, so there is never one per job. The first wake-up
of a queue is sent at once. Wake-ups during its pause become one more at the end of the pause, so the last one is never
lost. A failure here is harmless: the job exists, and a poll finds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from tenure.jobs.job import NewJob
from tenure.postgres.statement import Plan, Row, statement

CHANNEL = "tenure"
#: The pause of a queue after a wake-up, in seconds.
PAUSE_S = 0.02
_CLOSE_TIMEOUT_S = 1.0
#: After the notification queue was found full: seconds without wake-ups, and between two warnings.
_QUIET_S, _WARN_INTERVAL_S = 10.0, 300.0
_log = logging.getLogger("tenure.wake")


def to_payload(contract: str, queue: str) -> str:
    """Return the payload of a wake-up; an empty name stands for any. Only a queue's name may contain a colon."""
    return f"{contract}:{queue}"


def parse_payload(text: str) -> tuple[str, str] | None:
    """Return the contract and queue of a wake-up; None for any other payload."""
    contract, colon, queue = text.partition(":")
    return (contract, queue) if colon else None


def queues_to_wake(jobs: Iterable[NewJob]) -> set[tuple[str, str]]:
    """Return the (contract, queue) of the jobs that can be claimed now; any clock is good enough for a hint."""
    now = datetime.now(UTC)
    return {
        (job.contract, job.queue)
        for job in jobs
        if job.notify and not job.delay_ms and (job.run_at is None or job.run_at <= now)
    }


def notify(queues: Iterable[tuple[str, str]]) -> Plan[list[Row]]:
    """Send the wake-ups of these (contract, queue) in the caller's transaction; workers receive them at its commit.

    Use it with `queues_to_wake(jobs)` after the plan that makes the jobs. Nothing is sent, and no row returned, if
    PostgreSQL's notification queue is half full: a full one would fail the caller's commit.
    """
    names = sorted(to_payload(*one) for one in set(queues))
    rows: list[Row] = (yield statement("notify", {"names": names})) if names else []
    return rows


class Overflow:
    """Whether PostgreSQL's notification queue was found full; warns at most every few minutes."""

    def __init__(self) -> None:
        self._until = self._warn_again_at = float("-inf")
        #: It was found full, and no later attempt found room.
        self.is_full = False

    @property
    def is_recent(self) -> bool:
        """Whether it was found full in the last seconds: then no wake-ups are attempted."""
        return time.monotonic() < self._until

    def mark_clear(self) -> None:
        """Note that a wake-up was sent."""
        self.is_full = False

    def noted(self) -> None:
        """Note that it was found full: pause wake-ups for a while, and log a warning."""
        now = time.monotonic()
        self.is_full = True
        self._until = now + _QUIET_S
        if now >= self._warn_again_at:
            self._warn_again_at = now + _WARN_INTERVAL_S
            _log.warning(
                "PostgreSQL's notification queue is full: jobs are made without wake-ups, and workers find them by "
                "polling. Next: end the session that listens inside an open transaction: select pid, "
                "application_name, xact_start from pg_stat_activity where state like 'idle in transaction%' order by "
                "xact_start"
            )


class Wakeups:
    """Sends the wake-ups of one store from its own task."""

    def __init__(self, run: Callable[[Callable[[], Plan[Any]]], Awaitable[Any]], *, on: bool) -> None:
        self._run = run
        self.on = on
        self.overflow = Overflow()
        self._closing = False
        self._wanted: set[tuple[str, str]] = set()
        self._paused_until: dict[tuple[str, str], float] = {}
        self._more = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    def request(self, queues: Iterable[tuple[str, str]]) -> None:
        """Send wake-ups for these (contract, queue) soon; returns at once and cannot fail."""
        new = set(queues) if self.on else None
        if not new:
            return
        self._wanted |= new
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())
        elif any(self._paused_until.get(one, 0.0) <= time.monotonic() for one in new):
            self._more.set()

    def take_immediate(self, job: NewJob) -> str | None:
        """Return the wake-up to send together with a new job; None if its queue pauses or needs none."""
        # While the queue is full, only the sender tries: it checks the usage, so PostgreSQL frees read entries.
        named = queues_to_wake([job]) if self.on and not self.overflow.is_full else set()
        for one in named:
            now = time.monotonic()
            if self._paused_until.get(one, 0.0) <= now:
                self._paused_until[one] = now + PAUSE_S
                return to_payload(*one)
        return None

    async def close(self) -> None:
        """Send the requested wake-ups without a pause, for one second at most."""
        self._closing = True
        if self._sender is None or self._sender.done():
            return
        self._more.set()
        await asyncio.wait({self._sender}, timeout=_CLOSE_TIMEOUT_S)
        self._sender.cancel()

    async def _send(self) -> None:
        while self._wanted:
            now = time.monotonic()
            self._paused_until = {
                one: until for one, until in self._paused_until.items() if until > now and not self._closing
            }
            ready = self._wanted - self._paused_until.keys()
            if not ready:
                await self._wait(min(self._paused_until[one] for one in self._wanted) - now)
                continue
            self._wanted -= ready
            # Also while they are being sent, so that no new job sends the same wake-up beside it.
            self._paused_until |= dict.fromkeys(ready, now + PAUSE_S)
            try:
                if not self.overflow.is_recent:
                    sent = await self._run(lambda ready=ready: notify(ready))  # type: ignore[misc]
                    (self.overflow.mark_clear if sent else self.overflow.noted)()
            except Exception as error:
                _log.debug("wake-ups were not sent: %s", error)
            self._paused_until |= dict.fromkeys(ready, time.monotonic() + PAUSE_S)

    async def _wait(self, seconds: float) -> None:
        """Wait this long, or until a queue without a pause is requested."""
        self._more.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._more.wait()
        except TimeoutError:
            pass
