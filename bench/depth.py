"""What do a claim, a finish and a look at a list cost when there is much of everything?

    ./dev bench depth [--quick] [--only SECTION] [--pinned-minutes 10] [--pace 1000] [--chart FILE]

rows       enqueue, claim, heartbeat, succeed, lists and looks with 0 to 10 M finished jobs and up to 1 M due ones,
           beside an empty table, in turn
urgent     the same writes with 1 M delayed urgent jobs before the due ones
payload    lives with payloads of 100 B to 64 KiB, and their WAL
contracts  `reliability`, with its three hops, beside `standard`
workers    1 to 64 workers one by one on own connections, and as slots in 1, 2 and 4 worker processes
pinned     ten minutes of steady load while a transaction keeps an old snapshot

An embedded PostgreSQL of its own with fsync on, gone at the end. Compare ratios within one run; seconds differ between
machines and between days. `--quick` is a first look of less than 4 minutes: no 10 M rows, and one minute pinned.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import psycopg

from bench.depth_sections import life_costs, rows
from bench.depth_sections.chart import draw
from bench.depth_sections.old_snapshot import pinned
from bench.depth_sections.section import Make, Section
from bench.depth_sections.workers import workers
from bench.kernel import SETTINGS, migrated, one
from tenure.embedded import Cluster

#: Autovacuum would come when it likes, for tables that were just filled. Each section vacuums the hot table as upkeep
#: does; `pinned` and `workers` run upkeep itself.
_SERVER = {**SETTINGS, "autovacuum": "off", "max_connections": "300"}

_SECTIONS: dict[str, Callable[[Make, bool], Awaitable[Section]]] = {
    "rows": rows.rows, "urgent": rows.urgent, "payload": life_costs.payload, "contracts": life_costs.contracts,
    "workers": workers,
}  # fmt: skip


async def measured(name: str, make: Make, options: argparse.Namespace) -> Section:
    """One section's figures."""
    if name == "pinned":
        return await pinned(make, options.pinned_minutes or (1 if options.quick else 10), options.pace)
    return await _SECTIONS[name](make, options.quick)


def main() -> None:
    """Measure, and print tables; with a file for it, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller counts, for a first look")
    parser.add_argument("--only", action="append", choices=[*_SECTIONS, "pinned"], help="this section; again for more")
    parser.add_argument("--pinned-minutes", type=float, help="how long the snapshot is kept (10, quick: 1)")
    parser.add_argument("--pace", type=int, default=1_000, help="jobs a second while it is kept")
    parser.add_argument("--chart", type=Path, help="draw the lines into this SVG file")
    options = parser.parse_args()
    found: list[Section] = []
    with (
        tempfile.TemporaryDirectory(prefix="tenure-depth-") as directory,
        Cluster(Path(directory), settings=_SERVER) as cluster,
    ):
        make = partial(migrated, cluster.dsn)
        with psycopg.connect(cluster.dsn) as connection:
            print(f"PostgreSQL {one(connection, 'show server_version')}, fsync on")
        for name in options.only or [*_SECTIONS, "pinned"]:
            begun = time.perf_counter()
            section = asyncio.run(measured(name, make, options))
            for table in section.tables:
                table.show()
            sys.stdout.flush()
            found.append(section)
            print(f"{name} took {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    if options.chart:
        options.chart.write_text(draw([picture for section in found for picture in section.pictures]))


if __name__ == "__main__":
    main()
