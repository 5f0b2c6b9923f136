"""An audit of a live database: every job's log folded through its contract, and compared with the row.

It reads page by page, each page of one moment, takes no lock that anybody waits for, and keeps nothing of a page but
what was wrong with it. Most logs are alike, so a log that was folded once is not folded again.

Each thing that is wrong is named once, by the promise that it breaks:

    the contract        a hop that its contract does not allow; a contract that is not registered, or was changed
    the log             rows are missing, out of order, or of a job that is not there
    row and log         folding the log gives another row
    budget              more claims than the limit allows
    the end is one      a job is live and finished at once
    nothing stranded    a job that nobody could ever move again
    one lease           a lease on a job that nobody holds, or of somebody who did not claim it
    no stale commit     an effect that was not recorded under a lease
    letters, keys, claims, ranges
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from tenure.contract import Contract
from tenure.contracts import BUILT_IN
from tenure.fold import Fault, fold
from tenure.intake import person_key
from tenure.postgres import audit as read
from tenure.postgres.store import Store
from tenure.step import Row, Standing
from tenure.versions import from_description

PAGE = 5_000
#: A page ends early where its logs have this many rows.
LOG_ROWS = 50_000
_SHORT = 1_000
_KEPT = 1_000

#: What audit_jobs.sql may doubt about a row: the promise, and what to say.
_DOUBTS = {
    "unleased": ("nothing stranded", "{state} without a whole lease: nobody can end it, or it never expires"),
    "undated": ("nothing stranded", "{state} waits for no time"),
    "leased": ("one lease", "{state} with a lease on it"),
    "holder": ("one lease", "its lease is not that of whoever claimed it last"),
    "claim": ("claims", "the claim that holds it is not known"),
    "key": ("keys", "its idempotency key is not kept: a repeat would make a second job"),
    "origin": ("letters", "it runs a dead letter again that does not point to it"),
    "range": ("ranges", "it is in no range, so that no hop of it can be logged"),
}
#: These are about where the job stands, and say nothing new where the row disagrees with the log about that.
_ABOUT_STANDING = frozenset({"unleased", "undated", "leased", "holder", "claim"})


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

    def found(self, promise: str, job_id: int | None, what: str) -> None:
        """Keep it, or, where there are too many to read, count it."""
        if len(self.violations) < _KEPT:
            self.violations.append(Violation(promise, job_id, what))
        else:
            self.more += 1


async def audit(
    store: Store, since: datetime | timedelta | None = None, tell: Callable[[Audited], None] | None = None
) -> Audited:
    """Audit every job (or those that changed since a time, or so long ago), and the contracts and ranges."""
    begun, report = time.perf_counter(), Audited()
    moment = await store.audit.moment(since) if isinstance(since, timedelta) else since
    auditor = _Auditor(report)
    auditor.contracts_as(await store.audit.registered())
    auditor.ranges(await store.audit.ranges())
    after = 0
    while True:
        page = await store.audit.page(after, PAGE, LOG_ROWS, moment)
        auditor.page(page)
        report.seconds = time.perf_counter() - begun
        if tell:
            tell(report)
        if not page.jobs:
            return report
        after = page.jobs[-1].id


class _Judged(NamedTuple):
    """What a log says by itself: how many rows it has, where it leaves the job, and what is wrong with it."""

    rows: int
    limit: int
    stands: Standing | None
    wrong: tuple[tuple[str, str], ...] = ()
    gap: bool = False


class _Auditor:
    def __init__(self, report: Audited) -> None:
        self.report = report
        self.contracts: dict[tuple[str, str], Contract] = {}
        self.judged = lru_cache(4_096)(self._judged)

    def contracts_as(self, registered: list[tuple[Any, ...]]) -> None:
        """Know the registered contracts; each must be the one that was registered, and ours where it has our name."""
        for name, version, digest, declaration in registered:
            try:
                contract = from_description(declaration)
            except (TypeError, KeyError, ValueError, AttributeError):
                continue  # a newer release's words: said for each of its jobs
            self.contracts[name, version] = contract
            ours = BUILT_IN.get(name)
            if contract.digest() != digest:
                self.report.found("the contract", None, f"{name} {version} was changed after it was registered")
            elif ours is not None and ours.version == version and ours.digest() != digest:
                self.report.found(
                    "the contract", None, f"{name} {version} is registered with another machine than ours"
                )

    def ranges(self, rows: list[tuple[Any, ...]]) -> None:
        """Ranges do not overlap, have their tables, and the ids end where one of them ends."""
        self.report.ranges = len(rows)
        for low, high, leaving, has_events, has_jobs, _ in rows:
            if not leaving and not (has_events and has_jobs):
                self.report.found("ranges", None, f"ids {low} to {high - 1} have no tables of their own")
        for (low, high, *_), (following, *_) in itertools.pairwise(rows):
            if high > following:
                self.report.found("ranges", None, f"ids {low} to {high - 1} overlap with those from {following}")
        # The newest range may wait for a moment in which the sequence can be moved: then ids end one range earlier.
        ends = [high - 1 for _, high, *_ in rows]
        if rows and rows[-1][5] not in ends:
            self.report.found("ranges", None, f"ids end at {rows[-1][5]}, and the ranges end at {ends[-1]}")

    def page(self, page: read.Page) -> None:
        """Check the jobs of a page, and what belongs to none."""
        logs = {log.job_id: log for log in page.logs}
        letters = {letter.job_id: letter for letter in page.letters}
        self.report.letters += len(letters)
        for job_id, rows in itertools.groupby(page.jobs, attrgetter("id")):
            log, letter = logs.pop(job_id, None), letters.pop(job_id, None)
            if any(low <= job_id < high for low, high in page.leaving):
                continue  # on its way out: the rows of jobs leave before their logs
            self._one(list(rows), log, letter)
        for job_id, log in logs.items():
            if not any(low <= job_id < high for low, high in page.leaving):
                count = log.text.count(read.LINE) + 1
                self.report.found("the log", job_id, f"{count} log rows of a job that is not there")
        for job_id, letter in letters.items():
            self.report.found("letters", job_id, f"dead letter {letter.id} is of a job that is not there")
        for effect in page.stray_effects:
            known = "when it did not hold the job" if effect.known else "which the log does not know"
            what = f"the effect {effect.node!r} was recorded under claim {effect.claims}, {known}"
            self.report.found("no stale commit", effect.job_id, what)
        for job_id, tenant, key in page.stray_keys:
            self.report.found("keys", job_id, f"the key {key!r} of {tenant} stands for a job that is not there")

    def _one(self, rows: list[read.Audited], log: read.AuditedLog | None, letter: read.AuditedLetter | None) -> None:
        self.report.jobs += 1
        self.report.live += any(job.live for job in rows)
        if len(rows) > 1:
            self.report.found("the end is one", rows[0].id, "the job is live and finished at once")
            return
        for promise, what in self._job(rows[0], log, letter):
            self.report.found(promise, rows[0].id, what)

    def _job(
        self, job: read.Audited, log: read.AuditedLog | None, letter: read.AuditedLetter | None
    ) -> Iterator[tuple[str, str]]:
        contract = self.contracts.get((job.contract, job.version))
        if contract is None:
            yield "the contract", f"{job.contract} {job.version} is not registered, or not readable here"
            return
        text = log.text if log else ""
        judge = self.judged if len(text) < _SHORT else self._judged  # only short logs are worth keeping
        judged = judge(job.contract, job.version, job.max_attempts, text)
        self.report.events += judged.rows
        if job.seq == judged.rows or judged.gap:
            yield from judged.wrong
            stands = judged.stands
        else:
            yield "the log", f"the row says {job.seq} log rows, and there are {judged.rows}"
            stands = None  # this is not the log of that row, whatever it says
        if log and log.late is not None:
            yield "the log", f"log row {log.late} is not later than the one before"
        elif stands is not None and log and log.last != job.updated_at:
            yield "row and log", f"updated_at is {job.updated_at} in the row, and {log.last} by the log"
        agrees = True
        if stands is not None:
            for promise, what in _agreement(contract, job, judged.limit, stands):
                agrees = False
                yield promise, what
        if job.live == (job.role == "done"):
            yield "the end is one", f"the job is {job.state} among the {'live' if job.live else 'finished'}"
        for doubt in job.doubts.split():
            if doubt not in _ABOUT_STANDING or (agrees and stands is not None):
                promise, what = _DOUBTS[doubt]
                yield promise, what.format(state=job.state)
        yield from _letter(contract, job, stands, letter)

    def _judged(self, name: str, version: str, limit: int, text: str) -> _Judged:
        """What the log says by itself."""
        rows: list[Row] = []
        limits: list[int] = []
        wrong: list[tuple[str, str]] = []
        lines = [line.split(read.FIELD) for line in text.split(read.LINE)] if text else []
        for place, line in enumerate(lines, 1):
            if len(line) != 9 or int(line[0]) != place:
                what = f"log row {place} is missing: {line[0]} follows {place - 1}"
                return _Judged(len(lines), limit, None, (("the log", what),), gap=True)
            _, trigger, from_state, to_state, claims, counter, hop, of_row, contract = line
            rows.append(Row(trigger, from_state, to_state, int(claims), int(counter), hop == "t"))
            limits.append(int(of_row))
            if contract != name:
                wrong.append(("the log", f"log row {place} is of another contract, {contract}"))
        told = limits[0] if len(set(limits)) == 1 else limit
        if told == limit:
            wrong += [
                ("the log", f"log row {place} tells of a limit of {other}, and the row's is {limit}")
                for place, other in enumerate(limits, 1)
                if other != limit
            ]
        stands = fold(self.contracts[name, version], told, rows)
        if isinstance(stands, Fault):
            wrong.append(_fault(self.contracts[name, version], told, rows, stands))
            return _Judged(len(rows), told, None, tuple(wrong))
        return _Judged(len(rows), told, stands, tuple(wrong))


def _fault(contract: Contract, limit: int, rows: list[Row], fault: Fault) -> tuple[str, str]:
    taken = sum(row.trigger in ("claim", "reclaim") for row in rows)
    raises = sum(row.trigger in ("snooze", "hand_back") for row in rows)
    if taken > contract.budget.executions(limit, raises):
        return "budget", f"claimed {taken} times with a limit of {limit} (log row {fault.seq})"
    return "the contract", f"log row {fault.seq}: {fault.what}"


def _agreement(contract: Contract, job: read.Audited, limit: int, stands: Standing) -> Iterable[tuple[str, str]]:
    for name in ("state", "role", "claims", "counter", "raises"):
        row, log = getattr(job, name), getattr(stands, name)
        if row != log:
            yield "row and log", f"{name} is {row!r} in the row, and {log!r} by the log"
    if job.max_attempts != limit:
        yield "row and log", f"max_attempts is {job.max_attempts} in the row, and {limit} by the log"
    elif stands.claims > contract.budget.executions(limit, stands.raises):
        yield "budget", f"claimed {stands.claims} times with a limit of {limit}"


def _letter(
    contract: Contract, job: read.Audited, stands: Standing | None, letter: read.AuditedLetter | None
) -> Iterable[tuple[str, str]]:
    if stands is not None and stands.letter and stands.role == "done" and letter is None:
        yield "letters", f"the job is {stands.state} without its dead letter"
    if letter is None:
        return
    if stands is not None and not (stands.letter and stands.role == "done"):
        yield "letters", f"dead letter {letter.id} is of a job that is {stands.state}"
    elif stands is not None and (letter.claims, letter.counter) != (stands.claims, stands.counter):
        yield "letters", f"dead letter {letter.id} tells of other counts than the job's log"
    if letter.contract != job.contract:
        yield "letters", f"dead letter {letter.id} is of contract {letter.contract}"
    if (letter.status == "requeued") != (letter.requeued_as is not None):
        yield "letters", f"dead letter {letter.id} is {letter.status}, run again as {letter.requeued_as}"
    elif not letter.linked:
        yield "letters", f"dead letter {letter.id} points to job {letter.requeued_as}, which does not point back"
    if letter.status == "discarded" and not _agreed(contract.dead_letters.reviewers, letter):
        yield "letters", f"dead letter {letter.id} was discarded without the people it takes"


def _agreed(reviewers: int, letter: read.AuditedLetter) -> bool:
    """Whether somebody asked for it, and, where it takes two, another person agreed."""
    if letter.asked_key is None or reviewers < 2:
        return letter.asked_key is not None
    return letter.approved_by is not None and person_key(letter.approved_by) != letter.asked_key
