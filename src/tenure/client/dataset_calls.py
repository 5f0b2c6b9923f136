"""What an application and its workers need of datasets: `client.datasets`, direct or through a dispatcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tenure.jobs.dataset import (
    Dataset,
    Generation,
    NewDataset,
    NewSubscription,
    Pin,
    RolledBack,
    RowPage,
    StoredOutput,
    StoredPointer,
    Subscription,
    Switch,
)
from tenure.jobs.job import Held


class DatasetCalls(Protocol):
    """The calls about datasets; `store.datasets` has them too."""

    async def declare(self, dataset: NewDataset, *, created_by: str | None = None) -> Generation:
        """Create a dataset, or change it; returns the generation that jobs of this code write."""

    async def new_generation(
        self, name: str, *, tenant_id: str = "default", flow_id: int | None = None, created_by: str | None = None
    ) -> Generation:
        """Create an empty generation, which a cutover makes current."""

    async def find(self, name: str, *, tenant_id: str = "default") -> Dataset:
        """Return a dataset; raises DatasetNotFound."""

    async def generations(
        self, name: str, *, tenant_id: str = "default", limit: int = 100, before: int | None = None
    ) -> Sequence[Generation]:
        """Return the generations of a dataset, newest first."""

    async def generation(self, name: str, number: int, *, tenant_id: str = "default") -> Generation:
        """Return a generation; raises DatasetNotFound."""

    async def of_flow(self, flow_id: int) -> Sequence[Generation]:
        """Return the generations that a flow writes, by dataset."""

    async def current(self, names: Sequence[str], *, tenant_id: str = "default") -> Mapping[str, Generation]:
        """Return the current generations of these datasets as they were at one moment."""

    async def pins(self, job_id: int) -> Sequence[Pin]:
        """Return the generations that a job reads and writes."""

    async def page(
        self, generation_id: int, scope: str | None = None, *, limit: int = 1_000, after: str | None = None
    ) -> RowPage:
        """Return a page of the rows of a generation."""

    async def pointers(
        self, generation_id: int, *, limit: int = 1_000, after: str | None = None
    ) -> Sequence[StoredPointer]:
        """Return pointers of a generation, by scope."""

    async def outputs(self, job_id: int) -> Sequence[StoredOutput]:
        """Return what the completion of a job added to datasets."""

    async def stage(
        self,
        held: Held,
        dataset: str,
        rows: Sequence[Any],
        keys: Sequence[str] | None = None,
        *,
        staged: int | None = None,
    ) -> int:
        """Store rows that the completion of this attempt refers to; a row whose key is staged already is left out."""

    async def cutover(
        self, generations: Mapping[str, int], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> Switch:
        """Make these generations current, all or none."""

    async def rollback(
        self, names: Sequence[str], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> RolledBack:
        """Undo the last cutover of these datasets, and cancel the jobs that wait to write to it."""

    async def switches(
        self, *, dataset: str | None = None, tenant_id: str = "default", limit: int = 50, before: int | None = None
    ) -> Sequence[Switch]:
        """Return cutovers and rollbacks, newest first."""

    async def subscribe(
        self, subscriptions: Sequence[NewSubscription], *, application: str | None = None
    ) -> Sequence[int]:
        """Run tasks for each event of datasets from now on."""

    async def unsubscribe(
        self, dataset: str, type: str, *, contract: str = "standard", tenant_id: str = "default"
    ) -> bool:
        """End a subscription; returns whether there was one."""

    async def subscriptions(
        self, *, dataset: str | None = None, tenant_id: str | None = None
    ) -> Sequence[Subscription]:
        """Return the subscriptions by dataset and type."""
