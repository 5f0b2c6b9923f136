"""A live worker as `tenure.worker` stores it: its identity, what it takes, and how busy it is."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tenure.jobs.job_type import JobType

#: A worker that was not seen for this many seconds is silent: it writes its row every 5 seconds.
SILENT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """What a worker reports about itself; None: not known."""

    #: The name, as in `job.lease_owner`.
    name: str
    queues: tuple[str, ...]
    contracts: tuple[str, ...]
    #: The job types that it takes; None: any.
    types: tuple[str, ...] | None = None
    application: str | None = None
    version: str | None = None
    host: str | None = None
    pid: int | None = None
    slots: int | None = None
    busy: int | None = None
    #: The longest delay of its event loop since the report before, in seconds.
    loop_lag_s: float | None = None
    #: The job types that its own code declares.
    declares: tuple[JobType, ...] = ()
    #: The dispatcher that it is connected to.
    through: str | None = None
    #: The schedules that its own code declares: name → fingerprint.
    schedules: Mapping[str, str] | None = None
    #: The application's own version.
    release: str | None = None

    def row(self) -> dict[str, Any]:
        """Return its row of `tenure.worker`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "declares": group_by_contract(self.declares)}


class WorkerStatus(NamedTuple):
    """A worker that is live or holds jobs. None: the worker did not report it."""

    worker_id: str
    held: int
    since: datetime | None
    last_heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    application: str | None = None
    queues: Sequence[str] | None = None
    contracts: Sequence[str] | None = None
    #: None: any type, or not known.
    types: Sequence[str] | None = None
    slots: int | None = None
    busy: int | None = None
    started_at: datetime | None = None
    last_seen_at: datetime | None = None
    through: str | None = None
    #: The application's own version; None: it names none.
    release: str | None = None
    #: The longest delay of its event loop in the seconds before it was last seen.
    loop_lag_s: float | None = None
    #: Seconds since it was last seen; None: it only holds jobs.
    silent_s: float | None = None
    #: Some of the jobs that it holds, those first that it has run longest.
    jobs: Sequence[int] = ()

    @property
    def is_silent(self) -> bool:
        """Whether a worker that should write every few seconds has not done so."""
        # A remote worker with no free slot is seen by its leases alone.
        return self.silent_s is not None and self.silent_s >= SILENT_S and not (self.through and self.held)

    def to_json(self) -> dict[str, Any]:
        """The worker as JSON shows it: ids are texts."""
        return {**self._asdict(), "jobs": [str(job_id) for job_id in self.jobs], "silent": self.is_silent}


class PastWorker(NamedTuple):
    """A worker that is gone."""

    worker_id: str
    #: It stopped, or it was not seen any more.
    ending: Literal["stopped", "lost"]
    started_at: datetime
    last_seen_at: datetime
    gone_at: datetime
    #: How many jobs it ran when it was last seen.
    busy: int
    host: str | None
    pid: int | None
    application: str | None
    release: str | None
    queues: Sequence[str]


def group_by_contract(declared: Iterable[JobType]) -> dict[str, dict[str, Any]]:
    """Return declared options as the table stores them: contract → type → options that are set."""
    found: dict[str, dict[str, Any]] = {}
    for one in declared:
        options = {name: value for name, value in asdict(one).items() if value is not None}
        del options["type"], options["contract"]
        found.setdefault(one.contract, {})[one.type] = options
    return found


def host_and_pid() -> tuple[str, int]:
    """Return the host name and the process id."""
    return socket.gethostname(), os.getpid()


def process_name() -> str:
    """Return `host:pid`, which no other process has."""
    return "{}:{}".format(*host_and_pid())


def module_name(caller: Mapping[str, Any]) -> str:
    """Return the module of these globals; for a program its file name, as in `tenure worker NAME:app`."""
    module = str(caller.get("__name__", "unknown"))
    if module != "__main__":
        return module
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    return Path(str(getattr(main, "__file__", "") or "__main__")).stem
