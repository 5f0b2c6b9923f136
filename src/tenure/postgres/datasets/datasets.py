"""Datasets: declare and read them; `store.datasets`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tenure.errors import BadInput, DatasetConflict, DatasetNotFound
from tenure.jobs import validation
from tenure.jobs.dataset import (
    Dataset,
    Generation,
    NewDataset,
    Pin,
    Row,
    RowPage,
    StoredPointer,
    check_dataset,
)
from tenure.jobs.job import DatasetUse, NewJob
from tenure.postgres.datasets.outputs import StagingVerbs
from tenure.postgres.datasets.pins import PinnedUse, Use, lock_datasets, resolve_uses
from tenure.postgres.datasets.retention import DatasetRetention
from tenure.postgres.datasets.routing import RoutingVerbs
from tenure.postgres.datasets.switches import SwitchVerbs
from tenure.postgres.engine import ask
from tenure.postgres.statement import Atomic, Plan, statement

#: A page of rows ends once it has this many bytes.
_PAGE_BYTES: Final = 4 * validation.MAX_BYTES


class Datasets(StagingVerbs, SwitchVerbs, RoutingVerbs, DatasetRetention):
    """Operations on datasets; `store.datasets`."""

    async def declare(self, dataset: NewDataset, *, created_by: str | None = None) -> Generation:
        """Create a dataset with its first generation, which is current, or change what an existing one keeps.

        A shape that no generation has makes a new one, which a cutover makes current. Returns the generation that jobs
        of this code write: the current one if it has this shape, else the newest one that has it.
        """
        shape = check_dataset(dataset, self._max_bytes)
        _check_created_by(created_by)
        return await self._engine.run(lambda: _declare(dataset, shape, created_by))

    async def new_generation(
        self, name: str, *, tenant_id: str = "default", flow_id: int | None = None, created_by: str | None = None
    ) -> Generation:
        """Create an empty generation of the newest one's shape, which a cutover makes current."""
        _check_name(name, tenant_id)
        _check_created_by(created_by)
        if flow_id is not None:
            validation.check_integer("flow", flow_id, 1, validation.MAX_ID)

        def create() -> Plan[Generation]:
            ((dataset_id, _),) = (yield from lock_datasets(tenant_id, [name])).values()
            values = {"dataset_id": dataset_id, "flow_id": flow_id, "created_by": created_by, "has_shape": False}
            ((generation_id, _),) = yield statement("insert_generation", values)
            return (yield from _read_generation(generation_id))

        return await self._engine.run(lambda: _atomic(create()))

    async def list(
        self, *, tenant_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> Sequence[Dataset]:
        """Return datasets by tenant and name; `after`: the id of the last one of the page before."""
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if tenant_id is not None:
            validation.check_name("tenant_id", tenant_id)
        if after is not None:
            validation.check_integer("after", after, 1, validation.MAX_ID)
        rows = await self._engine.ask("list_datasets", tenant_id=tenant_id, limit=limit, after=after)
        return [Dataset._make(row) for row in rows]

    async def find(self, name: str, *, tenant_id: str = "default") -> Dataset:
        """Return a dataset; raises DatasetNotFound."""
        _check_name(name, tenant_id)
        rows = await self._engine.ask("list_datasets", tenant_id=tenant_id, name=name, limit=1)
        if not rows:
            raise DatasetNotFound(name)
        return Dataset._make(rows[0])

    async def generations(
        self, name: str, *, tenant_id: str = "default", limit: int = 100, before: int | None = None
    ) -> Sequence[Generation]:
        """Return the generations of a dataset, newest first; `before`: the number of the last one of the page before.

        Raises DatasetNotFound.
        """
        await self.find(name, tenant_id=tenant_id)
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if before is not None:
            validation.check_integer("before", before, 1, validation.MAX_ID)
        values = {"tenant_id": tenant_id, "name": name, "limit": limit, "before": before}
        return [Generation._make(row) for row in await self._engine.ask("list_generations", **values)]

    async def generation(self, name: str, number: int, *, tenant_id: str = "default") -> Generation:
        """Return a generation; raises DatasetNotFound."""
        _check_name(name, tenant_id)
        validation.check_integer("generation", number, 1, validation.MAX_ID)
        values = {"tenant_id": tenant_id, "name": name, "number": number, "limit": 1}
        rows = await self._engine.ask("list_generations", **values)
        if not rows:
            await self.find(name, tenant_id=tenant_id)
            raise DatasetNotFound(name, number)
        return Generation._make(rows[0])

    async def by_id(self, generation_id: int) -> Generation:
        """Return a generation by its id; raises DatasetNotFound."""
        validation.check_integer("generation_id", generation_id, 1, validation.MAX_ID)
        rows = await self._engine.ask("read_generation", id=generation_id)
        if not rows:
            raise _no_such_generation(generation_id)
        return Generation._make(rows[0])

    async def of_flow(self, flow_id: int) -> Sequence[Generation]:
        """Return the generations that a flow writes, by dataset."""
        validation.check_integer("flow", flow_id, 1, validation.MAX_ID)
        return [Generation._make(row) for row in await self._engine.ask("list_flow_generations", flow_id=flow_id)]

    async def current(self, names: Sequence[str], *, tenant_id: str = "default") -> Mapping[str, Generation]:
        """Return the current generations of these datasets as they were at one moment; raises DatasetNotFound."""
        validation.check_integer("number of datasets", len(names), 0, validation.MAX_BATCH)
        for name in names:
            _check_name(name, tenant_id)
        rows = await self._engine.ask("read_current_generations", tenant_id=tenant_id, names=list(names))
        found = {one.dataset: one for one in map(Generation._make, rows)}
        if missing := [name for name in names if name not in found]:
            raise DatasetNotFound(missing[0])
        return {name: found[name] for name in names}

    async def pins(self, job_id: int) -> Sequence[Pin]:
        """Return the generations that a job reads and writes."""
        return await self.pins_of([job_id])

    async def pins_of(self, job_ids: Sequence[int]) -> Sequence[Pin]:
        """Return the generations that these jobs read and write, by job."""
        validation.check_integer("number of jobs", len(job_ids), 0, validation.MAX_BATCH)
        for job_id in job_ids:
            validation.check_integer("id", job_id, 1, validation.MAX_ID)
        rows = await self._engine.ask("list_pins", ids=list(job_ids)) if job_ids else []
        return [Pin._make(row) for row in rows]

    async def rows(self, generation_id: int, scope: str | None = None, *, page: int = 1_000) -> AsyncIterator[Row]:
        """Read the rows of a generation, or of one scope of it, page by page, by scope and key.

        A scope that is replaced meanwhile is read as it was, or as it is then: never a mix. The scope of appended rows
        is empty.
        """
        after: str | None = None
        while True:
            found = await self.page(generation_id, scope, limit=page, after=after)
            for row in found.rows:
                yield row
            if (after := found.next) is None:
                return

    async def page(
        self, generation_id: int, scope: str | None = None, *, limit: int = 1_000, after: str | None = None
    ) -> RowPage:
        """Return a page of what `rows` reads; `after`: the `next` of the page before, which may be an hour old."""
        validation.check_integer("generation_id", generation_id, 1, validation.MAX_ID)
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if scope is not None and scope != "":
            validation.check_name("scope", scope)
        position = None if after is None else _Position.read(after)
        return await self._engine.run(lambda: _read_page(generation_id, scope, limit, position))

    async def pointers(
        self, generation_id: int, *, limit: int = 1_000, after: str | None = None
    ) -> Sequence[StoredPointer]:
        """Return the pointers of a generation by scope; `after`: the last scope of the page before."""
        validation.check_integer("generation_id", generation_id, 1, validation.MAX_ID)
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if after is not None:
            validation.check_name("scope", after)
        rows = await self._engine.ask("list_pointers", id=generation_id, limit=limit, after=after)
        return [StoredPointer._make(row) for row in rows]


def _no_such_generation(generation_id: int) -> DatasetNotFound:
    return DatasetNotFound(generation_id=generation_id)


def _check_name(name: str, tenant_id: str) -> None:
    validation.check_name("dataset", name)
    validation.check_name("tenant_id", tenant_id)


def _check_created_by(created_by: str | None) -> None:
    if created_by is not None:
        validation.check_name("created_by", created_by)


def _atomic(plan: Plan[Generation]) -> Plan[Generation]:
    generation: Generation = yield Atomic(plan)
    return generation


def _read_generation(generation_id: int) -> Plan[Generation]:
    (row,) = yield statement("read_generation", {"id": generation_id})
    return Generation._make(row)


def _declare(dataset: NewDataset, shape: str | None, created_by: str | None) -> Plan[Generation]:
    """Declare a dataset; takes no lock when all is as declared, which is the usual case when a worker starts."""
    rows = yield from ask("list_datasets", {"tenant_id": dataset.tenant_id, "name": dataset.name, "limit": 1})
    if rows and Dataset._make(rows[0]).keep == dataset.keep:
        found = yield from _of_shape(dataset, shape)
        if found is not None:
            return (yield from _read_generation(found.generation_id))
    return (yield from _atomic(_change(dataset, shape, created_by)))


def _change(dataset: NewDataset, shape: str | None, created_by: str | None) -> Plan[Generation]:
    values = {"name": dataset.name, "tenant_id": dataset.tenant_id, "keep": dataset.keep}
    # Waits for another transaction that creates the dataset.
    yield statement("insert_dataset", {**values, "created_by": created_by, "shape": shape})
    ((dataset_id, _),) = (yield from lock_datasets(dataset.tenant_id, [dataset.name])).values()
    yield statement("keep_generations", {"id": dataset_id, "keep": dataset.keep})
    found = yield from _of_shape(dataset, shape)
    if found is not None:
        return (yield from _read_generation(found.generation_id))
    new = {"dataset_id": dataset_id, "created_by": created_by, "has_shape": True, "shape": shape}
    ((generation_id, _),) = yield statement("insert_generation", new)
    return (yield from _read_generation(generation_id))


def _of_shape(dataset: NewDataset, shape: str | None) -> Plan[PinnedUse | None]:
    """The generation that a job which writes this shape would write; None: there is none."""
    use = DatasetUse(dataset.name, shape_json=shape)
    job = NewJob("", tenant_id=dataset.tenant_id, writes=(use,))
    found = (yield from resolve_uses([job]))[Use(dataset.tenant_id, use, True)]
    return found if isinstance(found, PinnedUse) else None


@dataclass(frozen=True, slots=True)
class _Position:
    """Behind which row of which batch a page begins; without a key, behind the batch."""

    scope: str
    batch_id: int
    key: str | None

    def text(self) -> str:
        return json.dumps([self.scope, self.batch_id, self.key])

    @classmethod
    def read(cls, text: str) -> _Position:
        """Parse the `next` of a page."""
        try:
            position = cls(*json.loads(text))
        except (ValueError, TypeError):
            position = cls("", 0, None)
        is_one = type(position.scope) is str and type(position.batch_id) is int and isinstance(position.key, str | None)
        if not is_one or not 0 < position.batch_id <= validation.MAX_ID:
            raise BadInput(f"after is the `next` of a page of rows, not {text!r}")
        for field, value in (("scope", position.scope), ("row key", position.key)):
            if value:
                validation.check_name(field, value)
        return position


def _read_page(generation_id: int, scope: str | None, limit: int, position: _Position | None) -> Plan[RowPage]:
    """Read batches, as they are found when their scope is reached, until the page is full."""
    while True:
        rows = yield statement("read_generation", {"id": generation_id})
        if not rows:
            raise _no_such_generation(generation_id)
        generation = Generation._make(rows[0])
        if generation.dropped_at is not None:
            raise DatasetConflict(
                f"generation {generation.number} of dataset {generation.dataset!r} was dropped: its rows leave. "
                "Next: read another generation"
            )
        if position is not None and position.key is not None and position.batch_id != generation_id:
            known = yield statement("check_batch", {"id": position.batch_id, "generation_id": generation_id})
            if not known:
                raise BadInput("after is the `next` of a page of another generation, or too old. Next: begin again")
        # What was appended is the batch of the generation itself, and comes first.
        first = _Position("", generation_id, "") if position is None and scope in (None, "") else position
        parts = [] if first is None or first.key is None else [first]
        behind = len(parts)
        values = {"id": generation_id, "scope": scope, "after": first and first.scope, "limit": limit}
        scopes = yield statement("list_scope_batches", values)
        expected = 0
        for name, batch_id, count in scopes:
            if expected >= limit:
                break
            parts.append(_Position(name, batch_id, ""))
            expected += count
        columns: dict[str, Any] = {
            "scopes": [part.scope for part in parts],
            "batches": [part.batch_id for part in parts],
            "afters": [part.key for part in parts],
        }
        bounds = {"limit": limit, "max_bytes": _PAGE_BYTES}
        read = (yield statement("read_rows", {**columns, **bounds})) if parts else []
        rows = [Row(scope, key, value) for scope, _, key, value, _ in read]
        if len(read) == limit or (read and len(read) < read[0][4]):
            name, batch_id, key, _, _ = read[-1]
            return RowPage(rows, _Position(name, batch_id, key).text())
        if len(parts) - behind == len(scopes) < limit:
            return RowPage(rows, None)
        position = _Position(parts[-1].scope, parts[-1].batch_id, None)
        if rows:
            return RowPage(rows, position.text())
