"""Jobs that no live worker takes: the type is unknown, or no worker serves the queue. They wait and are reported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple


class UnservedType(NamedTuple):
    """A job type in a queue that no live worker takes."""

    contract: str
    queue: str
    type: str
    #: Jobs that were counted (there may be more), and since when the oldest is due, also in seconds.
    jobs: int
    since: datetime | None
    waited_s: float
    #: Some live workers that take other types from this queue, and some live workers of any queue.
    takers: Sequence[str] = ()
    workers: Sequence[str] = ()

    def sentence(self) -> str:
        """Return one sentence that says why no worker takes it."""
        return explain_unserved(self.contract, self.queue, self.type, self.takers, self.workers)


class ServedTypes(NamedTuple):
    """What one live worker takes."""

    queues: Sequence[str]
    contracts: Sequence[str]
    #: None: any.
    types: Sequence[str] | None


def unserved_to_json(one: UnservedType) -> dict[str, Any]:
    """Return the fields that JSON shows."""
    return {
        "contract": one.contract, "type": one.type, "jobs": one.jobs, "since": one.since, "why": one.sentence(),
        "workers": list(one.takers or one.workers),
    }  # fmt: skip


def explain_unserved(contract: str, queue: str, job_type: str, takers: Sequence[str], workers: Sequence[str]) -> str:
    """Return why no worker takes such a job."""
    if takers:
        return f"no live worker knows type {job_type} (seen workers: {_some(takers)})"
    if workers:
        return (
            f"no live worker takes {contract} jobs from queue {queue}, so none knows type {job_type} there "
            f"(seen workers: {_some(workers)})"
        )
    return f"no live worker knows type {job_type} (no worker is seen at all)"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
