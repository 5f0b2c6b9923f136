"""What an audit reads: pages of jobs with their logs, letters and effects, each page of one moment, without locks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure.contract import Contract
from tenure.postgres.engine import Engine, ask
from tenure.postgres.statement import Atomic, Plan, Row, statement


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
    leased: bool
    has_due: bool
    done: bool
    origin_letter: int | None
    claim_known: bool
    live: bool


class AuditedEvent(NamedTuple):
    """A log row."""

    job_id: int
    seq: int
    ts: datetime
    hop: bool
    trigger: str
    from_state: str
    to_state: str
    claims: int
    counter: int
    contract: str


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


@dataclass(slots=True)
class Page:
    """Jobs and everything that was written about them, of one moment."""

    jobs: list[Audited]
    events: list[AuditedEvent]
    letters: list[AuditedLetter]
    stray_effects: list[Row]


class Audit:
    """The reads of an audit; `store.audit`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def contracts(self) -> dict[tuple[str, str], Contract]:
        """Every registered contract by name and version."""
        await self._engine.run(self._engine.registry.load)
        return self._engine.registry.all()

    async def page(self, after: int, limit: int, since: datetime | None = None) -> Page:
        """The jobs after this id."""
        return await self._engine.run(lambda: _page(after, limit, since))

    async def ranges(self) -> list[Row]:
        """The id ranges: low, high, leaving, has_events, has_jobs, last_id."""
        return await self._engine.run(lambda: ask("audit_ranges", {}))

    async def stray_keys(self, since: datetime | None = None) -> list[Row]:
        """Keys whose job is not there: tenant, key, job id; at most 1,000."""
        return await self._engine.run(lambda: ask("audit_keys", {"since": since}))


def _page(after: int, limit: int, since: datetime | None) -> Plan[Page]:
    page: Page = yield Atomic(_read(after, limit, since))
    return page


def _read(after: int, limit: int, since: datetime | None) -> Plan[Page]:
    yield statement("steady", {})
    jobs = yield statement("audit_jobs", {"after": after, "limit": limit, "since": since})
    if not jobs:
        return Page([], [], [], [])
    span = {"low": jobs[0][0], "high": jobs[-1][0]}
    ids = [row[0] for row in jobs] if since is not None else None  # else the page is all that the span has
    events = yield statement("audit_events", {**span, "ids": ids})
    letters = yield statement("audit_letters", span)
    effects = yield statement("audit_effects", span)
    return Page(
        [Audited._make(row) for row in jobs],
        [AuditedEvent._make(row) for row in events],
        [AuditedLetter._make(row) for row in letters],
        effects,
    )
