"""Wake-ups: hints that work is there, sent as NOTIFY once the jobs are committed. Workers poll with or without.

    enqueue ─▶ committed ─▶ want(contract, queue) ─▶ one sender a store ─▶ NOTIFY tenure, 'contract:queue'
                            (waits for nothing)      (20 ms of rest per queue)

A NOTIFY takes a lock at commit that all databases of the server share, so there is never one per job: the first
wake-up of a queue goes at once, those that come while it rests are one more at the end of the rest, so the last one is
never lost. What goes wrong here is nobody's trouble: the job exists, and is found a poll later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from tenure.job import NewJob
from tenure.postgres.statement import Plan, Row, statement

CHANNEL = "tenure"
#: How long a queue rests after a wake-up, in seconds.
REST = 0.02
_LAST_WORDS = 1.0
_log = logging.getLogger("tenure.wake")


def spelled(contract: str, queue: str) -> str:
    """A wake-up as it is sent; an empty name stands for any. A contract's name has no colon, a queue's may have."""
    return f"{contract}:{queue}"


def read(text: str) -> tuple[str, str] | None:
    """The contract and queue of a wake-up; None for what is none."""
    contract, colon, queue = text.partition(":")
    return (contract, queue) if colon else None


def due(jobs: Iterable[NewJob]) -> set[tuple[str, str]]:
    """The (contract, queue) of those jobs that can be claimed at once; any clock is good enough for a hint."""
    now = datetime.now(UTC)
    return {(job.contract, job.queue) for job in jobs if not job.delay_ms and (job.run_at is None or job.run_at <= now)}


def notify(which: Iterable[tuple[str, str]]) -> Plan[list[Row]]:
    """The wake-ups of these (contract, queue) as a plan, for a transaction of the caller's: heard when it commits.

    With `due(jobs)`, run it after the plan that makes the jobs. Nothing is sent for nothing.
    """
    names = sorted(spelled(*one) for one in set(which))
    rows: list[Row] = (yield statement("notify", {"names": names})) if names else []
    return rows


class Wakeups:
    """Sends the wake-ups of one store, from a task of its own."""

    def __init__(self, run: Callable[[Callable[[], Plan[Any]]], Awaitable[Any]], *, on: bool) -> None:
        self._run = run
        self.on = on
        self._closing = False
        self._wanted: set[tuple[str, str]] = set()
        self._resting: dict[tuple[str, str], float] = {}
        self._more = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    def want(self, which: Iterable[tuple[str, str]]) -> None:
        """Wake whoever takes jobs of these (contract, queue), soon; waits for nothing and cannot fail."""
        new = set(which) if self.on else None
        if not new:
            return
        self._wanted |= new
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())
        elif any(self._resting.get(one, 0.0) <= time.monotonic() for one in new):
            self._more.set()

    def along(self, job: NewJob) -> str | None:
        """The wake-up for a job that is about to be made, to be sent with it; None where it rests or is not wanted."""
        named = due([job]) if self.on else set()
        for one in named:
            now = time.monotonic()
            if self._resting.get(one, 0.0) <= now:
                self._resting[one] = now + REST
                return spelled(*one)
        return None

    async def close(self) -> None:
        """Send what is still wanted without any rest, for a moment at the most."""
        self._closing = True
        if self._sender is None or self._sender.done():
            return
        self._more.set()
        await asyncio.wait({self._sender}, timeout=_LAST_WORDS)
        self._sender.cancel()

    async def _send(self) -> None:
        while self._wanted:
            now = time.monotonic()
            self._resting = {one: until for one, until in self._resting.items() if until > now and not self._closing}
            ready = self._wanted - self._resting.keys()
            if not ready:
                await self._rest(min(self._resting[one] for one in self._wanted) - now)
                continue
            self._wanted -= ready
            try:
                await self._run(lambda ready=ready: notify(ready))  # type: ignore[misc]
            except Exception as error:
                _log.debug("wake-ups were not sent: %s", error)
            self._resting |= dict.fromkeys(ready, time.monotonic() + REST)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until a queue that need not rest is wanted too."""
        self._more.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._more.wait()
        except TimeoutError:
            pass
