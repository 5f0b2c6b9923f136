"""The table of live workers. A worker, or the dispatcher it uses, writes its row and deletes it when it stops."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tenure.jobs.live_worker import LiveWorker, PastWorker, WorkerStatus
from tenure.jobs.unserved import ServedTypes, UnservedType, explain_unserved
from tenure.postgres.engine import EngineUser
from tenure.postgres.statement import Plan, statement

#: At most this many queues are read, and this many jobs of each.
MANY_QUEUES, _SAMPLE = 1_000, 1_000
#: What is known of a worker that is gone is kept for this many seconds.
_KEEP_S, _PAGE = 86_400.0, 1_000


class Workers(EngineUser):
    """Operations on live workers; `store.workers`."""

    async def enter(self, workers: Sequence[LiveWorker]) -> None:
        """Write the rows of these workers anew, in one statement."""
        rows = json.dumps([one.row() for one in workers])
        await self._engine.ask("upsert_workers", workers=rows)

    async def see(self, workers: Sequence[LiveWorker]) -> list[LiveWorker]:
        """Update the last-seen time of these workers in one statement; returns those that have no row yet."""
        values = {
            "names": [one.name for one in workers], "busy": [one.busy for one in workers],
            "lags": [one.loop_lag_s for one in workers],
        }  # fmt: skip
        known = {name for (name,) in await self._engine.ask("update_workers_seen", **values)}
        return [one for one in workers if one.name not in known]

    async def leave(self, worker: LiveWorker) -> None:
        """Delete the row of a stopping worker, unless another process uses its name now."""
        values = {"name": worker.name, "pid": worker.pid, "host": worker.host, "through": worker.through}
        await self._engine.ask("delete_worker", **values)

    async def unserved(self, limit: int = 100, *, sample: int = _SAMPLE) -> list[UnservedType]:
        """Return the types of due jobs that no live worker takes; reads the first jobs of each queue."""
        await self._engine.refresh()
        values = {"queues": MANY_QUEUES, "sample": sample, "limit": limit, **self._engine.registry.reclaiming()}
        return [UnservedType._make(row) for row in await self._engine.ask("find_unserved_types", **values)]

    async def why_unserved(self, contract: str, queue: str, job_type: str) -> str | None:
        """Return why no live worker takes such a job; None if one does."""
        why, _ = await self._engine.run(lambda: why_unserved(contract, queue, job_type))
        return why

    async def takers(self) -> list[ServedTypes]:
        """Return what each live worker takes."""
        return [ServedTypes._make(row) for row in await self._engine.ask("list_worker_filters")]

    async def forget(self) -> int:
        """Delete the rows of dead workers: not seen for two minutes and without a lease; returns how many.

        Workers that are gone for a day are forgotten.
        """
        while len(await self._engine.ask("delete_past_workers", keep_sec=_KEEP_S, limit=_PAGE)) == _PAGE:
            pass
        return len(await self._engine.ask("delete_dead_workers"))

    async def list(self, limit: int = 1_000) -> list[WorkerStatus]:
        """Return the live workers, busy or idle, and other holders of jobs, by name."""
        rows = await self._engine.ask("list_workers", limit=limit)
        return [WorkerStatus._make(row) for row in rows]

    async def past(self, since_s: float = 3_600.0, *, name: str | None = None, limit: int = 50) -> Sequence[PastWorker]:
        """Return workers that are gone since then, the last one first: those that stopped, and those that were lost."""
        rows = await self._engine.ask("list_past_workers", since_s=since_s, name=name, limit=limit)
        return [PastWorker._make(row) for row in rows]


def why_unserved(contract: str, queue: str, job_type: str) -> Plan[tuple[str | None, bool]]:
    """Return why no live worker takes such a job, None if one does; and whether one takes others of the queue."""
    ((is_taken, takers, workers),) = yield statement(
        "check_type_is_taken", {"contract": contract, "queue": queue, "type": job_type}
    )
    why = None if is_taken else explain_unserved(contract, queue, job_type, takers, workers)
    return why, is_taken or bool(takers)
