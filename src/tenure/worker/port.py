"""What a handler says of its job, on its way from the context to the source, under the job's lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.context import recorded
from tenure.worker.running import Running
from tenure.worker.source import JobSource


class SourcePort:
    """A context's port in the worker's own process."""

    def __init__(self, source: JobSource, running: Running) -> None:
        self._source = source
        self._running = running

    async def progress(self, value: Any) -> None:
        """Show how far the work is; the answer may say that the job is to stop."""
        if (await self._source.progress(self._running.held, value)).cancel_requested:
            self._running.cancel_requested()

    async def checkpoint(self, value: Any) -> None:
        """Save what the next attempt shall begin with; the answer may say that the job is to stop."""
        if (await self._source.checkpoint(self._running.held, value)).cancel_requested:
            self._running.cancel_requested()

    async def effects(self) -> Mapping[str, Any]:
        """What was done already; nothing in a first attempt, which need not ask."""
        job = self._running.job
        return {} if job.claims == 1 else await self._source.effects(job.id)

    async def effect(self, node: str, result: Any) -> Any:
        """Record a node's effect, to be undone on failure where the task says how."""
        task = self._running.task
        compensable = task is not None and node in task.undo
        effect = await self._source.effect(self._running.held, node, result, compensable=compensable)
        return recorded(effect.result_json) if effect.result_json is not None else result
