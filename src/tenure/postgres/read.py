"""Reads of jobs and contracts. The details of a job for a person are all from one snapshot.

One read-only transaction reads everything, so the log ends at the row's state. Nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

from tenure.contracts.declaration import Contract
from tenure.errors import JobNotFound, WaitingForParents
from tenure.jobs import validation
from tenure.jobs.event import LogEntry
from tenure.jobs.job import Job
from tenure.jobs.why import COUNT_LIMIT, QueuePause, Situation
from tenure.postgres.dead_letters import DeadLetter, read_dead_letter
from tenure.postgres.engine import EngineUser
from tenure.postgres.live_workers import why_unserved
from tenure.postgres.ranges import group_by_range, read_by_range
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, Query, Row, Statement, array, statement
from tenure.postgres.views import quoted, schema

T = TypeVar("T")
#: View fields that are ids: JSON shows them as strings, because not every language has 64-bit integers.
_IDS = frozenset({"id", "origin_letter"})


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job and all that is known about it."""

    job: Job
    contract: Contract
    log: list[LogEntry]
    #: The job's row in its contract's view; None if the contract has no view of jobs.
    record: Mapping[str, Any] | None
    now: datetime
    situation: Situation
    letter: DeadLetter | None
    #: The dead letter, and the job, that this job was made from.
    origin: DeadLetter | None
    ran_before: int | None
    created_by: str | None
    progress: Any

    @property
    def last_worker(self) -> str | None:
        """Who claimed the job last; None: nobody has."""
        claims = (event.actor for event in reversed(self.log) if event.hop and event.trigger in ("claim", "reclaim"))
        return next(claims, None)


@dataclass(frozen=True, slots=True)
class RegisteredContract:
    """A stored version of a contract; it may come from a newer release, so it is only data here."""

    name: str
    version: str
    declaration: Mapping[str, Any]
    registered_at: datetime


class JobReads(EngineUser):
    """Reads of jobs and contracts; part of the store."""

    async def contracts(self) -> list[str]:
        """The names of the registered contracts."""
        await self._engine.run(self._engine.registry.load)
        return [contract.name for contract in self._engine.registry.contracts()]

    async def registered_contracts(self) -> list[RegisteredContract]:
        """Every registered version of every contract as data, oldest first."""
        return [RegisteredContract(*row) for row in await self._engine.ask("list_contract_versions")]

    async def contract(self, name: str, version: str | None = None) -> Contract:
        """A registered contract, by default its newest version, with this process's settings."""
        return (await self._engine.bound_contract(name, version)).contract

    async def identities(self, ids: Sequence[int]) -> list[tuple[int, str, str, str, str, int | None, bool]]:
        """What never changes of each job, live or finished: id, contract, version, tenant, type, node, has datasets."""
        rows = await self._engine.run(lambda: read_by_range("read_job_identities", ids))
        return cast("list[tuple[int, str, str, str, str, int | None, bool]]", rows)

    async def jobs(self, ids: Sequence[int]) -> list[Job]:
        """The current rows of these jobs, live or finished; unknown ids are left out."""
        registry = self._engine.registry
        if not registry.installation:
            await self._engine.run(registry.load)
        rows = await self._engine.run(lambda: read_by_range("read_jobs", ids))
        return [Job._make((*row, registry.installation)) for row in rows]

    async def details(self, job_id: int) -> JobDetails:
        """A job with its log, contract and surroundings, all from one snapshot."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        return await self._engine.run(lambda: in_one_snapshot(_job_details(job_id, self._engine.registry)))

    async def records(self, contract: str, ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """The rows of these jobs in their contract's own view; empty if the contract has no view of jobs."""
        bound = await self._engine.bound_contract(contract)
        return await self._engine.run(lambda: _records(bound.contract, ids))

    async def events(self, job_id: int, *, after: int = 0, limit: int | None = None) -> list[LogEntry]:
        """The log of one job, in order; at most `limit` rows after row number `after`."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        return [LogEntry(*row) for row in await self._engine.ask("read_log", id=job_id, after=after, limit=limit)]


def _job_details(job_id: int, registry: Registry) -> Plan[JobDetails]:
    """The statements that read a job; they need one snapshot."""
    rows: list[Row] = yield statement("read_jobs", {"ids": [job_id]})
    if not rows:
        for node in (yield statement("find_unstarted_nodes", {"ids": [job_id]})):
            raise WaitingForParents(*node)
        raise JobNotFound(job_id)
    yield from registry.load()
    job = Job._make((*rows[0], registry.installation))
    contract = (yield from registry.bound_contract(job.contract, job.version)).contract
    (found,) = yield statement("read_job_details", {"id": job_id, "bound": COUNT_LIMIT + 1})
    now, beat, beat_ms, compensating, ahead, held, created_by, progress, *paused = found[:-5]
    again, ran_before, quarantined_at, quarantine_reason, expires_at = found[-5:]
    log = [LogEntry(*row) for row in (yield statement("read_log", {"id": job_id, "after": 0, "limit": None}))]
    letter = yield from read_dead_letter(job_id=job_id)
    origin = None if job.origin_letter is None else (yield from read_dead_letter(id=job.origin_letter))
    record = (yield from _records(contract, [job_id])).get(job_id)
    ready = job.role == "ready"
    is_lost = job.lease_expires_at is not None and job.lease_expires_at < now
    is_left = contract.budget.executions(job.max_attempts, job.raises) > job.claims and job.cancel_requested_at is None
    waits = job.role in ("ready", "waiting") or (job.role != "done" and is_lost and is_left)
    unserved, has_worker = (yield from why_unserved(job.contract, job.queue, job.type)) if waits else (None, True)
    situation = Situation(
        last_heartbeat_at=beat, heartbeat_ms=beat_ms, compensating=compensating,
        ahead=ahead if ready else None, held=held if ready else None,
        letter=letter.summary() if letter else None,
        again=again or (letter.requeued_as if letter else None),
        paused=QueuePause(*paused) if paused[0] else None, unserved=unserved, has_worker=has_worker,
        quarantined_at=quarantined_at, quarantine_reason=quarantine_reason, expires_at=expires_at,
    )  # fmt: skip
    return JobDetails(
        job, contract, log, record, now, situation, letter, origin, ran_before, created_by,
        None if progress is None else json.loads(progress),
    )  # fmt: skip


def in_one_snapshot(plan: Plan[T]) -> Plan[T]:
    """Run the reads of a plan in one snapshot."""
    read: T = yield Atomic(plan, snapshot=True)
    return read


def _records(contract: Contract, ids: Sequence[int]) -> Plan[dict[int, Mapping[str, Any]]]:
    """Return the rows of jobs in their contract's first view that shows jobs by id."""
    for view in contract.views:
        key = next((column for column, field in view.columns.items() if field == "id"), None)
        if view.rows != "jobs" or key is None:
            continue
        columns = ", ".join(map(quoted, view.columns))
        rows: list[Row] = []
        for group in group_by_range(ids):
            text = (  # ids in the text, so that PostgreSQL prunes partitions (see `ranges.py`)
                f"/* tenure: record_of */ select {quoted(key)}, {columns} "
                f"from {quoted(schema(contract))}.{quoted(view.name)} "
                f"where {quoted(key)} = any ('{array(group)}'::bigint[])"
            )
            rows += yield Statement(Query("record_of", text, (), source=text), ())
        return {
            job_id: {
                column: str(value) if field in _IDS and value is not None else value
                for (column, field), value in zip(view.columns.items(), row, strict=True)
            }
            for job_id, *row in rows
        }
    return {}
