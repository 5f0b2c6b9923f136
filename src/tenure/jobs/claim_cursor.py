"""The claim cursor: where the next claim starts in the ready index, so that it skips dead entries.

A claimed job leaves a dead entry at the start of the ready index. Every claim must step over it until a vacuum removes
it, and no vacuum can while an old transaction is open. So a claim starts where the previous one ended: at the last due
time that was taken from a lane (a queue and priority).

A job can appear before that position: its transaction took long, or it was handed back. So a position is used only
while claims return full batches, and for half a second. Where a claim from the beginning has become expensive, a
position is used for ten times as long as that claim took, at most 30 s, or until a poll finds a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from tenure.jobs.job import Job
from tenure.jobs.validation import ID_UNIT, MAX_UNITS

#: How long a position is used while claims return full batches, in seconds.
_MAX_AGE_S = 0.5
#: Claims from the beginning may take this share of the time; a position is used for at most this many seconds.
_FULL_SCAN_SHARE, _MAX_PAUSE_S = 0.1, 30.0
#: A claim from the beginning is cheap up to this many seconds, plus this many for each job that it takes.
_CHEAP_S, _SECONDS_PER_JOB = 0.005, 0.00005
#: A claim takes no more jobs once their payloads have this many bytes.
MAX_CLAIM_BYTES = 16 * 1_048_576
#: From this many characters on the byte limit may have ended the claim: stored bytes differ from text characters.
_MAY_BE_HEAVY = MAX_CLAIM_BYTES // 64


def is_full(jobs: Sequence[Job], limit: int) -> bool:
    """Whether a claim of this limit took all that it could, so there may be more."""
    return (
        len(jobs) >= limit
        or len({job.id // ID_UNIT for job in jobs}) >= MAX_UNITS
        or sum(len(job.payload_json) + len(job.checkpoint_json or "") for job in jobs) > _MAY_BE_HEAVY
    )


class ClaimCursor:
    """The positions of one contract and its queues, for one caller that claims one batch after another."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._positions: dict[str, list[str | None]] = {}
        self._types: set[str] = set()
        self._was_full = False
        self._scan_began = self._claim_began = 0.0
        self._valid_until = self._last_scan_s = 0.0
        self._is_expensive = False
        self._from_start = True

    @property
    def types(self) -> set[str]:
        """The types that a claim of any type looks for from its positions, if a full scan is expensive.

        These are the types taken so far. Empty: the claim starts at the beginning, where it finds every type.
        """
        return self._types if self._is_expensive else set()

    def found_nothing(self) -> bool:
        """Note that a claim found nothing after its positions; returns whether it should start at the beginning."""
        if self._is_expensive and self._now() < self._valid_until:
            return False
        self._valid_until = 0.0
        return True

    def restart(self) -> None:
        """Let the next claim start at the beginning: another look from there found a due job."""
        self._was_full, self._valid_until = False, 0.0

    def begin(self) -> dict[str, list[str | None]]:
        """Begin a claim; returns queue → due time per priority, empty to start at the beginning."""
        now = self._claim_began = self._now()
        is_fresh = self._was_full and now < self._scan_began + _MAX_AGE_S
        self._from_start = not (is_fresh or now < self._valid_until)
        if self._from_start:
            self._scan_began = now
            self._positions = {}
            self._types = set()
        return self._positions

    def end(self, jobs: Sequence[Job], limit: int) -> None:
        """End a claim that took these jobs, in index order."""
        now = self._now()
        if self._from_start:
            took = max(0.0, now - self._claim_began - _SECONDS_PER_JOB * len(jobs))
            cost, self._last_scan_s = min(took, self._last_scan_s), took  # the smaller of two: one may be a stall
            self._is_expensive = cost > _CHEAP_S
            self._valid_until = now + min(cost / _FULL_SCAN_SHARE, _MAX_PAUSE_S)
        self._was_full = is_full(jobs, limit)
        self._types |= {job.type for job in jobs}
        if not jobs:
            return
        first, last = jobs[0], jobs[-1]
        if (first.queue, first.priority) == (last.queue, last.priority):
            self._advance(last.queue, last.priority, last.due_at)
            return
        for job in jobs:
            self._advance(job.queue, job.priority, job.due_at)

    def _advance(self, queue: str, priority: int, due_at: datetime | None) -> None:
        if due_at is not None:
            lanes = self._positions.setdefault(queue, [None] * 10)
            lanes[priority] = max(lanes[priority] or "", due_at.isoformat())
