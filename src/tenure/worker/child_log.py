"""Log records of a child process, written by its worker: the worker's logging setup is valid in the child too.

A logger that has handlers of its own in the child (its module sets them up on import) keeps them. The worker's handlers
of that logger then skip its records, so that no line is written twice.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tenure.logs import JobFilter, as_text


def levels() -> dict[str, int]:
    """The level of every logger of this process that has one; the root logger's under the empty name."""
    loggers = logging.root.manager.loggerDict.items()
    with_level = {name: one.level for name, one in loggers if isinstance(one, logging.Logger) and one.level}
    return {"": logging.root.level, **with_level}


def set_levels(levels: Mapping[str, int]) -> None:
    """Set the levels of loggers in this process."""
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


class ForwardHandler(logging.Handler):
    """The child's handler: sends each record to the worker, with the fields of its job."""

    def __init__(self, send: Callable[[dict[str, Any], list[str]], None]) -> None:
        super().__init__()
        self._send_record = send
        self._pid = os.getpid()
        self.addFilter(JobFilter())

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record: its message as text, and its extra fields as JSON."""
        if os.getpid() != self._pid:  # a forked process must not write to its parent's pipe
            _write_last_resort(record)
            return
        try:
            written_by = [one.name for one in _chain(record.name) if any(each is not self for each in one.handlers)]
            self._send_record(self._portable(record), written_by)
        except Exception:
            self.handleError(record)

    def _portable(self, record: logging.LogRecord) -> dict[str, Any]:
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        fields = {**record.__dict__, "msg": record.getMessage(), "args": None, "exc_info": None}
        return {name: _as_json(value) for name, value in fields.items()}


def write(fields: Mapping[str, Any], written_by: list[str]) -> None:
    """Write a child's record with the handlers of its loggers, except loggers that have written it in the child."""
    record = logging.makeLogRecord(dict(fields))
    is_written = bool(written_by)
    for one in _chain(record.name):
        if one.name in written_by:
            continue
        for handler in one.handlers:
            is_written = True
            if record.levelno >= handler.level:
                handler.handle(record)
    if not is_written:
        _write_last_resort(record)


def _chain(name: str) -> Iterator[logging.Logger]:
    """A logger and the parents to which its records propagate."""
    one: logging.Logger | None = logging.getLogger(name)
    while one is not None:
        yield one
        one = one.parent if one.propagate else None


def _as_json(value: Any) -> Any:
    """A value that every process can read: JSON, else text."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    try:
        return json.loads(json.dumps(value))
    except Exception:
        return as_text(value)


def _write_last_resort(record: logging.LogRecord) -> None:
    if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)
