"""Settle jobs at a commit point: write the record, then end the job, both in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import psycopg

from tenure.errors import Refused
from tenure.jobs.job import UPKEEP
from tenure.jobs.outcome import Moved, Outcome
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.connect import SESSION_ENDED, first_line
from tenure.postgres.move import Batch, move
from tenure.postgres.ranges import group_by_range, read_by_range
from tenure.postgres.statement import Atomic, Plan, statement

_log = logging.getLogger("tenure")


def settle_plan(
    bound: BoundContract, limit: int, ids: Sequence[int] | None = None, *, to: str | None = None
) -> Plan[list[Outcome]]:
    """Settle jobs at a commit point, `limit` at a time: all, or these ids; with `to`, only to this state."""
    sources = [
        source
        for path in bound.contract.paths
        if path.trigger == "settle" and to in (None, path.hops[0].state)
        for source in path.sources
    ]
    tried: list[int] = []
    outcomes: list[Outcome] = []
    values = {**bound.claim, "limit": limit, "ids": ids, "sources": sources}
    while rows := (yield statement("find_settling", {**values, "tried": tried or None})):
        page = [row[0] for row in rows]
        for group in group_by_range(page):
            outcomes += yield from _settle_page(bound, group)
        tried += page
        if ids is not None or len(page) < limit:
            break
    return outcomes


def _settle_page(bound: BoundContract, page: Sequence[int]) -> Plan[list[Outcome]]:
    """Settle jobs together; when a record cannot be written, one by one, so that the other jobs are settled."""
    try:
        outcomes: list[Outcome] = yield Atomic(_record_and_move(bound, page))
    except psycopg.Error as error:
        if isinstance(error, (psycopg.OperationalError, *SESSION_ENDED)):
            raise  # the database is unavailable: it did not refuse a record
        if len(page) == 1:
            why = f"job {page[0]}: its record could not be written ({first_line(error)})"
            return [Refused(page[0], why, code="NOT_SETTLED")]
        outcomes = []
        for job_id in page:
            outcomes += yield from _settle_page(bound, [job_id])
    return outcomes


def _record_and_move(bound: BoundContract, ids: Sequence[int]) -> Plan[list[Outcome]]:
    rows = yield statement("find_settling", {**bound.claim, "limit": len(ids), "ids": ids, "sources": None})
    if not rows:
        return []
    path = bound.contract.path("settle")
    locked = [row[0] for row in rows]
    yield statement("record_dead_letters", {"ids": locked, "letter": path.letter if path else None})
    return (yield from move(Batch(bound, "settle", locked, extra={"actor": UPKEEP})))


def settle_after(bound: BoundContract, outcomes: list[Outcome]) -> Plan[list[Outcome]]:
    """Settle the jobs that just reached a commit point. If that fails, log it; upkeep settles them later."""
    pending = [outcome.job_id for outcome in outcomes if isinstance(outcome, Moved) and outcome.role == "settling"]
    if not pending:
        return outcomes
    try:
        settled = yield from settle_plan(bound, len(pending), pending)
    except psycopg.Error as error:
        _log.warning("jobs %s stay at their commit point until upkeep settles them: %s", pending, error)
        return outcomes
    ends = {outcome.job_id: (outcome.state, outcome.flow_id) for outcome in settled if isinstance(outcome, Moved)}
    if len(ends) < len(pending):  # upkeep was faster, or this is a repeat: read their states
        read = yield from read_by_range("read_finished", [job_id for job_id in pending if job_id not in ends])
        ends |= {row[0]: (row[3], None) for row in read}
    return [_settled(outcome, ends) for outcome in outcomes]


def _settled(outcome: Outcome, ends: Mapping[int, tuple[str, int | None]]) -> Outcome:
    if not isinstance(outcome, Moved) or outcome.job_id not in ends:
        return outcome
    state, flow_id = ends[outcome.job_id]
    return outcome._replace(state=state, role="done", flow_id=flow_id)
