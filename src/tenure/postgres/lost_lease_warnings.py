"""Log attempts whose leases expired, in the process that closes the lease or takes the job: the worker may be dead."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psycopg

from tenure.jobs.formats import FAILURE_LOGGER, count_attempts, elapsed, format_iso
from tenure.jobs.job import Job
from tenure.jobs.outcome import Moved, Outcome
from tenure.postgres.ranges import read_by_range
from tenure.postgres.statement import Plan

_log = logging.getLogger(FAILURE_LOGGER)
#: Jobs are read in groups of this size, because their payloads may be large.
_READ = 100


def warn_of_closed(contract: str, outcomes: Sequence[Outcome]) -> Plan[None]:
    """Log the jobs of a contract whose leases were closed, one record each."""
    closed = [one for one in outcomes if isinstance(one, Moved)]
    for first in range(0, len(closed), _READ):
        some = closed[first : first + _READ]
        try:
            rows = yield from read_by_range("read_jobs", [one.job_id for one in some])
        except psycopg.Error:  # the leases are closed: log them without the job's fields
            rows = []
        jobs = {job.id: job for job in (Job._make((*row, "")) for row in rows)}
        for one in some:
            warn_of_lost(contract, one, jobs.get(one.job_id))


def warn_of_reclaimed(jobs: Sequence[Job]) -> None:
    """Log the lost attempts of jobs that a claim took over in place, one record each."""
    for job in jobs:
        at, lost = job.updated_at, job.claims - 1
        warn_of_lost(job.contract, Moved(job.id, "reclaim", job.state, job.state, "ready", lost, lost, at, at), job)


def warn_of_lost(contract: str, moved: Moved, job: Job | None) -> None:
    """Log an attempt whose lease expired, and the outcome for its job; the job's row may be unknown."""
    task, attempt = ("(unknown)", moved.claims) if job is None else (job.type, moved.claims - job.raises)
    facts = {"job_id": moved.job_id, "task": task, "attempt": attempt, "contract": contract}
    if moved.will_retry:
        facts |= {"decision": "retry", "eta": moved.due_at}
        due_at = max(moved.at, moved.due_at or moved.at)
        decided = f"retry in {elapsed(moved.at, due_at)}, at {format_iso(due_at)}"
    else:
        facts |= {"decision": moved.state, "eta": None}
        decided = f"{moved.state} after {count_attempts(attempt)}"
    is_end = not moved.will_retry and moved.trigger != "cancel"
    _log.log(
        logging.ERROR if is_end else logging.WARNING,
        "job %d of %s, attempt %d failed, %s\nits lease expired: its worker is gone, or sent no heartbeats",
        moved.job_id, task, attempt, decided, extra=facts,
    )  # fmt: skip
