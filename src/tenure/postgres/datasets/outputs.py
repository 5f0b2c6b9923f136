"""Outputs: what a completion adds to datasets, in its transaction, and rows that an attempt stages before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.jobs.job import Held
from tenure.postgres.engine import EngineUser


class StagingVerbs(EngineUser):
    """The verb that stages rows; part of `store.datasets`."""

    async def stage(
        self,
        held: Held,
        dataset: str,
        rows: Sequence[Any],
        keys: Sequence[str] | None = None,
        *,
        staged: int | None = None,
    ) -> int:
        """Store rows that the completion of this attempt refers to, as `Append(staged=…)` or `Replace(staged=…)`.

        Returns the number to refer by; give it as `staged` to add more rows. Nobody reads them before the completion.
        """
        raise NotImplementedError
