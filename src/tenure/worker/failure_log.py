"""One log record for each failed attempt: the job, the attempt, the decision and the traceback.

A retry is a WARNING with the time that the queue gave for it; an end is an ERROR with the contract's own name for it.
A job that was taken from this worker is logged once too: as cancelled where it was cancelled, else as lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from tenure.contracts.declaration import Contract
from tenure.errors import Refused, TenureError
from tenure.jobs.event import LogEntry
from tenure.jobs.formats import FAILURE_LOGGER, count_attempts, elapsed, format_iso
from tenure.jobs.job import UPKEEP, Failure, Job
from tenure.jobs.outcome import Moved, Noted, Outcome
from tenure.logs import fields_of

_log = logging.getLogger(FAILURE_LOGGER)
#: The worker's other lines about jobs; failures have their own logger.
_worker_log = logging.getLogger("tenure.worker")


def log_failure(job: Job, failure: Failure, outcome: Outcome, undo: Failure | None = None) -> None:
    """Log a failed attempt and its outcome; and `undo`, the failure to undo the job's effects, if there was one."""
    runs_at = None
    if isinstance(outcome, Refused):
        level, decision, text = logging.WARNING, "refused", f"the report was refused: {outcome}"
    elif outcome.will_retry and outcome.due_at is not None:
        level, decision, runs_at = logging.WARNING, "retry", outcome.due_at
        # Both times are the database's.
        text = f"retry in {elapsed(outcome.at, outcome.due_at)}, at {format_iso(outcome.due_at)}"
    else:
        # A failure after a cancel request is no surprise.
        level = logging.WARNING if outcome.trigger == "cancel" else logging.ERROR
        decision, text = outcome.state, f"{outcome.state} after {count_attempts(fields_of(job)['attempt'])}"
    traceback = _traceback(failure)
    if undo is not None:
        traceback += f"\nIts effects could not be undone:\n{_traceback(undo)}"
    _write(
        _log, level, job, " failed, %s\n%s", text, traceback, decision=decision, eta=runs_at, traceback=traceback,
        error_type=failure.type, error_code=failure.code, error_message=failure.message,
    )  # fmt: skip


def log_failed_after_end(job: Job, failure: Failure, moved: Moved) -> None:
    """Log a failure of a handler whose own transaction had ended the job before: the job stays as it ended."""
    _write(
        _log, logging.WARNING, job, " ended, %s, in its handler's transaction; the handler failed after that\n%s",
        moved.state, _traceback(failure), decision=moved.state,
    )  # fmt: skip


def log_cancelled(job: Job, by: str, state: str, reason: str | None) -> None:
    """Log an attempt that ended because the job is cancelled, by its handler or by a request."""
    why = f" ({reason})" if reason else ""
    _write(_log, logging.WARNING, job, " ended, %s by %s%s", state, by, why, decision=state)


def log_handed_back(job: Job, answer: Moved | Noted | TenureError, counts: Counter[str]) -> None:
    """Count a job that was handed back, and log it where that ended the job or spent its attempt."""
    moved = answer if isinstance(answer, Moved) and not answer.compensate else None
    if isinstance(answer, TenureError):
        counts["refused"] += 1
    elif moved is not None and moved.trigger == "cancel":
        counts["cancelled"] += 1
        log_cancelled(job, "request", moved.state, "it was handed back")
    else:
        counts["handed back"] += 1
        if moved is not None and moved.trigger != "hand_back":
            log_failure(job, Failure("handed back unfinished", "HandedBack", "HANDED_BACK"), moved)


def log_success(job: Job, moved: Moved) -> None:
    """Log a job that succeeded, at DEBUG."""
    if _worker_log.isEnabledFor(logging.DEBUG):
        took = "" if job.started_at is None else f" in {elapsed(job.started_at, moved.at)}"
        _write(_worker_log, logging.DEBUG, job, " ended, %s%s", moved.state, took, decision=moved.state)


def log_lost(contract: Contract, job: Job, entry: LogEntry | None) -> None:
    """Log that a job was taken from this worker while its handler ran; `entry` is the hop that took it, if known."""
    is_logged = entry is not None and (entry.actor == UPKEEP or entry.trigger == "reclaim")
    is_end = entry is not None and not is_logged and contract.states[entry.to_state] == ("done",)
    since = "" if entry is None else f" ({entry.trigger} by {entry.actor}, the job is {entry.to_state})"
    # The process that closed the lease or took the job over logs the failure. This line is about the handler.
    _write(
        _worker_log if is_logged else _log, logging.ERROR if is_end else logging.WARNING, job,
        ": the lease is lost%s; the handler was stopped, and its result is not stored", since, decision="lost",
    )  # fmt: skip


def _traceback(failure: Failure) -> str:
    return (failure.stack or f"{failure.type}: {failure.message}").rstrip()


def _write(logger: logging.Logger, level: int, job: Job, text: str, *values: Any, **fields: Any) -> None:
    """Write a record about an attempt; every record has the fields `contract`, `eta` and `decision`."""
    fields = {**fields_of(job), "contract": job.contract, "eta": None} | fields
    message = f"job %d of %s, attempt %d{text}"
    logger.log(level, message, job.id, job.type, fields["attempt"], *values, extra=fields, stacklevel=2)
