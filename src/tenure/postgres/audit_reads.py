"""Reads of the audit: pages of jobs with their logs, dead letters, effects and keys; one snapshot each, no locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tenure.contracts.declaration import Contract
from tenure.jobs import validation
from tenure.postgres.engine import EngineUser
from tenure.postgres.ranges import list_ranges, read_by_range
from tenure.postgres.read import in_one_snapshot
from tenure.postgres.statement import Plan, Row, statement

#: Separators between the fields of a log row, and between rows, in the text form of a log.
FIELD, LINE = "\x1f", "\x1e"


class Audited(NamedTuple):
    """The columns of a job's row that its log must agree with."""

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
    #: Faults of the row itself, as audit_jobs.sql names them.
    doubts: str


class AuditedLog(NamedTuple):
    """A job's log as one text: seq, trigger, from, to, claims, counter, hop, limit and contract of each row."""

    job_id: int
    text: str
    #: The first row whose time is not after the row before it.
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
    """An effect that no lease covered when it was recorded; `known`: its claim existed, at another time."""

    job_id: int
    node: str
    claims: int
    known: bool


class FlowCounts(NamedTuple):
    """The counts of a flow."""

    nodes: int
    open: int
    cleanups: int
    failed: int
    tolerated: int


class AuditedFlow(NamedTuple):
    """A flow: the counts in its row, and those by its nodes."""

    id: int
    name: str
    state: str
    nodes: int
    open: int
    cleanups: int
    failed: int
    tolerated: int
    by_nodes: FlowCounts


class AuditedNode(NamedTuple):
    """A node of a flow that cannot be as it is; the doubts as audit_flow_nodes.sql names them."""

    id: int
    job_id: int | None
    flow_id: int
    name: str
    state: str
    doubts: str


class UntakenEnd(NamedTuple):
    """An ended job that its flow did not take into account for long, or that ran no node of the flow."""

    flow_id: int
    job_id: int
    is_of_node: bool


class ReplayedEffect(NamedTuple):
    """An effect of a recorded job."""

    node: str
    claims: int
    at: datetime
    result_json: str | None
    compensable: bool


@dataclass(slots=True)
class Page:
    """Jobs and everything written about them, from one snapshot. A page without jobs is the last one."""

    jobs: list[Audited]
    logs: list[AuditedLog] = field(default_factory=list)
    letters: list[AuditedLetter] = field(default_factory=list)
    stray_effects: list[StrayEffect] = field(default_factory=list)
    #: Idempotency keys whose job does not exist: job id, tenant, key.
    stray_keys: list[Row] = field(default_factory=list)
    #: The id ranges that are being dropped: low, high.
    leaving: list[Row] = field(default_factory=list)


class Audit(EngineUser):
    """The reads of an audit; `store.audit`."""

    async def contracts(self) -> dict[tuple[str, str], Contract]:
        """Return every registered contract by name and version, with this process's numbers."""
        await self._engine.run(self._engine.registry.load)
        return self._engine.registry.all()

    async def registered(self) -> list[Row]:
        """Return the stored registry: name, version, digest, declaration."""
        return await self._engine.ask("audit_contracts")

    async def moment(self, ago: timedelta) -> datetime:
        """Return the time this long ago, by the database's clock."""
        ((moment,),) = await self._engine.ask("audit_now", seconds=ago.total_seconds())
        return moment  # type: ignore[no-any-return]

    async def spans(self) -> list[tuple[int, int]]:
        """Return the id ranges and the gaps around them in order; together the (low, high) pairs cover every id."""
        spans: list[tuple[int, int]] = []
        end = 0
        for low, high, *_ in await self.ranges():
            spans += [(end, low)] * (end < low) + [(low, high)]
            end = high
        return [*spans, (end, validation.MAX_ID)]

    async def page(self, after: int, before: int, limit: int, rows: int, since: datetime | None = None) -> Page:
        """Read the jobs between two ids of one span: at most `limit`, with about `rows` log rows."""
        wanted = {"after": after, "before": before, "limit": limit, "rows": rows, "since": since}
        page = await self._engine.run(lambda: in_one_snapshot(_read(wanted)))
        page.letters = await self._engine.run(lambda: _linked(page.letters))
        return page

    async def ranges(self) -> list[Row]:
        """Return the id ranges: low, high, leaving, has_events, has_jobs, last_id."""
        return await self._engine.ask("audit_ranges")

    async def flows(
        self, after: int, limit: int, nodes: int, since: datetime | None = None
    ) -> tuple[list[AuditedFlow], list[AuditedNode]]:
        """Read the next flows: at most `limit`, with about this many nodes; and their nodes that have doubts."""
        wanted = {"after": after, "limit": limit, "nodes": nodes, "since": since}
        return await self._engine.run(lambda: in_one_snapshot(_read_flows(wanted)))

    async def untaken_ends(self, minutes: int, limit: int) -> list[UntakenEnd]:
        """Return ended jobs that their flows did not take into account for so long, or that are of no node."""
        rows = await self._engine.ask("audit_flow_ends", minutes=minutes, limit=limit)
        return [UntakenEnd._make(row) for row in rows]

    async def effects(self, job_id: int) -> list[ReplayedEffect]:
        """Return the effects of a job, oldest first."""
        return [ReplayedEffect._make(row) for row in await self._engine.ask("audit_replayed", id=job_id)]


def _read(wanted: dict[str, Any]) -> Plan[Page]:
    jobs = yield statement("audit_jobs", wanted)
    ids = [row[0] for row in jobs]
    # A full page ends at its last job; the last page also covers the rest of the span.
    before = wanted["before"] if not ids else ids[-1] + 1
    bounds = {"after": wanted["after"], "before": before, "ids": None if wanted["since"] is None else ids}
    logs = yield statement("audit_events", bounds)
    letters = yield statement("audit_dead_letters", bounds)
    effects = yield statement("audit_effects", bounds)
    keys = yield statement("audit_keys", bounds)
    leaving = yield statement("audit_dropping_ranges", {})
    return Page(
        [Audited._make(row) for row in jobs],
        [AuditedLog._make(row) for row in logs],
        [AuditedLetter._make((*row, True)) for row in letters],
        [StrayEffect._make(row) for row in effects],
        keys,
        leaving,
    )


def _read_flows(wanted: dict[str, Any]) -> Plan[tuple[list[AuditedFlow], list[AuditedNode]]]:
    rows = yield statement("audit_flows", wanted)
    flows = [AuditedFlow._make((*row[:8], FlowCounts._make(row[8:]))) for row in rows]
    nodes = (yield statement("audit_flow_nodes", {"ids": [flow.id for flow in flows]})) if flows else []
    return flows, [AuditedNode._make(row) for row in nodes]


def _linked(letters: list[AuditedLetter]) -> Plan[list[AuditedLetter]]:
    """Set whether each requeued letter's new job points back to it; a job of a dropped range counts as linked."""
    again = [letter.requeued_as for letter in letters if letter.requeued_as is not None]
    if not again:
        return letters
    origins: dict[int, int | None] = dict((yield from read_by_range("audit_links", again)))
    there = yield from list_ranges()
    ends = max((high for _, high in there), default=0)

    def linked(letter: AuditedLetter) -> bool:
        made = letter.requeued_as
        if made is None or origins.get(made) == letter.id:
            return True
        return made not in origins and made < ends and not any(low <= made < high for low, high in there)

    return [letter._replace(linked=linked(letter)) for letter in letters]
