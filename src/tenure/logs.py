"""Logging: add the running job to log records, and write them as text or JSON.

    JobFilter        adds `job_id`, `task` and `attempt` of the running handler to every record
    TextFormatter    12:03:07 INFO    [job 7 send, attempt 1] sent
    JsonFormatter    {"time": "2026-11-16T12:03:07.000000Z", "level": "INFO", "message": "sent", "job_id": 7, …}
    set_up           as the commands do it: one handler on stderr, with the filter and one of the formatters

Add the filter to handlers, where it gets the records of all loggers. It reads a context variable, so it works in async
handlers, in plain functions (which run in threads) and in child processes. A thread that a handler starts itself does
not have the variable: start it with `asyncio.to_thread`, or with `contextvars.copy_context().run`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from tenure.context import current
from tenure.errors import BadInput
from tenure.jobs.job import Job
from tenure.settings import LOG_FORMATS

_JOB: Final = ("job_id", "task", "attempt")
#: The attributes that every record has; any other attribute was given as `extra`.
_STANDARD: Final = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "traceback"})
#: These loggers write a line for each request or each attempt to connect; they get these levels instead.
_QUIETED: Final = (("httpx2", logging.WARNING), ("httpcore2", logging.WARNING), ("psycopg.pool", logging.CRITICAL))


def fields_of(job: Job) -> dict[str, Any]:
    """The three log fields of a job. A claim that ended in a snooze does not count as an attempt."""
    return {"job_id": job.id, "task": job.type, "attempt": job.claims - job.raises}


def job_fields() -> dict[str, Any]:
    """`job_id`, `task` and `attempt` of the handler that runs here; empty outside of handlers."""
    ctx = current.get()
    return {} if ctx is None else fields_of(ctx.job)


class JobFilter(logging.Filter):
    """Adds `job_id`, `task` and `attempt` to every record, None outside of handlers. Drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record does not have yet."""
        fields = job_fields()
        for name in _JOB:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True


class TextFormatter(logging.Formatter):
    """Time, level, the job in brackets where a handler runs, and the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        """The first line of a record."""
        return f"{record.asctime} {record.levelname:<7} {_job_prefix(record)}{record.message}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the job, the `extra` fields and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        message, traceback = record.getMessage(), getattr(record, "traceback", None)
        if traceback is not None:  # the message contains it too, for other formatters
            message = message.removesuffix(f"\n{traceback}")
        elif record.exc_info or record.exc_text:
            traceback = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        line: dict[str, Any] = {"time": at, "level": record.levelname, "logger": record.name, "message": message}
        line |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD and value is not None}
        if traceback is not None:
            line["traceback"] = traceback
        try:
            return json.dumps(line, default=as_text, ensure_ascii=False)
        except (TypeError, ValueError):  # keys that are not JSON, or a value that contains itself
            return json.dumps({name: as_text(value) for name, value in line.items()}, ensure_ascii=False)


def set_up(level: str = "info", format: str = "text") -> None:
    """Log to stderr from this level on, as text or JSON; does nothing where the root logger has handlers."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise BadInput(f"--log-level is debug, info, warning or error, not {level!r}")
    if format not in LOG_FORMATS:
        raise BadInput(f"--log-format is text or json, not {format!r}")
    if number > logging.DEBUG:
        for name, least in _QUIETED:
            logging.getLogger(name).setLevel(least)
    logging.getLogger("asyncio").setLevel(max(number, logging.INFO))  # at DEBUG it logs which selector it uses
    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=number, handlers=[handler])


def _job_prefix(record: logging.LogRecord) -> str:
    """The job of a handler's line; Tenure's own lines name the job in their message."""
    job_id = getattr(record, "job_id", None)
    if job_id is None or record.name.startswith("tenure."):
        return ""
    return f"[job {job_id} {getattr(record, 'task', None)}, attempt {getattr(record, 'attempt', None)}] "


def as_text(value: Any) -> str:
    """A value that is not JSON as text; the name of its type where it has no text."""
    try:
        return value.isoformat() if isinstance(value, datetime) else str(value)
    except Exception:
        return f"<{type(value).__name__}>"
