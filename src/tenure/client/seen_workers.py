"""Warn where no live worker serves the jobs that are enqueued here, once per queue.

The enqueue never waits for this. A task of its own reads the table of live workers, at most every 30 seconds. Where no
worker lives at all, the line is an INFO, because a job may be enqueued before the first worker is started. The WARNING
follows when workers live and none of them serves the job. Each application warns for itself: another application of the
same process may use another database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from tenure.jobs.job import NewJob
from tenure.jobs.unserved import ServedTypes

_log = logging.getLogger("tenure")

#: For how long one read of the table is used, and how long it may take, in seconds.
EVERY_S = 30.0
_TIMEOUT_S = 5.0

#: Contract, queue and type of a job.
_Kind = tuple[str, str, str]
_ReadWorkers = Callable[[], Awaitable[Sequence[ServedTypes] | None]]


class SeenWorkers:
    """The live workers as they were last read, and which queues were warned of, for one application."""

    def __init__(self) -> None:
        self._workers: Sequence[ServedTypes] | None = None
        self._fresh_until = 0.0
        #: Kinds that a live worker serves, by the last read; and kinds that wait for the next read.
        self._served: set[_Kind] = set()
        self._unchecked: set[_Kind] = set()
        #: Queues with an INFO that no worker is live; and queues with a WARNING.
        self._informed: set[str] = set()
        self._warned: set[str] = set()
        self._reading: asyncio.Task[None] | None = None

    def note(self, jobs: Sequence[NewJob], read_workers: _ReadWorkers) -> None:
        """Check jobs that were enqueued. `read_workers` gives None where this application may not read the table."""
        fresh = time.monotonic() < self._fresh_until
        for job in jobs:
            kind = (job.contract, job.queue, job.type)
            if (fresh and kind in self._served) or job.queue in self._warned:
                continue
            if fresh:
                self._check(kind)
            else:
                self._unchecked.add(kind)
        reading = self._reading
        if self._unchecked and (reading is None or reading.done() or reading.get_loop().is_closed()):
            self._reading = asyncio.get_running_loop().create_task(self._read(read_workers))

    async def close(self) -> None:
        """Cancel a read that is under way on this loop."""
        reading = self._reading
        if reading is not None and not reading.done() and reading.get_loop() is asyncio.get_running_loop():
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, read_workers: _ReadWorkers) -> None:
        self._fresh_until = time.monotonic() + EVERY_S  # also where it fails: the table is read no more often
        self._served.clear()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._workers = await read_workers()
        except Exception as error:
            _log.debug("the live workers cannot be read: %s", error)
            self._workers = None
        unchecked, self._unchecked = self._unchecked, set()
        for kind in unchecked:
            self._check(kind)

    def _check(self, kind: _Kind) -> None:
        """Log once per queue that no live worker serves a job like this."""
        contract, queue, type_ = kind
        workers = self._workers
        if workers is None or queue in self._warned:
            return
        of_queue = [one for one in workers if contract in one.contracts and queue in one.queues]
        if any(one.types is None or type_ in one.types for one in of_queue):
            self._served.add(kind)
            return
        if not workers:
            if queue not in self._informed:
                self._informed.add(queue)
                _log.info("no worker is live: jobs in queue %s wait. Next: tenure worker APP", queue)
            return
        self._warned.add(queue)
        if of_queue:
            _log.warning(
                "no live worker of queue %s knows type %s: its jobs wait. Next: deploy a worker that has the task; "
                "tenure workers list",
                queue, type_,
            )  # fmt: skip
        else:
            others = sorted({name for one in workers for name in one.queues})
            _log.warning(
                "no live worker takes %s jobs from queue %s: they wait (live workers take from: %s%s). "
                "Next: start a worker for it, or tenure jobs move --from %s --queue QUEUE",
                contract, queue, ", ".join(others[:8]), ", …" if len(others) > 8 else "", queue,
            )  # fmt: skip
