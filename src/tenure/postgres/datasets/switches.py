"""Cutover and rollback: change the current generations of a set of datasets in one transaction, with a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.jobs.dataset import RolledBack, Switch
from tenure.postgres.engine import EngineUser


class SwitchVerbs(EngineUser):
    """The verbs that change current generations; part of `store.datasets`."""

    async def cutover(
        self, generations: Mapping[str, int], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> Switch:
        """Make these generations (dataset → number) current, all in one transaction, or none."""
        raise NotImplementedError

    async def rollback(
        self, names: Sequence[str], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> RolledBack:
        """Undo the last cutover of these datasets for its whole set, and cancel the jobs that wait to write to it.

        Refuses datasets that were not switched together, and a set of which one was switched again since.
        """
        raise NotImplementedError

    async def switches(
        self, *, dataset: str | None = None, tenant_id: str = "default", limit: int = 50, before: int | None = None
    ) -> Sequence[Switch]:
        """Return cutovers and rollbacks, newest first; `before`: the id of the last one of the page before."""
        raise NotImplementedError
