"""`tenure workers`: list the live workers, busy or idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.cli.command import Output, Store, command, table_output
from tenure.jobs.live_worker import WorkerStatus

_HEAD = ("worker", "application", "queues", "types", "busy", "holds", "lag", "version", "last seen (UTC)", "where")


@command
async def list_(store: Store) -> Output:
    """List the live workers, busy or idle, and every other holder of jobs."""
    workers = await store.workers.list()
    data = {"workers": [worker.to_json() for worker in workers]}
    if_empty = "no worker is live, and nobody holds a job. Next: tenure worker APP"
    return table_output(data, _HEAD, map(_row, workers), if_empty)


def _row(worker: WorkerStatus) -> tuple[Any, ...]:
    busy = None if worker.slots is None else f"{worker.busy}/{worker.slots}"
    lag = None if worker.loop_lag_s is None else f"{1_000 * worker.loop_lag_s:.0f} ms"
    host = [] if worker.host is None else [f"{worker.host} pid {worker.pid}"]
    through = [f"through {worker.through}"] if worker.through else []
    types = "any" if worker.types is None and worker.queues is not None else _first(worker.types)
    return (
        worker.worker_id, worker.application, _first(worker.queues), types, busy, worker.held, lag,
        worker.version,
        worker.last_seen_at or worker.last_heartbeat_at, " ".join(host + through),
    )  # fmt: skip


def _first(names: Sequence[str] | None) -> str:
    """The first four names, and the number of the others."""
    names = names or ()
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
