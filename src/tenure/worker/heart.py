"""Heartbeats: on a thread and a connection of their own, so that a blocked event loop is not a dead worker.

A job beats at its contract's interval where that has one, and always when half of what remains of its lease is gone (at
least a second from now): after a beat that failed, half of the rest. Times are this process's monotonic clock, counted
from before the call that gave the lease, so they can only be early; the database alone says whether a lease lives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from tenure.errors import Busy, Refused, TenureError
from tenure.job import Held
from tenure.outcome import Noted
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

_FLOOR_S = 1.0
_TICK_S = 0.1
_LARGEST = 1_000
_PATIENCE_S = 5.0


@dataclass(slots=True)
class Beating:
    """A job that is held: when it beats next, and when its lease would run out."""

    held: Held
    length_s: float
    interval_s: float | None
    expires: float
    next: float
    #: Nobody beats for a handler that hangs for longer than any may run.
    until: float

    def plan(self, now: float) -> None:
        """Beat at half of what remains, or at the contract's interval, whichever comes first.

        Not sooner than in a second, unless that could be too late for a lease of which less is left than half.
        """
        left = self.expires - now
        half = max(_TICK_S if left < self.length_s / 2 else _FLOOR_S, left / 2)
        self.next = now + (half if self.interval_s is None else min(half, self.interval_s))


class Heart:
    """Beats for the jobs that it was given until they are taken back."""

    def __init__(self, lost: Callable[[Held], None], cancel_requested: Callable[[Held], None]) -> None:
        self._lost = lost
        self._cancel_requested = cancel_requested
        self._beating: dict[tuple[int, int], Beating] = {}
        self.beats = 0

    def hold(self, held: Held, *, length_s: float, interval_s: float | None, since: float, longest_s: float) -> None:
        """Beat for this job from now on; `since` is when it was asked for."""
        beating = Beating(held, length_s, interval_s, since + length_s, since, since + longest_s)
        beating.plan(since)
        self._beating[held.id, held.claims] = beating

    def go_on(self, held: Held, longest_s: float) -> None:
        """Beat for this job for so long from now on, however long it ran."""
        if (beating := self._beating.get((held.id, held.claims))) is not None:
            beating.until = time.monotonic() + longest_s

    def release(self, held: Held) -> None:
        """Beat for this job no more."""
        self._beating.pop((held.id, held.claims), None)

    def soon(self, job_id: int) -> None:
        """Somebody says that something happened to this job: look at once."""
        for (known, _), beating in list(self._beating.items()):
            if known == job_id:
                beating.next = 0.0

    async def run(self, source: JobSource) -> None:
        """Beat until cancelled. The database being away is no reason to stop."""
        failing = False
        while True:
            now = time.monotonic()
            due = [beating for beating in list(self._beating.values()) if beating.next <= now < beating.until]
            try:
                for first in range(0, len(due), _LARGEST):
                    async with asyncio.timeout(_PATIENCE_S):  # a connection that went silent must not cost a lease
                        await self._beat(source, due[first : first + _LARGEST])
                if failing and due:
                    failing = False
                    _log.info("heartbeats reach the database again")
            except (TenureError, TimeoutError) as error:
                if not failing:
                    why = error if str(error) else f"no answer within {_PATIENCE_S:g} s"
                    _log.warning("heartbeats do not reach the database, and go on trying: %s", why)
                failing = True
                for beating in due:
                    beating.plan(time.monotonic())
            await asyncio.sleep(_TICK_S)

    async def _beat(self, source: JobSource, due: list[Beating]) -> None:
        sent = time.monotonic()
        answers = await source.heartbeat([beating.held for beating in due])
        self.beats += len(due)
        for beating, answer in zip(due, answers, strict=True):
            if isinstance(answer, Noted):
                if answer.renewed:
                    beating.expires = sent + beating.length_s
                if answer.cancel_requested:
                    self._cancel_requested(beating.held)
            elif isinstance(answer, Busy):
                pass  # somebody is moving it right now: ask again
            elif isinstance(answer, Refused):
                self.release(beating.held)
                self._lost(beating.held)
            beating.plan(time.monotonic())
