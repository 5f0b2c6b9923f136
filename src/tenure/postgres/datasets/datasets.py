"""Datasets: declare and read them; `store.datasets`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from tenure.jobs.dataset import Dataset, Generation, NewDataset, Pin, Row, RowPage, StoredPointer
from tenure.postgres.datasets.outputs import StagingVerbs
from tenure.postgres.datasets.retention import DatasetRetention
from tenure.postgres.datasets.routing import RoutingVerbs
from tenure.postgres.datasets.switches import SwitchVerbs


class Datasets(StagingVerbs, SwitchVerbs, RoutingVerbs, DatasetRetention):
    """Operations on datasets; `store.datasets`."""

    async def declare(self, dataset: NewDataset, *, created_by: str | None = None) -> Generation:
        """Create a dataset with its first generation, which is current, or change what an existing one keeps.

        A shape that differs from the newest generation's makes a new one, which a cutover makes current. Returns the
        newest generation of this shape: what jobs of this code write.
        """
        raise NotImplementedError

    async def new_generation(
        self, name: str, *, tenant_id: str = "default", flow_id: int | None = None, created_by: str | None = None
    ) -> Generation:
        """Create an empty generation of the newest one's shape, which a cutover makes current."""
        raise NotImplementedError

    async def list(
        self, *, tenant_id: str | None = None, limit: int = 100, after: str | None = None
    ) -> Sequence[Dataset]:
        """Return datasets by tenant and name; `after`: the name of the last one of the page before, of this tenant."""
        raise NotImplementedError

    async def find(self, name: str, *, tenant_id: str = "default") -> Dataset:
        """Return a dataset; raises DatasetNotFound."""
        raise NotImplementedError

    async def generations(
        self, name: str, *, tenant_id: str = "default", limit: int = 100, before: int | None = None
    ) -> Sequence[Generation]:
        """Return the generations of a dataset, newest first; `before`: the number of the last one of the page before.

        Raises DatasetNotFound.
        """
        raise NotImplementedError

    async def generation(self, name: str, number: int, *, tenant_id: str = "default") -> Generation:
        """Return a generation; raises DatasetNotFound."""
        raise NotImplementedError

    async def current(self, names: Sequence[str], *, tenant_id: str = "default") -> Mapping[str, Generation]:
        """Return the current generations of these datasets as they were at one moment; raises DatasetNotFound."""
        raise NotImplementedError

    async def pins(self, job_id: int) -> Sequence[Pin]:
        """Return the generations that a job reads and writes."""
        raise NotImplementedError

    def rows(self, generation_id: int, scope: str | None = None, *, page: int = 1_000) -> AsyncIterator[Row]:
        """Read the rows of a generation, or of one scope of it, page by page, by scope and key.

        A scope that is replaced meanwhile is read as it was, or as it is then: never a mix.
        """
        raise NotImplementedError

    async def page(
        self, generation_id: int, scope: str | None = None, *, limit: int = 1_000, after: str | None = None
    ) -> RowPage:
        """Return a page of what `rows` reads; `after`: the `next` of the page before, which may be an hour old."""
        raise NotImplementedError

    async def pointers(
        self, generation_id: int, *, limit: int = 1_000, after: str | None = None
    ) -> Sequence[StoredPointer]:
        """Return the pointers of a generation by scope; `after`: the last scope of the page before."""
        raise NotImplementedError
