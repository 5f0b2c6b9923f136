"""The speed of `tenure verify`, and its memory over many jobs.

    ./dev bench verify [--jobs 1000000] [--json]

SQL writes finished jobs as their contract would leave them (a row, and the two log rows of its claim and its success)
on an embedded PostgreSQL of its own, and this process audits them. It records its peak memory before the audit, after
the first page, and at 10 %, 50 % and 100 % of the jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from bench.kernel import SETTINGS
from tenure.embedded import Cluster
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.proof import AuditReport, audit

_AT_ONCE = 100_000

_FINISHED = """
with made as materialized (
    select nextval('tenure.job_id_seq') as id, clock_timestamp() as t
    from generate_series(1, %(count)s)
),
done as (
    insert into tenure.job_done (
        id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, lease_token, seq, claims,
        counter, max_attempts, contract, version, state, role, type, payload, result)
    select id, t, t, t + interval '2 milliseconds', t + interval '1 millisecond', t + interval '1 millisecond',
           t + interval '2 milliseconds', gen_random_uuid(), 2, 1, 1, 5, 'standard', '1', 'succeeded', 'done',
           'mail.send', '{"to": "somebody@example.org", "subject": "hello", "n": 7}', '{"ok": true}'
    from made
)
insert into tenure.event (
    job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
select id, t + n * interval '1 millisecond', n, 1, 1, 5, 'standard', trigger, source, target, 'bench'
from made cross join (
    values (1, 'claim', 'queued', 'running'), (2, 'succeed', 'running', 'succeeded')
) as hop (n, trigger, source, target)
"""


def fill(dsn: str, jobs: int) -> None:
    """Write so many finished jobs."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        write(connection, jobs)
        connection.execute("vacuum analyze tenure.job_done, tenure.event")


def write(connection: psycopg.Connection[Any], jobs: int) -> None:
    """Write so many finished jobs, a part at a time."""
    left = jobs
    while left:
        connection.execute(_FINISHED.encode(), {"count": min(left, _AT_ONCE)})
        left -= min(left, _AT_ONCE)


def peak() -> float:
    """The most memory that this process ever had, in MB."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1024 * 1024 if sys.platform == "darwin" else 1024)


async def measured(dsn: str, jobs: int) -> dict[str, Any]:
    """Audit the database; the figures."""
    memory = {"before": round(peak(), 1)}

    def note(so_far: AuditReport) -> None:
        memory.setdefault("first page", round(peak(), 1))
        for share in (10, 50, 100):
            if so_far.jobs * 100 >= jobs * share:
                memory.setdefault(f"{share} %", round(peak(), 1))

    async with Store.open(dsn, connections=1) as store:
        report = await audit(store, on_page=note)
    if report.violations or report.jobs != jobs:
        raise SystemExit(f"{report.jobs} jobs read, {report.violations[:3]}: these figures are of no sound audit")
    return {
        "jobs": report.jobs, "log_rows": report.events, "seconds": round(report.seconds, 2),
        "jobs_per_s": round(report.jobs / report.seconds), "peak_mb": memory,
    }  # fmt: skip


def main() -> None:
    """Run on an embedded PostgreSQL of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many finished jobs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs is at least 1")
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory,
        Cluster(Path(directory), settings=SETTINGS) as cluster,
    ):
        migrate(cluster.dsn)
        print(f"making {options.jobs:,} finished jobs …", file=sys.stderr)
        fill(cluster.dsn, options.jobs)
        print("auditing …", file=sys.stderr)
        figures = asyncio.run(measured(cluster.dsn, options.jobs))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    memory = figures["peak_mb"]
    print(f"| jobs | log rows | seconds | jobs/s | peak MB: {', '.join(memory)} |")
    print("|---|---|---|---|---|")
    print(
        f"| {figures['jobs']:,} | {figures['log_rows']:,} | {figures['seconds']} | {figures['jobs_per_s']:,} "
        f"| {', '.join(str(used) for used in memory.values())} |"
    )


if __name__ == "__main__":
    main()
