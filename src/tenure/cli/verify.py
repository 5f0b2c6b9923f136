"""`tenure verify` and `tenure replay`: audit the database against its contracts, and run recorded jobs again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tenure.cli.command import Output, Store, call_store, command, open_database
from tenure.cli.options import DatabaseUrl, parse_id
from tenure.cli.output import progress, table
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.formats import ids_to_text

if TYPE_CHECKING:
    from tenure.proof.audit import AuditReport
    from tenure.proof.gate_b2_cases import CaseResult

T = TypeVar("T")

_MAX_AGE_S = 36_500 * 86_400
_RECORD_HEAD = ("trace_id", "job_id", "retry_count", "status_transition")
_Since = Annotated[str | None, typer.Option("--since", help="Only jobs changed since a time, or 5m, 2h, 7d ago.")]
_Cases = Annotated[list[str] | None, typer.Argument(metavar="[RP-…]...", help="Cases of document 004; default: all.")]


@command
def verify(since: _Since = None, database_url: DatabaseUrl = None) -> Output:
    """Audit a live database: fold every job's log through its contract and compare; exits 1 on a violation."""
    start = None if since is None else _parse_since(since)

    async def run(store: Store) -> AuditReport:
        from tenure.proof import audit

        return await audit(
            store, start, lambda report: progress(f"{report.jobs:,} jobs, {len(report.violations)} violations")
        )

    report = call_store(database_url, run)
    progress()
    violations = [ids_to_text(violation._asdict(), "job_id") for violation in report.violations]
    data = {"sound": not violations, **vars(report), "seconds": round(report.seconds, 3), "violations": violations}
    return Output(data, _audit_lines(report), failed=bool(violations))


def _audit_lines(report: AuditReport) -> Iterator[str]:
    rate = report.jobs / report.seconds if report.seconds else 0
    yield (
        f"{report.jobs:,} jobs ({report.live:,} live), {report.events:,} log rows, {report.letters:,} dead letters, "
        f"{report.flows:,} flows and {report.ranges:,} ranges read in {report.seconds:.1f} s ({rate:,.0f} jobs/s)"
    )
    for violation in report.violations:
        job = f"job {violation.job_id}: " if violation.job_id else ""
        yield f"VIOLATION {violation.promise}: {job}{violation.what}"
    if report.more:
        yield f"… and {report.more:,} more"
    yield "every job is where its log says it is" if not report.violations else "the database disagrees with its log"


def _parse_since(text: str) -> datetime | timedelta:
    """A time, or a time span before now by the database's clock."""
    if (seconds := validation.parse_duration(text)) is not None:
        if seconds > _MAX_AGE_S:
            raise BadInput(f"--since is at most {_MAX_AGE_S // 86_400} days ago, not {text!r}")
        return timedelta(seconds=seconds)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"--since is a time like 2026-01-31T12:00Z, or 30s, 5m, 2h, 7d ago, not {text!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@command
def replay(
    cases: _Cases = None,
    job: Annotated[str | None, typer.Option("--job", help="Run this recorded job's log again instead.")] = None,
    database_url: DatabaseUrl = None,
) -> Output:
    """Run document 004's cases, or a recorded job, again through the public verbs; exits 1 when something differs."""
    if job is None:
        return _replay_cases([case.upper() for case in cases or []], database_url)
    if cases:
        raise BadInput("give cases or --job, not both")
    return _replay_job(parse_id("--job", job), database_url)


def _replay_cases(wanted: list[str], database_url: str | None) -> Output:
    from tenure.proof.gate_b2_cases import CASES, run_cases

    if unknown := [case for case in wanted if case not in CASES]:
        raise BadInput(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    played = _call_fast_store(database_url, lambda store: run_cases(store, wanted))
    passed = all(result.passed for result in played)
    fields = [
        {
            "case": result.case, "passed": result.passed, "why": result.why,
            "job_id": result.job_id and str(result.job_id), "records": result.records,
        }
        for result in played
    ]  # fmt: skip
    is_whole_gate = not wanted or set(wanted) == set(CASES)
    return Output({"passed": passed, "cases": fields}, _case_lines(played, is_whole_gate), failed=not passed)


def _case_lines(played: list[CaseResult], is_whole_gate: bool) -> Iterator[str]:
    for result in played:
        yield f"{result.case} {'passed' if result.passed else 'FAILED'}: {result.about} (job {result.job_id})"
        yield from (f"    {line}" for line in table(_RECORD_HEAD, [tuple(each.values()) for each in result.records]))
        if result.why:
            yield f"    {result.why}"
    if failed := [result.case for result in played if not result.passed]:
        yield f"Gate B-2 did not pass: {', '.join(failed)}"
    else:
        yield "Gate B-2 passed" if is_whole_gate else "passed"


def _replay_job(job_id: int, database_url: str | None) -> Output:
    from tenure.proof.replay import replay as replay_job

    report = _call_fast_store(database_url, lambda store: replay_job(store, job_id))
    is_same = report.first_difference is None
    lines = [
        f"job {report.job_id} was run again as job {report.as_job_id}: {len(report.recorded)} log rows",
        *(f"    {number}. {step}" for number, step in enumerate(report.replayed, 1)),
        "the same happened again" if is_same else f"they differ at log row {report.first_difference}: {report.why}",
    ]
    return Output({**ids_to_text(vars(report), "job_id", "as_job_id"), "same": is_same}, lines, failed=not is_same)


def _call_fast_store(database_url: str | None, call: Callable[[Store], Awaitable[T]]) -> T:
    """The result of this call on a store whose backoffs are milliseconds, for every registered contract."""
    from tenure.proof.gate_b2_cases import FAST_NUMBERS

    with open_database(database_url) as dsn:
        contracts = call_store(dsn, lambda store: store.contracts())
        return call_store(dsn, call, numbers=dict.fromkeys(contracts, FAST_NUMBERS))
