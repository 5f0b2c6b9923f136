"""The examination: connect, run every part in a read-only transaction of its own, and collect the findings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

import psycopg

from tenure.errors import BadInput, TenureError
from tenure.jobs.finding import Finding, by_severity, finding
from tenure.postgres.connect import first_line, plain_dsn, probe_dsn, session_settings, translate_connect_errors
from tenure.postgres.doctor import schema, server, work
from tenure.postgres.doctor.limits import Limits
from tenure.postgres.engine import Engine, EngineUser
from tenure.postgres.registry import ContractNumbers, Registry
from tenure.postgres.statement import Atomic, Plan, run, statement

#: Each statement of a part runs and waits for locks for at most this many milliseconds.
_STATEMENT_MS, _LOCK_MS = 5_000, 500
#: A second request within this many seconds gets the same findings.
_SHARED_S = 2.0


@dataclass(slots=True)
class Exam:
    """What the parts of one examination share."""

    limits: Limits
    numbers: ContractNumbers | None = None
    #: The address without a pooler; None: not set.
    direct_url: str | None = None
    is_pooled: bool = False
    #: Whether the server is on this machine.
    is_local: bool = False
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    #: Set by the first parts.
    settings: dict[str, str] = field(default_factory=dict)
    has_schema: bool = False
    registry: Registry = field(default_factory=Registry)


Part = Callable[[Exam], Plan[list[Finding]]]
#: The parts in order; those of the second row need the schema, which is as this release has it.
_FIRST: Final[tuple[Part, ...]] = (
    server.check_server, server.check_sessions, server.check_prepared, server.check_slots, schema.check_migrations,
)  # fmt: skip
_THEN: Final[tuple[Part, ...]] = (
    server.check_clock, schema.check_rights, schema.check_objects, schema.check_contracts, schema.check_ranges,
    schema.check_hot_tables, server.check_blocked, work.check_workers, work.check_lost_workers, work.check_unserved,
    work.check_queues, work.check_upkeep, work.check_alarms, work.check_other_work, work.check_outbox,
)  # fmt: skip


async def examine(
    dsn: str,
    *,
    numbers: ContractNumbers | None = None,
    direct_url: str | None = None,
    limits: Limits | None = None,
    now: Callable[[], datetime] | None = None,
) -> list[Finding]:
    """Return what is wrong with a database and its workers, the worst first; writes nothing.

    `numbers` are this process's settings per contract, `direct_url` the address without a pooler, and `now` replaces
    this machine's clock.
    """
    exam = Exam(limits or Limits(), numbers, direct_url)
    if now is not None:
        exam.now = now
    try:
        with translate_connect_errors():
            connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
                plain_dsn(dsn, "tenure doctor"), autocommit=True, prepare_threshold=None
            )
    except TenureError as error:
        return [server.explain_unreachable(error)]
    async with connection:
        exam.is_local = (connection.info.host or "").startswith("/")
        findings = await _run_part(connection, exam, server.check_settings, settings=False)
        findings += await _check_pooler(connection, dsn, exam)
        for part in _FIRST:
            findings += await _run_part(connection, exam, part)
        if exam.has_schema:
            for part in _THEN:
                findings += await _run_part(connection, exam, part)
    return by_severity(findings)


async def _run_part(
    connection: psycopg.AsyncConnection[Any], exam: Exam, part: Part, *, settings: bool = True
) -> list[Finding]:
    """Run a part in a read-only transaction; one that fails becomes a finding. `settings`: with those of the engine."""

    def plan() -> Plan[list[Finding]]:
        found: list[Finding] = yield Atomic(_with_settings(part(exam)) if settings else part(exam), snapshot=True)
        return found

    try:
        return await run(connection, plan())
    except (psycopg.Error, TenureError) as error:
        name = part.__name__.removeprefix("check_").replace("_", " ")
        return [
            finding(
                "check-failed", f"the part about {name} could not be examined: {first_line(error)}",
                "tenure doctor again; if it stays, tenure migrate --grants, or another role", part=name,
            )
        ]  # fmt: skip


def _with_settings(plan: Plan[list[Finding]]) -> Plan[list[Finding]]:
    ours = {**session_settings(_STATEMENT_MS), "lock_timeout": str(_LOCK_MS)}
    yield statement("apply_settings", {"names": list(ours), "settings": list(ours.values())})
    return (yield from plan)


async def _check_pooler(connection: psycopg.AsyncConnection[Any], dsn: str, exam: Exam) -> list[Finding]:
    """Find out whether a pooler is in between, and whether the direct address leads to the same database."""
    try:
        _, exam.is_pooled = await probe_dsn(dsn)
    except TenureError as error:
        return [server.explain_unreachable(error)]
    if exam.direct_url is None:
        if not exam.is_pooled:
            return []
        return [
            finding(
                "direct-address-missing",
                "a pooler stands before the database: workers find jobs by polling alone, and migrating is not safe",
                "set TENURE_DIRECT_URL to the address of PostgreSQL itself: for workers, dispatchers, tenure migrate",
            )
        ]  # fmt: skip
    why = None
    try:
        async with await psycopg.AsyncConnection.connect(
            plain_dsn(exam.direct_url, "tenure doctor"), autocommit=True, prepare_threshold=None
        ) as direct:
            ours, theirs = [await _installation(each) for each in (connection, direct)]
            if ours != theirs:
                why = "TENURE_DIRECT_URL leads to another database"
    except psycopg.OperationalError as error:
        why = f"TENURE_DIRECT_URL cannot be reached: {first_line(error)}"
    except psycopg.Error:
        return []  # without a schema, a part of its own says so
    if why is None:
        return []
    return [finding("direct-address-wrong", why, "correct TENURE_DIRECT_URL: the same database, without a pooler")]


async def _installation(connection: psycopg.AsyncConnection[Any]) -> str:
    def plan() -> Plan[str]:
        ((found,),) = yield statement("doctor_installation", {})
        return str(found)

    return await run(connection, plan())


class Doctor(EngineUser):
    """The examination of this store's database; `store.doctor`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._alone = asyncio.Lock()
        self._last: tuple[float, list[Finding]] | None = None

    async def examine(self, *, direct_url: str | None = None) -> list[Finding]:
        """Return what is wrong, the worst first. One examination runs at a time; those who wait share its findings."""
        dsn = self._engine.dsn
        if dsn is None:
            raise BadInput("a store on a caller's pool has no address. Next: use a store that connects by address")
        async with self._alone:
            if self._last is None or monotonic() - self._last[0] > _SHARED_S:
                found = await examine(dsn, numbers=self._engine.registry.numbers, direct_url=direct_url)
                self._last = monotonic(), found
            return self._last[1]


def summarize(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many findings there are of each severity."""
    counts = {"critical": 0, "warning": 0, "note": 0}
    for one in findings:
        counts[one.severity] += 1
    return counts
