"""`tenure verify` and `tenure replay`: does the database say what its contracts allow, and would it happen again?"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import typer

from tenure import intake
from tenure.cli.database import database, with_store
from tenure.cli.given import number
from tenure.cli.shown import as_json, ids_as_text, table
from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.postgres.store import Store
    from tenure.proof.audit import Audited
    from tenure.proof.cases import Played
    from tenure.proof.replay import Replayed

T = TypeVar("T")

_LONGEST = 36_500 * 86_400
_Since = typer.Option(None, "--since", help="Only jobs that changed since: a time (ISO 8601), or 30s, 5m, 2h, 7d ago.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")
_Cases = typer.Argument(None, metavar="[RP-…]...", help="Which cases of document 004; default all five.")
_Job = typer.Option(None, "--job", help="Run this recorded job's log again instead.")


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("verify")(verify)
    app.command("replay")(replay)


def verify(since: str | None = _Since, database_url: str | None = _Database, in_json: bool = _Json) -> None:
    """Audit a live database: fold every job's log through its contract and compare; exits 1 on a violation."""
    moment = None if since is None else _moment(since)

    async def run(store: Store) -> Audited:
        from tenure.proof import audit

        return await audit(store, moment, _progress if sys.stderr.isatty() else None)

    report = with_store(database_url, run)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if in_json:
        found = [ids_as_text(violation._asdict(), "job_id") for violation in report.violations]
        read = {"jobs": report.jobs, "live": report.live, "events": report.events, "letters": report.letters}
        rest = {"ranges": report.ranges, "seconds": round(report.seconds, 3), "more": report.more}
        print(as_json({"sound": not found, **read, **rest, "violations": found}))
    else:
        _tell(report)
    if report.violations:
        raise typer.Exit(1)


def _tell(report: Audited) -> None:
    rate = report.jobs / report.seconds if report.seconds else 0
    print(
        f"{report.jobs:,} jobs ({report.live:,} live), {report.events:,} log rows, {report.letters:,} dead letters and "
        f"{report.ranges:,} ranges read in {report.seconds:.1f} s ({rate:,.0f} jobs/s)"
    )
    for violation in report.violations:
        print(
            f"VIOLATION {violation.promise}: {f'job {violation.job_id}: ' if violation.job_id else ''}{violation.what}"
        )
    if report.more:
        print(f"… and {report.more:,} more")
    print("every job is where its log says it is" if not report.violations else "the database disagrees with its log")


def _progress(report: Audited) -> None:
    print(f"\r{report.jobs:,} jobs, {len(report.violations)} violations", end="", file=sys.stderr, flush=True)


def _moment(text: str) -> datetime | timedelta:
    """A time as it was typed, or how long ago: then it is the database's clock that counts."""
    if (seconds := intake.span(text)) is not None:
        if seconds > _LONGEST:
            raise BadInput(f"--since is at most {_LONGEST // 86_400} days ago, not {text!r}")
        return timedelta(seconds=seconds)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"--since is a time like 2026-01-31T12:00Z, or 30s, 5m, 2h, 7d ago, not {text!r}") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def replay(
    cases: list[str] | None = _Cases,
    job: str | None = _Job,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """Run document 004's cases, or a recorded job, again through the public verbs; exits 1 when something differs."""
    if job is not None:
        if cases:
            raise BadInput("give cases or --job, not both")
        _replay_job(number("--job", job), database_url, in_json)
        return
    from tenure.proof.cases import CASES

    wanted = [case.upper() for case in cases or []]
    if unknown := [case for case in wanted if case not in CASES]:
        raise BadInput(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    played = _quickly(database_url, lambda store: _play(store, wanted))
    passed = all(one.passed for one in played)
    whole = not wanted or set(wanted) == set(CASES)
    if in_json:
        said = [
            ids_as_text(
                {"case": one.case, "passed": one.passed, "why": one.why, "job_id": one.job_id, "records": one.records},
                "job_id",
            )
            for one in played
        ]
        print(as_json({"passed": passed, "cases": said}))
    else:
        for one in played:
            print(f"{one.case} {'passed' if one.passed else 'FAILED'}: {one.about} (job {one.job_id})")
            rows = [[str(value) for value in record.values()] for record in one.records]
            head = ("trace_id", "job_id", "retry_count", "status_transition")
            print("\n".join(f"    {line}" for line in table(head, rows)))
            if one.why:
                print(f"    {one.why}")
        verdict = "Gate B-2 passed" if passed and whole else "passed" if passed else "Gate B-2 did not pass"
        print(verdict if passed else f"{verdict}: {', '.join(one.case for one in played if not one.passed)}")
    if not passed:
        raise typer.Exit(1)


async def _play(store: Store, cases: list[str]) -> list[Played]:
    from tenure.proof.cases import play

    return await play(store, cases)


def _replay_job(job_id: int, database_url: str | None, in_json: bool) -> None:
    async def run(store: Store) -> Replayed:
        from tenure.proof.replay import replay as again

        return await again(store, job_id)

    report = _quickly(database_url, run)
    if in_json:
        fields = {"job_id": str(report.job_id), "as_job_id": str(report.as_job_id), "same": report.place is None}
        lists = {"recorded": report.recorded, "replayed": report.replayed}
        print(as_json({**fields, **lists, "first_difference": report.place, "why": report.why}))
    else:
        print(f"job {report.job_id} was run again as job {report.as_job_id}: {len(report.recorded)} log rows")
        print("\n".join(f"    {n}. {step}" for n, step in enumerate(report.replayed, 1)))
        same = "the same happened again"
        print(same if report.place is None else f"they part at log row {report.place}: {report.why}")
    if report.place is not None:
        raise typer.Exit(1)


def _quickly(database_url: str | None, call: Callable[[Store], Awaitable[T]]) -> T:
    """Call with a store whose waits are milliseconds, under every contract that is registered."""
    import asyncio

    from tenure.postgres.store import Store
    from tenure.proof.cases import QUICK

    async def run(dsn: str) -> T:
        async with Store.open(dsn, connections=1) as store:
            numbers = dict.fromkeys(await store.contracts(), QUICK)
        async with Store.open(dsn, numbers=numbers, connections=1) as store:
            return await call(store)

    with database(database_url) as dsn:
        return asyncio.run(run(dsn))
