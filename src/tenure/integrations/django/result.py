"""A job and its log as a result of Django's tasks framework."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tenure import errors
from tenure.integrations.django.framework import Status, Task, TaskError, TaskResult
from tenure.jobs.event import LogEntry
from tenure.jobs.job import Job
from tenure.postgres.connect import translate_errors
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, run_sync, statement

#: Status by role; a role that is not here, `done`, is told by the state.
_STATUS: Final = {
    "ready": Status.READY, "waiting": Status.READY, "leased": Status.RUNNING,
    "active": Status.RUNNING, "settling": Status.RUNNING,
}  # fmt: skip
#: The line of a traceback that names the exception: the first one without an indent after the frames.
_RAISED: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.<>]+)(?=:|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job, its log, and whether it has succeeded."""

    job: Job
    log: Sequence[LogEntry]
    succeeded: bool


def read_job(connection: psycopg.Connection[Any], registry: Registry, job_id: int) -> FoundJob | None:
    """Read a job and its log on this connection; None where no job has the id."""
    with translate_errors():
        return run_sync(connection, _read_job(registry, job_id))


def _read_job(registry: Registry, job_id: int) -> Plan[FoundJob | None]:
    rows = yield statement("read_jobs", {"ids": [job_id]})
    if not rows:
        return None
    log = yield statement("read_log", {"id": job_id, "after": 0, "limit": None})
    job = Job._make((*rows[0], registry.installation))
    bound = yield from registry.bound_contract(job.contract, job.version)
    return FoundJob(job, [LogEntry(*row) for row in log], job.state in bound.contract.successes())


def to_result(task: Task[..., Any], found: FoundJob) -> TaskResult[Any]:
    """Return the framework's result of a job."""
    job = found.job
    payload = job.payload if isinstance(job.payload, dict) else {}  # retention removes payloads
    before = [0, *(entry.claims for entry in found.log)]
    claims = [entry for last, entry in zip(before, found.log, strict=False) if entry.claims > last]
    finished = Status.SUCCESSFUL if found.succeeded else Status.FAILED
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=str(job.id),
        status=_STATUS.get(job.role, finished),
        enqueued_at=job.created_at,
        started_at=claims[0].ts if claims else None,
        last_attempted_at=claims[-1].ts if claims else None,
        finished_at=job.finished_at,
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=task.backend,
        errors=[_error(entry.facts["error"]) for entry in found.log if entry.facts and entry.facts.get("error")],
        worker_ids=[entry.actor for entry in claims],
    )
    object.__setattr__(result, "_return_value", job.result if found.succeeded else None)
    return result


def start_result(task: Task[..., Any], job: Job) -> TaskResult[Any]:
    """Return the result of a job in its first run, without reading its log."""
    payload = job.payload
    worker = [job.lease_owner] if job.lease_owner else []
    return TaskResult(
        task=task, id=str(job.id), status=Status.RUNNING, enqueued_at=job.created_at,
        started_at=job.updated_at, last_attempted_at=job.updated_at, finished_at=None, args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}), backend=task.backend, errors=[], worker_ids=worker,
    )  # fmt: skip


def to_priority(priority: int) -> int:
    """Return Tenure's priority, 0 (first) to 9, of the framework's, 100 (first) to -100; 0 is 5."""
    return 5 - -(-priority // 20) if priority > 0 else 5 + -(priority // 25)


def _error(stored: dict[str, Any]) -> TaskError:
    """Return a stored failure; its class is named by the traceback, or is the closest one where there is none."""
    stack, kind, code = str(stored.get("stack", "")), str(stored.get("type", "")), str(stored.get("code", ""))
    named = [path for path in _RAISED.findall(stack) if path.rpartition(".")[2] in (kind, code)]
    path = named[-1] if named else kind
    if "." not in path:
        owner = builtins if isinstance(getattr(builtins, path, None), type) else errors
        path = f"{owner.__name__}.{path if hasattr(owner, path) else errors.InfrastructureFailure.__name__}"
    message = str(stored.get("message", ""))
    return TaskError(exception_class_path=path, traceback=stack or f"{kind}: {message}\n")
