"""An audit of a live database: every job's log folded through its contract, and compared with the row.

It reads page by page, each page of one moment, takes no lock that anybody waits for, and keeps nothing of a page but
what was wrong with it. Most logs are alike, so a log that was folded once is not folded again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from tenure.contract import HELD, Contract
from tenure.fold import Fault, fold
from tenure.postgres import audit as read
from tenure.postgres.store import Store
from tenure.step import Row, Standing

PAGE = 5_000


class Violation(NamedTuple):
    """What disagrees: which promise, of which job, and what was found."""

    promise: str
    job_id: int | None
    what: str


@dataclass
class Audited:
    """What was read, how fast, and what was wrong."""

    jobs: int = 0
    live: int = 0
    events: int = 0
    letters: int = 0
    ranges: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    #: Beyond this many, violations are only counted.
    more: int = 0

    def found(self, violation: Violation) -> None:
        """Keep it, or, where there are too many to read, count it."""
        if len(self.violations) < 1_000:
            self.violations.append(violation)
        else:
            self.more += 1


async def audit(store: Store, since: datetime | None = None, tell: Callable[[Audited], None] | None = None) -> Audited:
    """Audit every job (or those that changed since), the ranges, the dead letters, the keys and the claims."""
    begun, report = time.perf_counter(), Audited()
    auditor = _Auditor(await store.audit.contracts(), report)
    auditor.ranges(await store.audit.ranges())
    after = 0
    while True:
        page = await store.audit.page(after, PAGE, since)
        if not page.jobs:
            break
        auditor.page(page)
        after = page.jobs[-1].id
        report.seconds = time.perf_counter() - begun
        if tell:
            tell(report)
    for tenant, key, job_id in await store.audit.stray_keys(since):
        report.found(
            Violation("keys", job_id, f"the key {key!r} of {tenant} stands for job {job_id}, which is not there")
        )
    report.seconds = time.perf_counter() - begun
    return report


class _Auditor:
    def __init__(self, contracts: dict[tuple[str, str], Contract], report: Audited) -> None:
        self.contracts = contracts
        self.report = report
        self.leaving: list[tuple[int, int]] = []
        self.folded = lru_cache(100_000)(self._fold)

    def ranges(self, rows: list[tuple[Any, ...]]) -> None:
        """Ranges follow one another, have their tables, and end where the ids end."""
        self.report.ranges = len(rows)
        self.leaving = [(low, high) for low, high, leaving, *_ in rows if leaving]
        for low, high, leaving, has_events, has_jobs, _ in rows:
            if not leaving and not (has_events and has_jobs):
                self.report.found(Violation("ranges", None, f"ids {low} to {high - 1} have no tables of their own"))
        if rows and rows[-1][5] != rows[-1][1] - 1:
            what = f"ids end at {rows[-1][5]}, and the ranges end at {rows[-1][1] - 1}"
            self.report.found(Violation("ranges", None, what))

    def page(self, page: read.Page) -> None:
        """Check the jobs of a page."""
        self.report.jobs += len(page.jobs)
        self.report.live += sum(job.live for job in page.jobs)
        self.report.events += len(page.events)
        self.report.letters += len(page.letters)
        logs = {job_id: list(rows) for job_id, rows in itertools.groupby(page.events, attrgetter("job_id"))}
        letters = {letter.job_id: letter for letter in page.letters}
        before = 0
        for job in page.jobs:
            if job.id == before:
                self.report.found(Violation("the end is one", job.id, "the job is live and finished at once"))
            before = job.id
            for promise, what in self._job(job, logs.pop(job.id, []), letters.pop(job.id, None)):
                self.report.found(Violation(promise, job.id, what))
        for job_id, rows in logs.items():
            if any(low <= job_id < high for low, high in self.leaving):
                continue  # its range is on its way out: the rows of jobs leave first
            self.report.found(Violation("the log", job_id, f"{len(rows)} log rows of a job that is not there"))
        for job_id, node, claims in page.stray_effects:
            what = f"the effect {node!r} was recorded under claim {claims}, which the log does not know"
            self.report.found(Violation("no stale commit", job_id, what))

    def _job(
        self, job: read.Audited, log: list[read.AuditedEvent], letter: read.AuditedLetter | None
    ) -> Iterable[tuple[str, str]]:
        contract = self.contracts.get((job.contract, job.version))
        if contract is None:
            yield "the contract", f"{job.contract} {job.version} is not registered, or not readable here"
            return
        yield from _order(job, log)
        rows = tuple(Row(e.trigger, e.from_state, e.to_state, e.claims, e.counter, e.hop) for e in log)
        stands = self.folded(job.contract, job.version, job.max_attempts, rows)
        if isinstance(stands, Fault):
            yield "the contract", f"log row {stands.seq}: {stands.what}"
        else:
            yield from _agreement(contract, job, stands)
        yield from _letter(contract, job, letter)

    def _fold(self, name: str, version: str, limit: int, rows: tuple[Row, ...]) -> Standing | Fault:
        return fold(self.contracts[name, version], limit, rows)


def _order(job: read.Audited, log: list[read.AuditedEvent]) -> Iterable[tuple[str, str]]:
    for place, event in enumerate(log, 1):
        if event.seq != place:
            yield "the log", f"log row {place} is missing: {event.seq} follows {place - 1}"
            return
    if job.seq != len(log):
        yield "the log", f"the row says {job.seq} log rows, and there are {len(log)}"
    for one, other in itertools.pairwise(log):
        if one.ts >= other.ts:
            yield "the log", f"log row {other.seq} is not later than the one before"
    if any(event.contract != job.contract for event in log):
        yield "the log", f"it has rows of another contract than {job.contract}"


def _agreement(contract: Contract, job: read.Audited, stands: Standing) -> Iterable[tuple[str, str]]:
    for name in ("state", "role", "claims", "counter", "raises"):
        row, log = getattr(job, name), getattr(stands, name)
        if row != log:
            yield "row and log", f"{name} is {row!r} in the row, and {log!r} by the log"
    if stands.claims > contract.budget.executions(job.max_attempts, stands.raises):
        yield "budget", f"claimed {stands.claims} times with a limit of {job.max_attempts}"
    if job.done == job.live:
        yield "the end is one", f"the job is {job.state} among the {'live' if job.live else 'finished'}"
    if job.live and job.role in HELD and not job.leased:
        yield "nothing stranded", f"{job.state} without a lease: nobody can end it, and it never expires"
    if job.live and job.role not in HELD and job.leased:
        yield "one lease", f"{job.state} with a lease on it"
    if job.live and job.role == "waiting" and not job.has_due:
        yield "nothing stranded", f"{job.state} waits for no time"
    if not job.claim_known:
        yield "claims", "the claim that holds it is not known"


def _letter(contract: Contract, job: read.Audited, letter: read.AuditedLetter | None) -> Iterable[tuple[str, str]]:
    kept = {path.end.state for path in contract.paths if path.letter and path.end.role == "done"}
    if job.done and job.state in kept and letter is None:
        yield "letters", f"the job is {job.state} without its dead letter"
    if letter is None:
        return
    if not job.done or job.state not in kept:
        yield "letters", f"dead letter {letter.id} is of a job that is {job.state}"
    elif (letter.claims, letter.counter) != (job.claims, job.counter):
        yield "letters", f"dead letter {letter.id} tells of other counts than the job"
    if (letter.status == "requeued") != (letter.requeued_as is not None):
        yield "letters", f"dead letter {letter.id} is {letter.status}, run again as {letter.requeued_as}"
    if not letter.linked:
        yield "letters", f"dead letter {letter.id} points to job {letter.requeued_as}, which does not point back"
    approved = letter.approved_by is not None or contract.dead_letters.reviewers < 2
    if letter.status == "discarded" and not (approved and letter.asked_key is not None):
        yield "letters", f"dead letter {letter.id} was discarded without the people it takes"
