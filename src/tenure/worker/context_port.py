"""A handler's calls on its context, sent to the job source under the job's lease.

Each call is retried until it is answered: a handler does not fail because the database is away for a moment, least of
all between a side effect and its record.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partialmethod
from typing import Any

from tenure.client.job_source import JobSource
from tenure.context import Additions, read_effect
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.dataset import Pin, RowPage, StoredPointer
from tenure.jobs.holder_call import HolderCall
from tenure.worker.handler import complete_in
from tenure.worker.reports import retry_until_answered
from tenure.worker.running_job import RunningJob

_log = logging.getLogger("tenure.worker")


class SourcePort:
    """The port of a context in the worker's own process."""

    __slots__ = ("_running", "_source")

    def __init__(self, source: JobSource, running: RunningJob) -> None:
        self._source = source
        self._running = running

    async def _store(self, verb: str, value: Any) -> None:
        """Store the progress, or a checkpoint for the next attempt; the answer may carry a cancel request."""
        call = HolderCall(self._running.held, value=value)
        if (await retry_until_answered(lambda: self._source.call(verb, call))).cancel_requested:
            self._running.request_cancel()

    progress = partialmethod(_store, "progress")
    checkpoint = partialmethod(_store, "checkpoint")

    def set_stage(self, name: str | None) -> None:
        """Keep the stage, for the failure of a handler that is stopped from outside."""
        self._running.stage = name

    def complete_in(self, connection: Any, result: Any, additions: Additions | None) -> Any:
        """End the job in the handler's own transaction."""
        assert self._running.task is not None
        return complete_in(self._running.task, self._running.job, self.note_completion, connection, result, additions)

    def note_completion(self, ends: bool) -> None:
        """Note that a transaction of the handler's ends the job, if it commits."""
        self._running.note_completion(ends)

    async def pins(self) -> Sequence[Pin]:
        """The generations that the job reads and writes."""
        return await retry_until_answered(lambda: self._source.datasets.pins(self._running.job.id))

    async def row_page(self, generation_id: int, scope: str | None, after: str | None) -> RowPage:
        """A page of the rows of a generation."""
        return await retry_until_answered(lambda: self._source.datasets.page(generation_id, scope, after=after))

    async def pointer_page(self, generation_id: int, after: str | None) -> Sequence[StoredPointer]:
        """Pointers of a generation, by scope."""
        return await retry_until_answered(lambda: self._source.datasets.pointers(generation_id, after=after))

    async def stage_rows(self, dataset: str, rows: Sequence[Any], keys: Sequence[str], staged: int | None) -> int:
        """Send rows for which the completion refers to this number."""
        held = self._running.held
        return await retry_until_answered(lambda: self._source.datasets.stage(held, dataset, rows, keys, staged=staged))

    async def effects(self) -> Mapping[str, Any]:
        """The recorded effects with their results; a first attempt has none and sends no call."""
        job = self._running.job
        return {} if job.claims == 1 else await retry_until_answered(lambda: self._source.effects(job.id))

    async def effect(self, node: str, result: Any) -> Any:
        """Record an effect and give the recorded result. A failure undoes it where the contract and the task can."""
        task, held = self._running.task, self._running.held
        compensable = task is not None and node in task.undo and self._running.contract.compensates
        try:
            validation.to_json("result", result)
            stored = result
        except BadInput as error:  # the effect happened and must be recorded, without its result
            _log.warning(
                "job %d of %s: effect %r is recorded without its result, which cannot be stored: %s",
                held.id, self._running.job.type, node, error,
            )  # fmt: skip
            stored = None
        effect = await retry_until_answered(lambda: self._source.effect(held, node, stored, compensable=compensable))
        return result if effect.recorded else read_effect(effect.result_json)
