"""Job types: options that applications declare, stored in `tenure.job_type` for callers that declare none.

An entry belongs to the application that declared it. No other application overwrites it while a live worker declares
it. A starting worker withdraws the entries of its own application that no live worker declares any more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.job_type import JobType, check_job_type
from tenure.jobs.live_worker import group_by_contract
from tenure.postgres.engine import EngineUser

_log = logging.getLogger("tenure")


class StoredJobType(NamedTuple):
    """The stored options of a type, and who declared them when; None: not known."""

    options: JobType
    application: str | None
    declared_by: str | None
    declared_at: datetime

    @property
    def type(self) -> str:
        """The name of the type, as jobs have it."""
        return self.options.type


class WorkerDeclaration(NamedTuple):
    """A live worker that knows a type, and what its code declares for it, by contract."""

    worker: str
    application: str | None
    version: str | None
    options: Mapping[str, dict[str, Any]]


class JobTypes(EngineUser):
    """Operations on job types; `store.types`."""

    async def declare(self, types: Sequence[JobType], *, application: str | None = None, by: str | None = None) -> int:
        """Store the numbers of these types for callers that declare none; returns how many rows were written.

        Unchanged options are written again after ten seconds, so that no other worker withdraws them.

        Entries that a live worker of another application declares stay, with a warning in the log.
        """
        untyped: object = types
        if not isinstance(untyped, (list, tuple)) or not all(isinstance(one, JobType) for one in untyped):
            raise BadInput(f"types must be a list of JobType, not {untyped!r}")
        validation.check_integer("number of types", len(types), 0, validation.MAX_BATCH)
        for declared in types:
            check_job_type((await self._engine.bound_contract(declared.contract)).contract, declared)
        names = [(declared.contract, declared.type) for declared in types]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"job type {twice[0][1]} of contract {twice[0][0]} is declared twice")
        values = {
            "types": json.dumps([asdict(one) for one in types]),
            "application": None if application is None else validation.check_name("application", application),
            "declared_by": None if by is None else validation.check_name("worker", by),
        }
        written = 0
        for contract, job_type, owner in await self._engine.ask("declare_types", **values):
            written += owner is None
            if owner is not None:
                _log.warning(
                    "the stored options of type %s (contract %s) belong to application %s, whose workers are live; "
                    "they stay. The workers of %s use their own options. Next: give each application its own name, or "
                    "one of the tasks another name",
                    job_type, contract, owner, application or "this application",
                )  # fmt: skip
        return written

    async def entries(self, contract: str | None = None) -> list[StoredJobType]:
        """Return the stored options, of one contract or of all, with their owners."""
        rows = await self._engine.ask("list_types", contract=contract)
        return [StoredJobType(JobType(*row[:10]), *row[10:]) for row in rows]

    async def withdraw(self, application: str, keep: Iterable[JobType] = ()) -> list[tuple[str, str]]:
        """Withdraw an application's options that no live worker declares; returns (contract, type).

        Options in `keep`, and options that were declared in the last 30 seconds, stay.
        """
        values = {"application": validation.check_name("application", application), "keep": group_by_contract(keep)}
        ended = [(contract, job_type) for contract, job_type in await self._engine.ask("withdraw_types", **values)]
        for contract, job_type in ended:
            _log.info(
                "application %s no longer declares options of type %s (contract %s)", application, job_type, contract
            )
        return ended

    async def declarations(self, job_type: str, contract: str | None = None) -> list[WorkerDeclaration]:
        """Return the live workers that know a type, and what each declares for it."""
        values = {"type": validation.check_name("type", job_type), "contract": contract}
        rows = await self._engine.ask("list_workers_of_type", **values)
        return [
            WorkerDeclaration(name, application, version, json.loads(options))
            for name, application, version, options in rows
        ]

    async def reset(self, job_type: str, contract: str | None = None) -> list[tuple[str, str]]:
        """Remove the stored options of a type, of any application; returns (contract, type)."""
        values = {"type": validation.check_name("type", job_type), "contract": contract}
        return [(name, job_type) for name, job_type in await self._engine.ask("reset_type", **values)]

    async def list(self, contract: str | None = None) -> list[JobType]:
        """Return the stored options, of one contract or of all."""
        return [entry.options for entry in await self.entries(contract)]
