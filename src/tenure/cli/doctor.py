"""`tenure doctor`: name what is wrong with a database, its server and its workers, each with the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tenure.cli.command import Output, command, open_database
from tenure.cli.options import DatabaseUrl
from tenure.cli.output import columns

if TYPE_CHECKING:
    from tenure.jobs.finding import Finding

#: The exit code if the worst finding is a warning.
ONLY_WARNINGS = 3


@command
def doctor(database_url: DatabaseUrl = None) -> Output:
    """Find misconfigurations and faults; changes nothing. Exits with 1 on a critical one, with 3 on warnings alone."""
    import asyncio

    from tenure.jobs.finding import worst
    from tenure.postgres.doctor.examination import examine, summarize
    from tenure.settings import Settings

    settings = Settings.load()
    with open_database(database_url, migrated=False) as dsn:
        findings = asyncio.run(examine(dsn, numbers=settings.numbers, direct_url=settings.direct_url))
    data = {"counts": summarize(findings), "findings": [one.to_json() for one in findings]}
    severity = worst(findings)
    return Output(
        data, _lines(findings), failed=severity in ("critical", "warning"),
        exit_code=1 if severity == "critical" else ONLY_WARNINGS,
    )  # fmt: skip


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "nothing is wrong"
        return
    rows = [row for one in findings for row in ((one.severity, one.code, one.summary), ("", "", f"Next: {one.next}"))]
    yield from columns(rows)
    counts = [f"{sum(one.severity == each for one in findings)} {each}" for each in ("critical", "warning", "note")]
    yield ", ".join(counts)
