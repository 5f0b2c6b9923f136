"""What a handler says of its job, on its way from the context to the source, under the job's lease.

Each is said until it was heard: a database that is away for a moment is no reason for a handler to fail, and least of
all between a deed and its record.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tenure import intake
from tenure.context import recorded
from tenure.errors import BadInput
from tenure.worker.running import Running
from tenure.worker.settle import insisting
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")


class SourcePort:
    """A context's port in the worker's own process."""

    __slots__ = ("_compensates", "_running", "_source")

    def __init__(self, source: JobSource, running: Running, *, compensates: bool) -> None:
        self._source = source
        self._running = running
        self._compensates = compensates

    async def progress(self, value: Any) -> None:
        """Show how far the work is; the answer may say that the job is to stop."""
        if (await insisting(lambda: self._source.progress(self._running.held, value))).cancel_requested:
            self._running.cancel_requested()

    async def checkpoint(self, value: Any) -> None:
        """Save what the next attempt shall begin with; the answer may say that the job is to stop."""
        if (await insisting(lambda: self._source.checkpoint(self._running.held, value))).cancel_requested:
            self._running.cancel_requested()

    def at_stage(self, name: str | None) -> None:
        """Keep the stage, for a handler that is ended from outside."""
        self._running.stage = name

    async def effects(self) -> Mapping[str, Any]:
        """What was done already; nothing in a first attempt, which need not ask."""
        job = self._running.job
        return {} if job.claims == 1 else await insisting(lambda: self._source.effects(job.id))

    async def effect(self, node: str, result: Any) -> Any:
        """Record a node's effect, to be undone on failure where the contract undoes and the task says how."""
        task, held = self._running.task, self._running.held
        compensable = self._compensates and task is not None and node in task.undo
        try:
            intake.document("result", result)
            kept = result
        except BadInput as error:  # it is done, and must be on record all the same
            _log.warning("job %d: the result of %r is not on record: %s", held.id, node, error)
            kept = None
        effect = await insisting(lambda: self._source.effect(held, node, kept, compensable=compensable))
        return result if effect.recorded else recorded(effect.result_json)
