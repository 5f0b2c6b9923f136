"""A job that is made later, as it is stored: by a node of a flow, or by a subscription to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from tenure.jobs.job import DatasetUse, NewJob

#: The fields of a job that are stored apart, or that such a job does not have.
_NO_OPTIONS: Final = ("type", "payload", "contract", "queue", "tenant_id", "key", "unique")
_OPTIONS: Final = tuple(one.name for one in fields(NewJob) if one.name not in _NO_OPTIONS)
_values_of: Final = attrgetter(*_OPTIONS)
_USUAL: Final = _values_of(NewJob(""))


def job_options(job: NewJob) -> dict[str, Any]:
    """The values of a job that are not the usual ones, as JSON values."""
    values = _values_of(job)
    if values == _USUAL:
        return {}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value, usual in zip(_OPTIONS, values, _USUAL, strict=True)
        if value != usual
    }


def _uses(stored: Sequence[Sequence[Any]]) -> tuple[DatasetUse, ...]:
    return tuple(DatasetUse(*use) for use in stored)


#: How the values of a job that are no JSON values are read from their stored form.
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "run_at": datetime.fromisoformat, "expires_at": datetime.fromisoformat, "reads": _uses, "writes": _uses,
}  # fmt: skip


def job_from_options(
    type_name: str, payload: Any, contract: str, queue: str, tenant_id: str, options: Mapping[str, Any] | None
) -> NewJob:
    """Return the job of these stored values."""
    values = {name: _READERS[name](value) if name in _READERS else value for name, value in (options or {}).items()}
    return NewJob(type_name, payload, contract, queue=queue, tenant_id=tenant_id, **values)
