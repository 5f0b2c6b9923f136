"""One log record for each failed attempt: which job, which attempt, what the queue decided, and the traceback.

A retry is a WARNING with the time that the queue gave for it; an end is an ERROR with the contract's own name for it.
"""

from __future__ import annotations

import logging
from typing import Any

from tenure.errors import Refused
from tenure.job import Failure, Job
from tenure.outcome import Moved
from tenure.queue import Decision
from tenure.rendered import iso

_log = logging.getLogger("tenure.worker.failures")


def log_failure(job: Job, failure: Failure, became: Decision | Moved | Refused) -> None:
    """Log a failed attempt and what became of the job."""
    attempt = job.claims - job.raises  # a job that was put off has spent nothing
    facts: dict[str, Any] = {
        "job_id": job.id, "task": job.type, "contract": job.contract, "attempt": attempt, "eta": None,
        "error_type": failure.type, "error_code": failure.code, "error_message": failure.message,
    }  # fmt: skip
    if isinstance(became, Refused):
        level, facts["decision"] = logging.WARNING, "refused"
        decided = f"the report was refused: {became}"
    elif isinstance(became, Decision) and became.will_retry and became.eta is not None:
        level, facts["decision"], facts["eta"] = logging.WARNING, "retry", became.eta
        decided = f"retry at {iso(became.eta)}"
    else:
        state = became.status if isinstance(became, Decision) else became.state
        level, facts["decision"] = _level_of_end(became), state
        decided = f"{state} after {attempt} {'attempt' if attempt == 1 else 'attempts'}"
    _log.log(
        level, "job %d of %s, attempt %d failed, %s\n%s",
        job.id, job.type, attempt, decided, (failure.stack or f"{failure.type}: {failure.message}").rstrip(),
        extra=facts,
    )  # fmt: skip


def _level_of_end(became: Decision | Moved) -> int:
    """ERROR, except for a job that somebody asked to cancel: its failure is no surprise."""
    moved = became.moved if isinstance(became, Decision) else became
    return logging.WARNING if moved is not None and moved.trigger == "cancel" else logging.ERROR
