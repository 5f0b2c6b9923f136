"""An audit of a live database: folds every job's log through its contract and compares the result with the row.

It reads page by page, each page in one snapshot, takes no lock that blocks others, and keeps only the violations of a
page. Most logs are alike, so the result of folding a short log is cached.

Each violation is reported once, under the promise that it breaks:

    the contract        a hop that the contract does not allow; a contract that is not registered, or was changed
    the log             rows are missing, out of order, or belong to a job that does not exist
    row and log         folding the log gives another row
    budget              more claims than the limit allows
    the end is one      a job is both live and finished
    nothing stranded    a job that no worker and no upkeep can ever move again
    one lease           a lease on a job without a holder, or of a worker that did not claim it
    no stale commit     an effect that was recorded without a lease
    letters, keys, claims, ranges
    flows           counts, starts or ends of nodes disagree with their parents, their jobs or their flow
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

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.contracts.stored_form import from_description
from tenure.jobs.validation import normalize_person
from tenure.model.fold import Fault, fold
from tenure.model.step import LogRow, Standing
from tenure.postgres import audit_reads as read
from tenure.postgres.bound_contract import contract_successes
from tenure.postgres.store import Store
from tenure.proof.flow_audit import LATE_MINUTES, check_end, check_flow, check_node

PAGE = 5_000
#: A page ends early where its logs have this many rows.
LOG_ROWS = 50_000
#: A page of flows ends where they have this many nodes.
FLOW_NODES = 50_000
#: Logs of fewer characters are cached.
_SHORT_LOG = 1_000
#: Violations beyond this number are only counted.
_MAX_VIOLATIONS = 1_000

#: The doubts that audit_jobs.sql finds about a row: the promise, and the text of the violation.
_DOUBTS = {
    "unleased": ("nothing stranded", "{state} without a whole lease: it cannot be ended, or it never expires"),
    "undated": ("nothing stranded", "{state} has no due time to wait for"),
    "leased": ("one lease", "{state} with a lease on it"),
    "holder": ("one lease", "its lease is not that of the last claim"),
    "claim": ("claims", "the claim that holds it is not known"),
    "key": ("keys", "its idempotency key is not kept: a repeat would make a second job"),
    "origin": ("letters", "it runs a dead letter again that does not point to it"),
    "range": ("ranges", "it is in no range, so that no hop of it can be logged"),
    "node": ("flows", "the node that it runs is not {state} as this job"),
    "quarantined": ("nothing stranded", "claims leave it out, because its claim could not be logged"),
}
#: These concern the job's state: they add nothing when the row already disagrees with the log about it.
_ABOUT_STATE = frozenset({"unleased", "undated", "leased", "holder", "claim"})


class Violation(NamedTuple):
    """A broken promise: its name, the job, and the finding."""

    promise: str
    job_id: int | None
    what: str


@dataclass
class AuditReport:
    """The numbers of rows read, the time, and the violations."""

    jobs: int = 0
    live: int = 0
    events: int = 0
    letters: int = 0
    ranges: int = 0
    flows: int = 0
    seconds: float = 0.0
    #: The number of violations that are not listed.
    more: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add(self, promise: str, job_id: int | None, what: str) -> None:
        """Add a violation, or only count it when there are too many."""
        if len(self.violations) < _MAX_VIOLATIONS:
            self.violations.append(Violation(promise, job_id, what))
        else:
            self.more += 1


async def audit(
    store: Store, since: datetime | timedelta | None = None, on_page: Callable[[AuditReport], None] | None = None
) -> AuditReport:
    """Audit all jobs (or those changed since a time, or since a time span ago), the contracts, the ranges and flows.

    Of flows, `since` leaves out those that ended before.
    """
    begun, report = time.perf_counter(), AuditReport()
    moment = await store.audit.moment(since) if isinstance(since, timedelta) else since
    auditor = _Auditor(report)
    auditor.check_contracts(await store.audit.registered())
    auditor.check_ranges(await store.audit.ranges())
    await _audit_flows(store, auditor, moment)
    for low, high in await store.audit.spans():
        after = low - 1
        while True:
            page = await store.audit.page(after, high, PAGE, LOG_ROWS, moment)
            auditor.check_page(page)
            report.seconds = time.perf_counter() - begun
            if on_page:
                on_page(report)
            if not page.jobs:
                break
            after = page.jobs[-1].id
    return report


async def _audit_flows(store: Store, auditor: _Auditor, moment: datetime | None) -> None:
    after = 0
    while True:
        flows, nodes = await store.audit.flows(after, PAGE, FLOW_NODES, moment)
        auditor.check_flows(flows, nodes)
        if not flows:
            break
        after = flows[-1].id
    auditor.check_ends(await store.audit.untaken_ends(LATE_MINUTES, _MAX_VIOLATIONS))


class _FoldedLog(NamedTuple):
    """The result of folding a log: its row count, the job that it leads to, and its violations."""

    rows: int
    limit: int
    expected: Standing | None
    violations: tuple[tuple[str, str], ...] = ()
    has_gap: bool = False


class _Auditor:
    def __init__(self, report: AuditReport) -> None:
        self.report = report
        self.contracts: dict[tuple[str, str], Contract] = {}
        self.fold_cached = lru_cache(4_096)(self._fold)

    def check_contracts(self, registered: list[tuple[Any, ...]]) -> None:
        """Check that each contract is as it was registered, and equal to a built-in one of the same name."""
        for name, version, digest, declaration in registered:
            try:
                contract = from_description(declaration)
            except (TypeError, KeyError, ValueError, AttributeError):
                continue  # declared by a newer release: reported for each of its jobs
            self.contracts[name, version] = contract
            built_in = BUILT_IN.get(name)
            if contract.digest() != digest:
                self.report.add("the contract", None, f"{name} {version} was changed after it was registered")
            elif built_in is not None and built_in.version == version and built_in.digest() != digest:
                self.report.add("the contract", None, f"{name} {version} is registered with another machine than ours")

    def check_ranges(self, rows: list[tuple[Any, ...]]) -> None:
        """Check that ranges do not overlap, that each has its tables, and that they cover all ids."""
        self.report.ranges = len(rows)
        for low, high, leaving, has_events, has_jobs, _ in rows:
            if not leaving and not (has_events and has_jobs):
                self.report.add("ranges", None, f"ids {low} to {high - 1} have no tables of their own")
        for (low, high, *_), (following, *_) in itertools.pairwise(rows):
            if high > following:
                self.report.add("ranges", None, f"ids {low} to {high - 1} overlap with those from {following}")
        if rows and (rows[-1][5] or 0) >= rows[-1][1]:  # None: no id was used, or this role may not read it
            what = f"ids were given up to {rows[-1][5]}, and the ranges end at {rows[-1][1] - 1}"
            self.report.add("ranges", None, what)

    def check_flows(self, flows: Iterable[read.AuditedFlow], nodes: Iterable[read.AuditedNode]) -> None:
        """Check flows, and report their nodes that have doubts."""
        for flow in flows:
            self.report.flows += 1
            for what in check_flow(flow):
                self.report.add("flows", None, f"flow {flow.id} ({flow.name}): {what}")
        for node in nodes:
            for what in check_node(node):
                self.report.add("flows", node.job_id, what)

    def check_ends(self, ends: Iterable[read.UntakenEnd]) -> None:
        """Report the ends of jobs that flows did not take into account."""
        for end in ends:
            self.report.add("flows", end.job_id, check_end(end))

    def check_page(self, page: read.Page) -> None:
        """Check the jobs of a page, and the rows that belong to no job."""
        logs = {log.job_id: log for log in page.logs}
        letters = {letter.job_id: letter for letter in page.letters}
        self.report.letters += len(letters)
        for job_id, rows in itertools.groupby(page.jobs, attrgetter("id")):
            log, letter = logs.pop(job_id, None), letters.pop(job_id, None)
            if not _is_leaving(page, job_id):
                self._check(list(rows), log, letter)
        for job_id, log in logs.items():
            if not _is_leaving(page, job_id):
                count = log.text.count(read.LINE) + 1
                self.report.add("the log", job_id, f"{count} log rows of a job that is not there")
        for job_id, letter in letters.items():
            self.report.add("letters", job_id, f"dead letter {letter.id} is of a job that is not there")
        for effect in page.stray_effects:
            known = "when it did not hold the job" if effect.known else "which the log does not know"
            what = f"the effect {effect.node!r} was recorded under claim {effect.claims}, {known}"
            self.report.add("no stale commit", effect.job_id, what)
        for job_id, tenant, key in page.stray_keys:
            self.report.add("keys", job_id, f"the key {key!r} of {tenant} belongs to a job that is not there")

    def _check(self, rows: list[read.Audited], log: read.AuditedLog | None, letter: read.AuditedLetter | None) -> None:
        self.report.jobs += 1
        self.report.live += any(job.live for job in rows)
        if len(rows) > 1:
            self.report.add("the end is one", rows[0].id, "the job is live and finished at once")
            return
        for promise, what in self._job_violations(rows[0], log, letter):
            self.report.add(promise, rows[0].id, what)

    def _job_violations(
        self, job: read.Audited, log: read.AuditedLog | None, letter: read.AuditedLetter | None
    ) -> Iterator[tuple[str, str]]:
        contract = self.contracts.get((job.contract, job.version))
        if contract is None:
            yield "the contract", f"{job.contract} {job.version} is not registered, or not readable here"
            return
        text = log.text if log else ""
        fold_log = self.fold_cached if len(text) < _SHORT_LOG else self._fold
        folded = fold_log(job.contract, job.version, job.max_attempts, text)
        self.report.events += folded.rows
        if job.seq == folded.rows or folded.has_gap:
            yield from folded.violations
            expected = folded.expected
        else:
            yield "the log", f"the row says {job.seq} log rows, and there are {folded.rows}"
            expected = None  # the log is not that of this row
        if log and log.late is not None:
            yield "the log", f"log row {log.late} is not later than the one before"
        elif expected is not None and log and log.last != job.updated_at:
            yield "row and log", f"updated_at is {job.updated_at} in the row, and {log.last} by the log"
        agrees = True
        if expected is not None:
            for promise, what in _row_violations(contract, job, folded.limit, expected):
                agrees = False
                yield promise, what
        if job.live == (job.role == "done"):
            yield "the end is one", f"the job is {job.state} among the {'live' if job.live else 'finished'}"
        for doubt in job.doubts.split():
            if doubt == "undated" and contract.decisions_from(job.state):
                continue  # it waits for a decision, not for a time
            if doubt in ("well", "badly"):
                if (doubt == "well") != (job.state in contract_successes(contract)):
                    yield "flows", f"the job is {job.state}, and its node ended {doubt}"
                continue
            if doubt not in _ABOUT_STATE or (agrees and expected is not None):
                promise, what = _DOUBTS[doubt]
                yield promise, what.format(state=job.state)
        yield from _letter_violations(contract, job, expected, letter)

    def _fold(self, name: str, version: str, limit: int, text: str) -> _FoldedLog:
        """Fold a log and collect its violations."""
        rows: list[LogRow] = []
        limits: list[int] = []
        violations: list[tuple[str, str]] = []
        lines = [line.split(read.FIELD) for line in text.split(read.LINE)] if text else []
        for place, line in enumerate(lines, 1):
            if len(line) != 9 or int(line[0]) != place:
                what = f"log row {place} is missing: {line[0]} follows {place - 1}"
                return _FoldedLog(len(lines), limit, None, (("the log", what),), has_gap=True)
            _, trigger, from_state, to_state, claims, counter, hop, row_limit, contract = line
            rows.append(LogRow(trigger, from_state, to_state, int(claims), int(counter), hop == "t"))
            limits.append(int(row_limit))
            if contract != name:
                violations.append(("the log", f"log row {place} is of another contract, {contract}"))
        log_limit = limits[0] if len(set(limits)) == 1 else limit
        if log_limit == limit:
            violations += [
                ("the log", f"log row {place} has a limit of {other}, and the row's is {limit}")
                for place, other in enumerate(limits, 1)
                if other != limit
            ]
        expected = fold(self.contracts[name, version], log_limit, rows)
        if isinstance(expected, Fault):
            violations.append(_fault(self.contracts[name, version], log_limit, rows, expected))
            return _FoldedLog(len(rows), log_limit, None, tuple(violations))
        return _FoldedLog(len(rows), log_limit, expected, tuple(violations))


def _is_leaving(page: read.Page, job_id: int) -> bool:
    """Whether the job is being retired: the rows of jobs are dropped before their logs."""
    return any(low <= job_id < high for low, high in page.leaving)


def _fault(contract: Contract, limit: int, rows: list[LogRow], fault: Fault) -> tuple[str, str]:
    claims = sum(row.trigger in ("claim", "reclaim") for row in rows)
    raises = sum(row.trigger in ("snooze", "hand_back") for row in rows)
    if claims > contract.budget.executions(limit, raises):
        return "budget", f"claimed {claims} times with a limit of {limit} (log row {fault.seq})"
    return "the contract", f"log row {fault.seq}: {fault.what}"


def _row_violations(contract: Contract, job: read.Audited, limit: int, expected: Standing) -> Iterable[tuple[str, str]]:
    for name in ("state", "role", "claims", "counter", "raises"):
        row, log = getattr(job, name), getattr(expected, name)
        if row != log:
            yield "row and log", f"{name} is {row!r} in the row, and {log!r} by the log"
    if job.max_attempts != limit:
        yield "row and log", f"max_attempts is {job.max_attempts} in the row, and {limit} by the log"
    elif expected.claims > contract.budget.executions(limit, expected.raises):
        yield "budget", f"claimed {expected.claims} times with a limit of {limit}"


def _letter_violations(
    contract: Contract, job: read.Audited, expected: Standing | None, letter: read.AuditedLetter | None
) -> Iterable[tuple[str, str]]:
    if expected is not None and expected.letter and expected.role == "done" and letter is None:
        yield "letters", f"the job is {expected.state} without its dead letter"
    if letter is None:
        return
    if expected is not None and not (expected.letter and expected.role == "done"):
        yield "letters", f"dead letter {letter.id} is of a job that is {expected.state}"
    elif expected is not None and (letter.claims, letter.counter) != (expected.claims, expected.counter):
        yield "letters", f"dead letter {letter.id} has other counts than the job's log"
    if letter.contract != job.contract:
        yield "letters", f"dead letter {letter.id} is of contract {letter.contract}"
    if (letter.status == "requeued") != (letter.requeued_as is not None):
        yield "letters", f"dead letter {letter.id} is {letter.status}, run again as {letter.requeued_as}"
    elif not letter.linked:
        yield "letters", f"dead letter {letter.id} points to job {letter.requeued_as}, which does not point back"
    if letter.status == "discarded" and not _is_approved(contract.dead_letters.reviewers, letter):
        yield "letters", f"dead letter {letter.id} was discarded without the required people"


def _is_approved(reviewers: int, letter: read.AuditedLetter) -> bool:
    """Whether one person asked for the discard and, where two are required, another person approved it."""
    if letter.asked_key is None or reviewers < 2:
        return letter.asked_key is not None
    return letter.approved_by is not None and normalize_person(letter.approved_by) != letter.asked_key
