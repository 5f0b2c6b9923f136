"""What an audit reads: pages of jobs with their logs, letters, effects and keys, each of one moment, without locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tenure import intake
from tenure.contract import Contract
from tenure.postgres.engine import Engine, ask
from tenure.postgres.statement import Atomic, Plan, Row, statement

#: Between the fields of a log row, and between the rows, in the text that a log is read as.
FIELD, LINE = "\x1f", "\x1e"


class Audited(NamedTuple):
    """A job's row as far as its log must agree with it."""

    id: int
    contract: str
    version: str
    state: str
    role: str
    claims: int
    raises: int
    counter: int
    max_attempts: int
    seq: int
    updated_at: datetime
    live: bool
    #: What is wrong with the row itself, in the words of audit_jobs.sql.
    doubts: str


class AuditedLog(NamedTuple):
    """A job's log: seq, trigger, from, to, claims, counter, hop, limit and contract of each row, as one text."""

    job_id: int
    text: str
    #: The first row that is not later than the one before it.
    late: int | None
    last: datetime


class AuditedLetter(NamedTuple):
    """A dead letter."""

    job_id: int
    id: int
    contract: str
    counter: int
    claims: int
    status: str
    requeued_as: int | None
    asked_key: str | None
    approved_by: str | None
    linked: bool


class StrayEffect(NamedTuple):
    """An effect that no current lease covered; `known`: its claim was one, at another time."""

    job_id: int
    node: str
    claims: int
    known: bool


class ReplayedEffect(NamedTuple):
    """An effect of a recorded job."""

    node: str
    claims: int
    at: datetime
    result_json: str | None
    compensable: bool


@dataclass(slots=True)
class Page:
    """Jobs and everything that was written about them, of one moment; without jobs it is the last."""

    jobs: list[Audited]
    logs: list[AuditedLog] = field(default_factory=list)
    letters: list[AuditedLetter] = field(default_factory=list)
    stray_effects: list[StrayEffect] = field(default_factory=list)
    #: Keys whose job is not there: job id, tenant, key.
    stray_keys: list[Row] = field(default_factory=list)
    #: The ranges that leave, low and high.
    leaving: list[Row] = field(default_factory=list)


class Audit:
    """The reads of an audit; `store.audit`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def contracts(self) -> dict[tuple[str, str], Contract]:
        """Every registered contract by name and version, with this process's numbers."""
        await self._engine.run(self._engine.registry.load)
        return self._engine.registry.all()

    async def registered(self) -> list[Row]:
        """The registry as it is written: name, version, digest, declaration."""
        return await self._engine.run(lambda: ask("audit_contracts", {}))

    async def moment(self, ago: timedelta) -> datetime:
        """So long ago, by the database's clock."""
        rows = await self._engine.run(lambda: ask("audit_moment", {"seconds": ago.total_seconds()}))
        moment: datetime = rows[0][0]
        return moment

    async def page(self, after: int, limit: int, rows: int, since: datetime | None = None) -> Page:
        """The jobs after this id: at most so many, with about so many log rows."""
        which = {"after": after, "limit": limit, "rows": rows, "since": since}
        return await self._engine.run(lambda: _page(which))

    async def ranges(self) -> list[Row]:
        """The id ranges: low, high, leaving, has_events, has_jobs, last_id."""
        return await self._engine.run(lambda: ask("audit_ranges", {}))

    async def effects(self, job_id: int) -> list[ReplayedEffect]:
        """The effects of a job, oldest first."""
        return [
            ReplayedEffect._make(row) for row in await self._engine.run(lambda: ask("audit_replayed", {"id": job_id}))
        ]


def _page(which: dict[str, Any]) -> Plan[Page]:
    page: Page = yield Atomic(_read(which), steady=True)
    return page


def _read(which: dict[str, Any]) -> Plan[Page]:
    jobs = yield statement("audit_jobs", which)
    ids = [row[0] for row in jobs]
    if which["since"] is not None:  # only what belongs to these jobs; else also what lies between and behind them
        spans = {"lows": [job_id - 1 for job_id in ids], "highs": ids}
    else:
        spans = {"lows": [which["after"]], "highs": [ids[-1] if ids else intake.MAX_ID]}
    logs = yield statement("audit_events", spans)
    letters = yield statement("audit_letters", spans)
    effects = yield statement("audit_effects", spans)
    keys = yield statement("audit_keys", spans)
    leaving = yield statement("audit_leaving", {})
    return Page(
        [Audited._make(row) for row in jobs],
        [AuditedLog._make(row) for row in logs],
        [AuditedLetter._make(row) for row in letters],
        [StrayEffect._make(row) for row in effects],
        keys,
        leaving,
    )
