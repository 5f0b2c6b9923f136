"""The result of a section of `./dev bench depth`: tables to print, and lines to draw."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from bench.kernel import clocks, one

T = TypeVar("T")
#: Makes a migrated database of that name; its address.
Make = Callable[[str], str]

#: What a person enqueues: about a hundred bytes of JSON.
PAYLOAD = {"to": "somebody@example.org", "subject": "hello", "n": 7}
RESULT = {"ok": True}


@dataclass(frozen=True)
class Table:
    """A table in Markdown."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self) -> None:
        """Print it."""
        print(f"\n{self.title}\n")
        for row in (self.header, ["---"] * len(self.header), *self.rows):
            print(f"| {' | '.join(row)} |")


@dataclass(frozen=True)
class Lines:
    """One picture: a line for each name, over the same places."""

    title: str
    unit: str
    places: Sequence[str]
    lines: dict[str, Sequence[float]]


@dataclass
class Section:
    """All that a section found."""

    tables: list[Table] = field(default_factory=list)
    pictures: list[Lines] = field(default_factory=list)


@dataclass
class Clock:
    """Seconds of calls by name, one for each time; and of processor time, ours and one server process's together."""

    #: The server process that does the work, where its time can be read (Linux).
    server: int | None = None
    spent: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, list[float]] = field(default_factory=dict)

    async def __call__(self, name: str, call: Awaitable[T]) -> T:
        """Wait for a call, and note how long that took."""
        used, begun = self._processor(), time.perf_counter()
        answer = await call
        self.spent.setdefault(name, []).append(time.perf_counter() - begun)
        self.used.setdefault(name, []).append(self._processor() - used)
        return answer

    def median(self, name: str, skip: int = 0) -> float:
        """The median seconds of that call; the first ones, while statements are prepared, may be skipped."""
        return statistics.median(self.spent[name][skip:])

    def processor(self, name: str, skip: int = 0) -> float:
        """The median seconds of processor time of that call, which a busy machine blurs less."""
        return statistics.median(self.used[name][skip:])

    def _processor(self) -> float:
        return sum(clocks(self.server)) if self.server else 0.0


def server_of(dsn: str) -> int | None:
    """The one server process of a store's on this database."""
    query = "select pid from pg_stat_activity where application_name = 'tenure' and datname = current_database()"
    return one_value(dsn, query) if Path("/proc/self/schedstat").exists() else None


def lsn(dsn: str) -> int:
    """How many bytes of WAL the server has written so far."""
    with psycopg.connect(dsn) as connection:
        return int(one(connection, "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"))


def shown(value: float) -> str:
    """A figure with as many digits as matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(now: float, then: float) -> str:
    """How many times as much."""
    return f"{now / then:.2f}×" if then else "–"


def one_value(dsn: str, query: str) -> Any:
    """The only value of a query, on a connection of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return one(connection, query)
