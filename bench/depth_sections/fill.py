"""Fills databases on the server: finished jobs with their log, and waiting jobs."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from bench.kernel import FILL, one
from bench.verify import write

_TOMORROW, _NOW = "now() + interval '1 day'", "now()"
#: The machine's processors, more or less.
_AT_ONCE = 2


def grow(dsn: str, *, done: int = 0, ready: int = 0, urgent: int = 0) -> None:
    """Add finished jobs, jobs that are due, and jobs that come first but are not due before tomorrow."""
    begun = time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        _make_room(connection, done + ready + urgent)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for part in [threads.submit(_finished, dsn, done // _AT_ONCE) for _ in range(_AT_ONCE)]:
            part.result()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute(FILL.format(priority=0, due=_TOMORROW, count=urgent).encode())
        connection.execute(FILL.format(priority=5, due=_NOW, count=ready).encode())
        connection.execute("vacuum analyze tenure.job")
        connection.execute("analyze tenure.job_done, tenure.event")
        connection.execute("checkpoint")
    if (spent := time.perf_counter() - begun) > 5:
        print(
            f"  {done:,} finished, {ready:,} due, {urgent:,} delayed jobs were made in {spent:.0f} s", file=sys.stderr
        )


def _finished(dsn: str, jobs: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        write(connection, jobs)


def _make_room(connection: psycopg.Connection[Any], jobs: int) -> None:
    """Make the id ranges that so many jobs need, and one more."""
    needed = one(connection, "select last_value from tenure.job_id_seq") + jobs + 1_000_000
    while one(connection, "select max(high) from tenure.range") < needed:
        connection.execute(f"select tenure.extend_ranges({min(64, needed // 1_048_576 + 1)})".encode())
