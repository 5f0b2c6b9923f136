"""A job as a person looks at it: its row, its log, its contract and what stands around it, all of one moment.

Everything is read in one read-only transaction, so that the log ends where the row stands. Nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from tenure import intake
from tenure.around import MANY, Around, Paused
from tenure.contract import Contract
from tenure.errors import Busy, JobNotFound
from tenure.event import Logged
from tenure.job import Job
from tenure.postgres.borrowed import locally
from tenure.postgres.connect import connecting, our_errors, plain_dsn
from tenure.postgres.letters import Letter
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, Query, Row, Statement, array, run_sync, statement
from tenure.postgres.views import quoted, schema

#: Fields of a view that are ids: programs get them as texts, because not every language has such numbers.
_IDS = frozenset({"id", "origin_letter"})


@dataclass(frozen=True, slots=True)
class Look:
    """A job and what there is to know about it."""

    job: Job
    contract: Contract
    log: list[Logged]
    #: The job's row in its contract's view; None where the contract shows no jobs.
    record: Mapping[str, Any] | None
    now: datetime
    around: Around
    letter: Letter | None
    #: The dead letter, and the job, from which this one was made.
    origin: Letter | None
    ran_before: int | None
    created_by: str | None
    progress: Any


def look(dsn: str, job_id: int, numbers: Mapping[str, Mapping[str, int]] | None = None) -> Look:
    """Look at a job; refuses an unknown id."""
    intake.whole("id", job_id, 1, intake.MAX_ID)
    registry, address = Registry(numbers), plain_dsn(dsn)
    with connecting():
        connection = psycopg.connect(address, prepare_threshold=None)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    try:
        with our_errors(), connection:
            return run_sync(connection, _under_settings(looked(job_id, registry)))
    except psycopg.errors.LockNotAvailable as error:  # a migration has the table
        raise Busy(job_id) from error


def _under_settings(plan: Plan[Look]) -> Plan[Look]:
    yield locally()
    return (yield from plan)


def looked(job_id: int, registry: Registry) -> Plan[Look]:
    """The statements of a look; they want one snapshot."""
    rows: list[Row] = yield statement("jobs", {"ids": [job_id]})
    if not rows:
        raise JobNotFound(job_id)
    yield from registry.load()
    job = Job._make((*rows[0], registry.installation))
    contract = (yield from registry.machine(job.contract, job.version)).contract
    (found,) = yield statement("look", {"id": job_id, "bound": MANY + 1})
    now, beat, beat_ms, compensating, ahead, held, created_by, progress, *paused, again, ran_before = found
    log = [Logged(*row) for row in (yield statement("events", {"id": job_id, "after": 0, "limit": None}))]
    letter = yield from _letter({"job_id": job_id})
    origin = None if job.origin_letter is None else (yield from _letter({"id": job.origin_letter}))
    record = (yield from records(contract, [job_id])).get(job_id)
    ready = job.role == "ready"
    around = Around(
        last_heartbeat_at=beat, heartbeat_ms=beat_ms, compensating=compensating,
        ahead=ahead if ready else None, held=held if ready else None,
        letter=letter.in_short() if letter else None,
        again=again or (letter.requeued_as if letter else None),
        paused=Paused(*paused) if paused[0] else None,
    )  # fmt: skip
    return Look(
        job, contract, log, record, now, around, letter, origin, ran_before, created_by,
        None if progress is None else json.loads(progress),
    )  # fmt: skip


def _letter(which: Mapping[str, int]) -> Plan[Letter | None]:
    rows: list[Row] = yield statement("letter", which)
    return Letter._make(rows[0]) if rows else None


def steadily(plan: Plan[Look]) -> Plan[Look]:
    """A look in one snapshot, on a connection that has other things to do."""
    seen: Look = yield Atomic(plan, steady=True)
    return seen


def records(contract: Contract, ids: Sequence[int]) -> Plan[dict[int, Mapping[str, Any]]]:
    """Jobs' rows in their contract's own words: of the first view that shows jobs by their id."""
    for view in contract.views:
        key = next((column for column, field in view.columns.items() if field == "id"), None)
        if view.rows != "jobs" or key is None:
            continue
        columns = ", ".join(map(quoted, view.columns))
        text = (
            f"/* tenure: record_of */ select {quoted(key)}, {columns} "
            f"from {quoted(schema(contract))}.{quoted(view.name)} where {quoted(key)} = any ($1::bigint[])"
        )
        rows: list[Row] = yield Statement(Query("record_of", text, ("ids",)), (array(ids),))
        return {
            job_id: {
                column: str(value) if field in _IDS and value is not None else value
                for (column, field), value in zip(view.columns.items(), row, strict=True)
            }
            for job_id, *row in rows
        }
    return {}
