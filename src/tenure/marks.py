"""Marks: where the next claim may begin, so that it need not walk again over what is gone.

What was claimed leaves a dead entry at the head of the ready index, which every claim steps over until a vacuum removes
it; and while somebody's old transaction is open, no vacuum can. So a claim begins where the one before it ended: at the
last due time that was taken from a lane (a queue's priority).

A job may come to lie before the mark: its transaction took long, or it was handed back. So a mark is believed only
while claims come back full, and for half a second; except where beginning at the beginning has become dear, then for
ten times as long as that took, half a minute at the most, or until a poll finds something, which begins there too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from tenure.job import Job

_LONGEST_S = 0.5
#: Beginning at the beginning may take this share of the time, and no mark is believed for longer than that.
_SHARE, _LONGEST_REST_S = 0.1, 30.0
#: Up to here a claim that found nothing begins anew at once. Each job that it takes may take so long besides.
_CHEAP_S, _EACH_S = 0.005, 0.00005
#: A claim takes no more jobs once their payloads have so many bytes.
HEAVIEST = 16 * 1_048_576
#: From so many characters on it may have been that: bytes in the database are not those of the text.
_HEAVY = HEAVIEST // 64


def is_full(jobs: Sequence[Job], limit: int) -> bool:
    """Whether a claim that was to take so many took what it could, so that there may be more."""
    return len(jobs) >= limit or sum(len(job.payload_json) + len(job.checkpoint_json or "") for job in jobs) > _HEAVY


class Marks:
    """The marks of one contract and some queues, for one caller, who claims one batch after the other."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._marks: dict[str, list[str | None]] = {}
        self._was_full = False
        self._began = self._asked = 0.0
        self._rests_until = self._took = 0.0
        self._is_dear = False
        self._from_the_beginning = True

    def nothing(self) -> bool:
        """A claim found nothing after the marks: whether it had better begin anew."""
        if self._is_dear and self._now() < self._rests_until:
            return False
        self._rests_until = 0.0
        return True

    def anew(self) -> None:
        """Somebody who looked from the beginning says that something is due: the next claim begins there."""
        self._was_full, self._rests_until = False, 0.0

    def begin(self) -> dict[str, list[str | None]]:
        """A claim begins: queue → for each priority where, or nothing where it is to begin at the beginning."""
        now = self._asked = self._now()
        believed = self._was_full and now < self._began + _LONGEST_S
        self._from_the_beginning = not (believed or now < self._rests_until)
        if self._from_the_beginning:
            self._began = now
            self._marks = {}
        return self._marks

    def end(self, jobs: Sequence[Job], limit: int) -> None:
        """It ended with these jobs, in the order in which they stand in the index."""
        now = self._now()
        if self._from_the_beginning:
            took = max(0.0, now - self._asked - _EACH_S * len(jobs))
            cost, self._took = min(took, self._took), took  # the less of the last two: one may be anybody's stall
            self._is_dear = cost > _CHEAP_S
            self._rests_until = now + min(cost / _SHARE, _LONGEST_REST_S)
        self._was_full = is_full(jobs, limit)
        if not jobs:
            return
        first, last = jobs[0], jobs[-1]
        if (first.queue, first.priority) == (last.queue, last.priority):
            self._mark(last.queue, last.priority, last.due_at)
            return
        for job in jobs:
            self._mark(job.queue, job.priority, job.due_at)

    def _mark(self, queue: str, priority: int, due_at: datetime | None) -> None:
        if due_at is not None:
            lanes = self._marks.setdefault(queue, [None] * 10)
            lanes[priority] = max(lanes[priority] or "", due_at.isoformat())
