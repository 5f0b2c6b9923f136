"""Pins: the generations that a job reads and writes, found and fixed when the job is made.

    resolve_uses ─▶ the generation of each use, or why there is none    in one snapshot: a job never gets a mixed set
    pin_jobs     ─▶ tenure.dataset_pin                                  in the transaction that makes the jobs

A flow has generations of its own for all that its nodes write. Its nodes are pinned when it is created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tenure.errors import BadInput, DatasetConflict, DatasetNotFound, Refused
from tenure.jobs.job import DatasetUse, NewJob
from tenure.postgres.statement import Plan, Row, statement

#: How often uses are resolved again whose generation was dropped or rolled back in the meantime.
_TRIES: Final = 5


class Use(NamedTuple):
    """A use of a dataset by a job of this tenant."""

    tenant_id: str
    use: DatasetUse
    writes: bool


class PinnedUse(NamedTuple):
    """The generation of a use."""

    dataset_id: int
    generation_id: int
    number: int


Resolved = Mapping[Use, PinnedUse | Refused]


def uses_of(job: NewJob) -> list[Use]:
    """What a job reads and writes."""
    reads = [Use(job.tenant_id, use, False) for use in job.reads]
    return [*reads, *(Use(job.tenant_id, use, True) for use in job.writes)]


def resolve_uses(jobs: Iterable[NewJob]) -> Plan[Resolved]:
    """Find the generations that these jobs read and write; nobody drops them before this transaction ends."""
    found: dict[Use, PinnedUse | Refused] = {}
    waiting = list(dict.fromkeys(use for job in jobs for use in uses_of(job)))
    for attempt in range(_TRIES):
        if not waiting:
            break
        values = {
            "tenants": [use.tenant_id for use in waiting],
            "names": [use.use.name for use in waiting],
            "numbers": [use.use.generation for use in waiting],
            "shapes": [use.use.shape_json if use.writes else None for use in waiting],
        }
        rows = yield statement("resolve_datasets", values)
        again = []
        for n, *row in rows:
            use = waiting[n - 1]
            answer = _answer(use, row)
            if isinstance(answer, DatasetConflict) and use.use.generation is None and attempt < _TRIES - 1:
                again.append(use)  # a cutover or a rollback came between
            found[use] = answer
        waiting = again
    return found


def _answer(use: Use, row: Sequence[Any]) -> PinnedUse | Refused:
    dataset_id, generation_id, number, is_rolled_back, is_dropped = row
    name = use.use.name
    if dataset_id is None:
        return DatasetNotFound(name)
    if generation_id is None and use.use.generation is not None:
        return DatasetNotFound(name, use.use.generation)
    if generation_id is None:
        return DatasetConflict(f"dataset {name!r} has no generation of the shape that is written. Next: declare it")
    if number is None or is_dropped:
        return DatasetConflict(f"{_called(use, number)} was dropped. Next: name another generation")
    if is_rolled_back and use.writes:
        return DatasetConflict(
            f"{_called(use, number)} was rolled back: nothing is written to it. Next: name another generation"
        )
    return PinnedUse(dataset_id, generation_id, number)


def _called(use: Use, number: int | None) -> str:
    return f"generation {use.use.generation if number is None else number} of dataset {use.use.name!r}"


def refusal_of(job: NewJob, resolved: Resolved) -> Refused | None:
    """Why this job cannot be made; None: it can."""
    if not job.uses_datasets:
        return None
    return next((found for use in uses_of(job) if isinstance(found := resolved[use], Refused)), None)


def pin_jobs(jobs: Iterable[tuple[int, NewJob]], resolved: Resolved) -> Plan[None]:
    """Fix the generations of new jobs, given with their ids."""
    pins = [
        (job_id, found.dataset_id, found.generation_id, use.writes)
        for job_id, job in jobs
        for use in uses_of(job)
        if isinstance(found := resolved[use], PinnedUse)
    ]
    if pins:
        names = ("jobs", "datasets", "generations", "writes")
        yield statement("insert_pins", dict(zip(names, map(list, zip(*pins, strict=True)), strict=True)))


def pin_flow(
    flow_id: int, tenant_id: str, nodes: Sequence[tuple[int, NewJob]], created_by: str | None
) -> Plan[list[NewJob]]:
    """Make the generations that a new flow writes, and pin its nodes; returns their jobs with these generations."""
    own = yield from _own_generations(flow_id, tenant_id, [job for _, job in nodes], created_by)
    fixed = [
        replace(
            job, reads=tuple(_own(use, own) for use in job.reads), writes=tuple(_own(use, own) for use in job.writes)
        )
        for _, job in nodes
    ]
    resolved = yield from resolve_uses(fixed)
    for job in fixed:
        if (refusal := refusal_of(job, resolved)) is not None:
            raise refusal
    yield from pin_jobs(((node_id, job) for (node_id, _), job in zip(nodes, fixed, strict=True)), resolved)
    return [
        replace(
            job,
            reads=tuple(_numbered(Use(tenant_id, use, False), resolved) for use in job.reads),
            writes=tuple(_numbered(Use(tenant_id, use, True), resolved) for use in job.writes),
        )
        for job in fixed
    ]


def _own(use: DatasetUse, own: Mapping[str, int]) -> DatasetUse:
    """The use with the flow's own generation, unless it names another one to read."""
    return DatasetUse(use.name, own[use.name]) if use.name in own and use.generation is None else use


def _numbered(use: Use, resolved: Resolved) -> DatasetUse:
    found = resolved[use]
    assert isinstance(found, PinnedUse)
    return DatasetUse(use.use.name, found.number)


def _own_generations(
    flow_id: int, tenant_id: str, jobs: Collection[NewJob], created_by: str | None
) -> Plan[dict[str, int]]:
    """Make a generation of each dataset that the flow writes without naming one; returns name → number."""
    shapes: dict[str, str | None] = {}
    for use in (use for job in jobs for use in job.writes if use.generation is None):
        shape = shapes.setdefault(use.name, use.shape_json)
        if use.shape_json is not None and shape not in (None, use.shape_json):
            raise BadInput(f"two nodes of the flow write different shapes to dataset {use.name!r}. Next: use one shape")
        shapes[use.name] = shape or use.shape_json
    if not shapes:
        return {}
    locked = yield from lock_datasets(tenant_id, list(shapes))
    numbers: dict[str, int] = {}
    for name, (dataset_id, _) in locked.items():
        shape = shapes[name]
        values = {"flow_id": flow_id, "created_by": created_by, "has_shape": shape is not None, "shape": shape}
        ((_, numbers[name]),) = yield statement("insert_generation", {"dataset_id": dataset_id, **values})
    return numbers


def lock_datasets(tenant_id: str, names: Sequence[str]) -> Plan[dict[str, tuple[int, int]]]:
    """Lock datasets; returns name → (id, id of the current generation) by id. Raises DatasetNotFound."""
    rows: list[Row] = yield statement("lock_datasets", {"tenant_id": tenant_id, "names": names})
    locked = {name: (dataset_id, current_id) for dataset_id, name, current_id in rows}
    if missing := [name for name in names if name not in locked]:
        raise DatasetNotFound(missing[0])
    return locked
