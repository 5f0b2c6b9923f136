"""What leaves: rows that were replaced or never committed, old generations, routed events."""

from __future__ import annotations

from tenure.postgres.engine import EngineUser


class DatasetRetention(EngineUser):
    """Operations on old data of datasets; part of `store.datasets`."""

    async def retire_generations(self) -> int:
        """Mark the generations beyond what their datasets keep as dropped; never one that a live job has pinned."""
        raise NotImplementedError

    async def forget_rows(self, after_s: float = 3_600.0) -> int:
        """Delete rows that nobody reads: replaced this long ago, of attempts that ended, of dropped generations."""
        raise NotImplementedError

    async def forget_events(self, after_s: float = 86_400.0) -> int:
        """Delete events that were routed this long ago; returns how many."""
        raise NotImplementedError
