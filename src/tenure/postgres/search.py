"""Lists of jobs, page by page: first the live ones, then the finished ones, each newest first.

A page reads a bounded number of rows, however many jobs there are and however few match. If the bound ends a page
before it is full, the page says so and where to continue. Payloads and results are not part of a page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.formats import ids_to_text
from tenure.jobs.search import MAX_AGE_S, PayloadFilter
from tenure.postgres.engine import EngineUser
from tenure.postgres.ranges import group_by_range, list_ranges, read_by_range
from tenure.postgres.statement import Plan, Row, array, statement

#: One page reads at most this many rows of live jobs, and as many of finished jobs.
SCAN = 50_000
#: The same where documents are read: payloads, errors, or the dead letter of each row.
SCAN_DOCUMENTS = 10_000
MAX_PAGE = 1_000
#: A page visits at most this many id ranges of finished jobs.
_RANGES = 200
#: A page found by dead letters reads at most this many of their jobs, if more than the letters decide over them.
_CANDIDATES = 1_000
_HELD = frozenset({"leased", "active", "settling"})
#: A count reads at most this many full pages, and this many that the scan bound ended.
_FULL_PAGES, _STOPPED_PAGES = 10, 10
#: What jobs are counted by, and its field.
AXES: Final = {
    "tenant": "tenant_id", "type": "type", "queue": "queue", "state": "state", "contract": "contract",
    "worker": "worker",
}  # fmt: skip


class JobSummary(NamedTuple):
    """A job as lists show it."""

    id: int
    contract: str
    state: str
    role: str
    queue: str
    type: str
    tenant_id: str
    priority: int
    claims: int
    counter: int
    max_attempts: int
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    last_error_json: str | None
    #: Seconds from the last claim to the end, or until now; None: it was not claimed, or waits.
    ran_s: float | None = None
    #: Who holds it, or held it last; of finished jobs only if the search was asked for it.
    worker: str | None = None

    @property
    def last_error(self) -> Mapping[str, Any] | None:
        """The last failure in short: type, code, and the start of its message."""
        return None if self.last_error_json is None else json.loads(self.last_error_json)

    def fields(self) -> dict[str, Any]:
        """Return the job as JSON shows it in a list."""
        fields = ids_to_text(self._asdict(), "id")
        del fields["last_error_json"]
        return {**fields, "last_error": self.last_error}


@dataclass(frozen=True, slots=True)
class Page:
    """Matching jobs: first the live ones, then the finished ones, each newest first."""

    jobs: list[JobSummary]
    #: The `after` of the next page; None at the end.
    next: str | None
    #: The scan bound ended the page before it was full: there may be more jobs.
    stopped: bool


@dataclass(frozen=True, slots=True)
class _Where:
    """Where jobs that match can be."""

    live: bool
    finished: bool
    #: The contracts whose held jobs alone can match; None: others can too.
    held: Sequence[str] | None = None
    #: Whether each of them has a dead letter.
    letters: bool = False


class JobCount(NamedTuple):
    """Jobs of one tenant, type, queue, state, contract or worker."""

    #: None: of no worker.
    value: str | None
    jobs: int
    #: When the first and the last of them were made.
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs match, those with the most first."""

    by: str
    groups: list[JobCount]
    #: Where the count goes on that stopped at its limit; None: all were counted.
    next: str | None

    @property
    def total(self) -> int:
        """How many jobs were counted."""
        return sum(one.jobs for one in self.groups)

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON shows them."""
        groups = [one._asdict() for one in self.groups]
        return {"by": self.by, "total": self.total, "complete": self.next is None, "next": self.next, "groups": groups}


class JobSearch(EngineUser):
    """Lists and counts of jobs; part of the store."""

    async def tally(self) -> list[tuple[str, str, str, int]]:
        """Count jobs: contract, state, role, number. It reads every job: use it on small databases only."""
        rows = await self._engine.ask("count_live")
        for low, high in await self._engine.run(list_ranges):
            rows += await self._engine.ask("count_finished", low=low, high=high)
        counts: Counter[tuple[str, str, str]] = Counter()
        for contract, state, role, count in rows:
            counts[contract, state, role] += count
        return [(*which, count) for which, count in sorted(counts.items())]

    async def find(
        self,
        *,
        state: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        contract: str | None = None,
        older_s: float | None = None,
        younger_s: float | None = None,
        reason: str | None = None,
        group: str | None = None,
        error: str | None = None,
        worker: str | None = None,
        payload: Sequence[PayloadFilter] = (),
        longer_s: float | None = None,
        shorter_s: float | None = None,
        limit: int = 50,
        after: str | None = None,
        with_workers: bool = False,
    ) -> Page:
        """Find jobs: live ones, then finished ones, newest first; `after` is the `next` of the page before.

        `reason` and `group` are those of a job's dead letter; `error` is a part of the type, code or message of its
        last error; `payload` are paths in its payload, each with the text of the value there. `worker` holds the job,
        or has claimed it before it ended; `longer_s` and `shorter_s` compare the seconds since its last claim.
        """
        validation.check_integer("limit", limit, 1, MAX_PAGE)
        begin = Cursor.read(after)
        values = {
            "state": state, "contract": contract,
            "longer_ms": _milliseconds("longer_s", longer_s), "shorter_ms": _milliseconds("shorter_s", shorter_s),
            **filter_values(
                type=type, queue=queue, tenant_id=tenant_id, older_s=older_s, younger_s=younger_s, reason=reason,
                group=group, error=error, payload=payload, worker=worker,
            ),
        }  # fmt: skip
        where = await self._where(contract, state)
        if reason is not None or group is not None or where.letters:
            found, last = await self._engine.run(lambda: _search_letters(values, begin, limit + 1))
        else:
            # One more than the page shows tells whether there is another page.
            scan = limit + 1
            if any(value is not None for value in values.values()):
                scan = max(SCAN_DOCUMENTS, limit + 1) if reads_documents(values) else SCAN
            found, last = await self._engine.run(lambda: _search(values, begin, limit + 1, scan, where))
        if with_workers:
            found = await self._engine.run(lambda: _with_workers(found))
        if len(found) > limit:
            return Page(found[:limit], str(Cursor.of(found[limit - 1])), stopped=False)
        return Page(found, None if last is None else str(last), stopped=last is not None)

    async def count(self, *, by: str = "state", after: str | None = None, **filters: Any) -> JobCounts:
        """Count the jobs that `find` finds with these filters, by tenant, type, queue, state, contract or worker.

        It stops after 10,000 jobs, or after some pages that were not full; `after` is the `next` of such a count.
        """
        if by not in AXES:
            raise BadInput(f"jobs are counted by {', '.join(AXES)}, not by {by!r}")
        found: dict[str | None, JobCount] = {}
        counted: set[int] = set()  # a job that ended meanwhile is found again
        full = stopped = 0
        while full < _FULL_PAGES and stopped < _STOPPED_PAGES:
            page = await self.find(**filters, limit=MAX_PAGE, after=after, with_workers=by == "worker")
            for job in page.jobs:
                if job.id in counted:
                    continue
                counted.add(job.id)
                value = getattr(job, AXES[by])
                known = found.get(value) or JobCount(value, 0, job.created_at, job.created_at)
                first, last = min(known.first, job.created_at), max(known.last, job.created_at)
                found[value] = JobCount(value, known.jobs + 1, first, last)
            if (after := page.next) is None:
                break
            full, stopped = full + (not page.stopped), stopped + page.stopped
        return JobCounts(by, sorted(found.values(), key=lambda one: (-one.jobs, one.value or "")), after)

    async def _where(self, contract: str | None, state: str | None) -> _Where:
        """Return where matching jobs can be, by what the contracts say of the state."""
        await self._engine.run(self._engine.registry.load)
        if contract is not None:
            contracts = [(await self._engine.bound_contract(contract)).contract]  # refuses an unknown contract
        else:
            contracts = self._engine.registry.contracts()
        if state is None:
            return _Where(live=True, finished=True)
        having = [contract for contract in contracts if state in contract.states]
        roles = {role for contract in having for role in contract.states[state]}
        if not roles:
            known = sorted({state for contract in contracts for state in contract.states})
            whose = f"contract {contract} has" if contract else "the registered contracts have"
            raise BadInput(f"no job can be in state {state!r}; {whose} the states {', '.join(known)}")
        return _Where(
            live=roles != {"done"},
            finished="done" in roles,
            held=[contract.name for contract in having] if roles <= _HELD else None,
            letters=roles == {"done"} and all(contract.keeps_letters_of(state) for contract in having),
        )


def filter_values(
    *,
    type: str | None,
    queue: str | None,
    tenant_id: str | None,
    older_s: float | None,
    younger_s: float | None,
    reason: str | None,
    group: str | None,
    error: str | None,
    payload: Sequence[PayloadFilter],
    worker: str | None,
) -> dict[str, Any]:
    """Return filters as parameters of the statements that search; refuses values that no row can have."""
    names = (
        ("type", type), ("queue", queue), ("tenant_id", tenant_id), ("reason_code", reason), ("group", group),
        ("error", error), ("worker", worker),
    )  # fmt: skip
    for field, given in names:
        if given is not None:
            validation.check_name(field, given)
    return {
        "type": type, "queue": queue, "tenant": tenant_id, "reason": reason, "group": group, "error": error,
        "worker": worker,
        "payload_paths": [array(path) for path, _ in payload] or None,
        "payload_values": [value for _, value in payload] or None,
        "older_ms": _milliseconds("older_s", older_s), "younger_ms": _milliseconds("younger_s", younger_s),
    }  # fmt: skip


def reads_documents(values: Mapping[str, Any]) -> bool:
    """Whether a search with these parameters reads more of a row than its columns of fixed width and names."""
    return any(values[name] is not None for name in ("error", "payload_paths", "worker"))


class Cursor(NamedTuple):
    """Where a list continues: below this id, among the live or the finished jobs."""

    finished: bool
    id: int

    def __str__(self) -> str:
        """Return the text that a caller passes back."""
        return f"{'finished' if self.finished else 'live'}-{self.id}"

    @classmethod
    def read(cls, text: str | None) -> Cursor:
        """Parse the cursor of an earlier page; refuses any other text."""
        if text is None:
            return cls(False, validation.MAX_ID)
        part, _, number = text.partition("-")
        if part not in ("live", "finished") or not number.isascii() or not number.isdigit():
            raise BadInput(f"{text!r} is not a cursor. Next: pass `next` of the page before, like live-41")
        return cls(part == "finished", validation.check_integer("the cursor's id", int(number), 1, validation.MAX_ID))

    @classmethod
    def of(cls, job: JobSummary) -> Cursor:
        """Return the cursor after a job."""
        return cls(job.role == "done", job.id)


def _search(
    values: Mapping[str, Any], begin: Cursor, limit: int, scan: int, where: _Where
) -> Plan[tuple[list[JobSummary], Cursor | None]]:
    """Find up to `limit` jobs; returns them, and the cursor where the scan bound ended the search, if it did."""
    found: list[JobSummary] = []

    def look(name: str, scan: int, **bounds: Any) -> Plan[tuple[int, int]]:
        """Read at most `scan` rows; returns how many were read, and the lowest id."""
        rows: list[Row] = yield statement(name, {**values, **bounds, "limit": limit - len(found), "scan": scan})
        # A job that ended between two statements is found by both.
        known = {job.id for job in found}
        found.extend(job for job in _summaries(rows) if job.id not in known)
        looked, lowest = rows[0][:2]
        return looked, lowest or 0

    if where.live and not begin.finished:
        if where.held is None:
            looked, lowest = yield from look("find_live", scan, after=begin.id)
        else:
            looked, lowest = yield from look("find_held", scan, after=begin.id, contracts=where.held)
        if looked == scan:
            return found, Cursor(False, lowest)
    if not where.finished or len(found) >= limit:
        return found, None
    below = begin.id if begin.finished else validation.MAX_ID
    ranges = [(low, high) for low, high in (yield from list_ranges()) if low < below]
    # The newest range alone, which has what is usually looked for; then more at a time, for they may have few jobs.
    left, at_once = ranges[-_RANGES:], 1
    while left:
        part, left = left[-at_once:], left[:-at_once]
        at_once = min(2 * at_once, validation.MAX_UNITS)
        looked, lowest = yield from look("find_finished", scan, low=part[0][0], after=min(part[-1][1], below))
        if len(found) >= limit:
            return found, None
        if looked == scan:
            return found, Cursor(True, lowest)
        scan -= looked
    return found, Cursor(True, ranges[-_RANGES][0]) if len(ranges) > _RANGES else None


def _search_letters(
    values: Mapping[str, Any], begin: Cursor, limit: int
) -> Plan[tuple[list[JobSummary], Cursor | None]]:
    """Find jobs that have dead letters, by these; returns as `_search` does. Such jobs have ended."""
    further = ("error", "payload_paths", "older_ms", "younger_ms", "worker", "longer_ms", "shorter_ms")
    undecided = any(values[name] is not None for name in further)
    most, scan = (max(limit, _CANDIDATES) if undecided else limit), max(SCAN_DOCUMENTS, limit)
    after = begin.id if begin.finished else validation.MAX_ID
    rows = yield statement("find_jobs_of_letters", {**values, "after": after, "limit": most, "scan": scan})
    looked, lowest = rows[0][:2]
    ids = [row[2] for row in rows if row[2] is not None]
    found: list[JobSummary] = []
    for group in reversed(list(group_by_range(ids))):
        bounds = {"low": min(group), "after": max(group) + 1, "limit": limit - len(found)}
        found += _summaries((yield statement("find_finished_by_id", {**values, **bounds, "ids": group})))
        if len(found) >= limit:
            return found, None
    if len(ids) == most:
        return found, Cursor(True, ids[-1])
    return found, Cursor(True, lowest) if looked == scan else None


def _summaries(rows: Sequence[Row]) -> list[JobSummary]:
    """The jobs that a statement has found; each row begins with two figures about all that it read."""
    return [JobSummary(*row[2:]) for row in rows if row[2] is not None]


def _with_workers(jobs: Sequence[JobSummary]) -> Plan[list[JobSummary]]:
    """Return jobs with who holds or held them: the log says it of those that nobody holds."""
    workers = {job.id: job.lease_owner for job in jobs if job.lease_owner is not None}
    unheld = [job.id for job in jobs if job.id not in workers and job.claims > 0]
    workers |= dict((yield from read_by_range("read_last_workers", unheld))) if unheld else {}
    return [job._replace(worker=workers.get(job.id)) for job in jobs]


def _milliseconds(field: str, seconds: float | None) -> int | None:
    """Return a span of time in milliseconds; refuses an impossible one."""
    age = validation.to_milliseconds(field, seconds)
    return None if age is None else validation.check_integer(f"{field} in milliseconds", age, 0, MAX_AGE_S * 1_000)
