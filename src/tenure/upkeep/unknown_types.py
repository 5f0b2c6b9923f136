"""Ends due jobs whose type no live worker has known for a configured time; without that setting they wait.

The time starts when this process first finds the type unknown and restarts when a later look finds it known, so a
worker that restarts does not lose its backlog.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from tenure.errors import UNREACHABLE
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import UPKEEP, Failure, Job
from tenure.postgres.store import Store
from tenure.postgres.upkeep_work import UnknownJob, UnknownType
from tenure.queue import FailureReporter

_log = logging.getLogger("tenure.upkeep")

#: The error code of a job that ended this way.
UNKNOWN_TASK: Final = "UNKNOWN_TASK"


class UnknownTypes:
    """The unknown types, each with the time at which it was first found unknown."""

    def __init__(self, store: Store, end_after_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._end_after_s, self._monotonic = store, end_after_s, monotonic
        self._fail_task = FailureReporter(store)
        self._since: dict[UnknownType, float] = {}

    async def end_expired(self) -> int:
        """Find the types that no live worker knows and end the jobs that waited too long; returns their number."""
        now = self._monotonic()
        unknown = await self._store.watch.unknown_types()
        self._since = {type_: self._since.get(type_, now) for type_ in unknown}
        expired = [type_ for type_, since in self._since.items() if now - since >= self._end_after_s]
        if not expired:
            return 0
        return await self._end(await self._store.watch.unknown_jobs(expired, self._end_after_s))

    async def _end(self, jobs: Sequence[UnknownJob]) -> int:
        ended = 0
        for unknown in jobs:
            reason = f"no worker knew the task {unknown.type!r} for {self._end_after_s:g} s"
            failure = Failure(reason, "PermanentError", code=UNKNOWN_TASK, retryable=False)
            try:
                (job,) = await self._store.claim_by_id([unknown.id], worker=UPKEEP, contract=unknown.contract)
                if not isinstance(job, Job):  # another process claimed it first
                    continue
                await self._store.start(job.held)
                await self._fail_task.report(HolderCall(job.held, failure=failure))
            except UNREACHABLE:
                raise
            except Exception as error:  # an error of one job does not stop the others
                _log.warning("job %d of the unknown type %s could not be ended: %s", unknown.id, unknown.type, error)
                continue
            _log.error("job %d is ended: %s. Next: tenure jobs requeue %d", unknown.id, reason, unknown.id)
            ended += 1
        return ended
