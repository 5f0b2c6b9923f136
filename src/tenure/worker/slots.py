"""How many jobs run, how many may, and what is known of all of them."""

from __future__ import annotations

import asyncio
from collections import Counter


class Slots:
    """A worker's slots: taken at a claim, given back when a handler has ended (a thread's, when it really has)."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.busy = 0
        #: How many jobs have ended of which the database has not heard yet.
        self.unsettled = 0
        #: Set whenever there may be something to do: a slot is free, somebody woke us, we are to stop.
        self.changed = asyncio.Event()
        #: What happened to the jobs: claimed, succeeded, failed, retried, refused, …
        self.counts: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """How many jobs could begin at once; fewer while the database is slow to hear of those that ended."""
        return self.concurrency - max(self.busy, self.busy + self.unsettled - self.concurrency)

    def take(self, jobs: int) -> None:
        """So many jobs begin."""
        self.busy += jobs

    def give(self) -> None:
        """One has ended."""
        self.busy -= 1
        self.changed.set()

    def settled(self, jobs: int) -> None:
        """The database has heard of so many that ended."""
        self.unsettled -= jobs
        self.changed.set()
