"""What does an output cost? Appends and replaces of 100,000 rows beside bare COPY and INSERT of the same rows.

    ./dev bench datasets [--rows N] [--times N]

All of them write the same JSON rows, in turn, in one run. `insert` and `copy` write to a table like tenure.dataset_row,
without Tenure: the one by INSERT from arrays of 10,000 rows, the other by COPY. `append`, `append again`
(no row is new) and `replace` are completions of a job with that output; `staged` replaces a scope by rows
that it has staged in parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from bench.depth_sections.section import Table
from bench.flows import server
from tenure.jobs.dataset import Append, NewDataset, Output, Replace, row_keys
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, Job, NewJob
from tenure.postgres.store import Store

_ROWS, _TIMES, _PART = 100_000, 5, 10_000
_BARE = """
create table public.bare (batch_id bigint, key text collate "C", value jsonb not null, primary key (batch_id, key))
"""
_INSERT = """
insert into public.bare select %s, row.key, row.value::jsonb from unnest(%b::text[], %b::text[]) as row (key, value)
"""


class Bench:
    """The rows, and the ways to write them."""

    def __init__(self, dsn: str, store: Store, rows: int) -> None:
        self.dsn, self.store = dsn, store
        self.rows: list[dict[str, Any]] = [
            {"id": f"{n:09d}", "day": "2026-11-19", "open": n / 7, "close": n / 3} for n in range(rows)
        ]
        self.keys = row_keys(self.rows, "id")
        self.turn = 0

    async def held(self) -> Job:
        """A job that writes a dataset of its own."""
        name = f"prices-{self.turn}"
        await self.store.datasets.declare(NewDataset(name))
        await self.store.enqueue(NewJob("t", writes=(DatasetUse(name),)))
        (job,) = await self.store.claim(worker="w")
        return job

    async def complete(self, output: Callable[[str], Output]) -> float:
        """Seconds of a completion with this output."""
        job = await self.held()
        begun = time.perf_counter()
        call = HolderCall(job.held, outputs=[output(f"prices-{self.turn}")])
        await self.store.report_one("succeed", call)
        return time.perf_counter() - begun

    async def append(self) -> float:
        """Append all rows."""
        return await self.complete(lambda name: Append(name, self.rows, self.keys))

    async def replace(self) -> float:
        """Replace a scope by all rows."""
        return await self.complete(lambda name: Replace(name, "may", self.rows, self.keys))

    async def staged(self) -> float:
        """Stage all rows in parts, then replace a scope by them."""
        job, name = await self.held(), f"prices-{self.turn}"
        begun, number = time.perf_counter(), None
        for first in range(0, len(self.rows), _PART):
            part = slice(first, first + _PART)
            number = await self.store.datasets.stage(job.held, name, self.rows[part], self.keys[part], staged=number)
        call = HolderCall(job.held, outputs=[Replace(name, "staged", staged=number)])
        await self.store.report_one("succeed", call)
        return time.perf_counter() - begun

    async def insert(self) -> float:
        """Bare INSERT."""
        return await asyncio.to_thread(self._insert)

    def _insert(self) -> float:
        with psycopg.connect(self.dsn) as connection:
            begun = time.perf_counter()
            for first in range(0, len(self.rows), _PART):
                rows = [json.dumps(row) for row in self.rows[first : first + _PART]]
                connection.execute(_INSERT, (self.turn, self.keys[first : first + _PART], rows))
            connection.commit()
            return time.perf_counter() - begun

    async def copy(self) -> float:
        """Bare COPY."""
        return await asyncio.to_thread(self._copy)

    def _copy(self) -> float:
        with psycopg.connect(self.dsn) as connection:
            begun = time.perf_counter()
            with connection.cursor().copy("copy public.bare from stdin") as copy:
                for key, row in zip(self.keys, self.rows, strict=True):
                    copy.write_row((-self.turn - 1, key, json.dumps(row)))
            connection.commit()
            return time.perf_counter() - begun

    async def measure(self, times: int) -> Table:
        """Median seconds of each way, in turn; and the ratio to bare INSERT of the same turn."""
        ways: dict[str, Callable[[], Awaitable[float]]] = {
            "insert": self.insert, "copy": self.copy, "append": self.append, "append again": self.append,
            "replace": self.replace, "staged": self.staged,
        }  # fmt: skip
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(times + 1):  # the first warms up
            self.turn = turn
            for name, way in ways.items():
                seconds = await way()
                if turn:
                    taken[name].append(seconds)
        table = []
        for name, each in taken.items():
            ratio = statistics.median([one / bare for one, bare in zip(each, taken["insert"], strict=True)])
            median = statistics.median(each)
            table.append([name, f"{1e3 * median:,.0f}", f"{1e6 * median / len(self.rows):.1f}", f"{ratio:.2f}×"])
        header = ["way", "milliseconds", "microseconds a row", "beside bare INSERT"]
        return Table(f"{len(self.rows):,} rows of {len(json.dumps(self.rows[0]))} bytes:", header, table)


async def measure(dsn: str, rows: int, times: int) -> Table:
    """The table of all ways, on this database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_BARE)
    async with Store.open(dsn) as store:
        return await Bench(dsn, store, rows).measure(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=_ROWS)
    parser.add_argument("--times", type=int, default=_TIMES)
    options = parser.parse_args()
    with server() as (_, make):
        asyncio.run(measure(make("datasets"), options.rows, options.times)).show()


if __name__ == "__main__":
    main()
