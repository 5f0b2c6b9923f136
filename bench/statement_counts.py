"""Counts the work of a statement instead of its time: rows, index entries, pages, WAL bytes, and its plan.

Two equal databases take the same steps. The real code runs a verb on the first one, with any driver; the server's log
shows its statements with their values. The second database runs them again on a connection that reads the server's
counters before and after each statement.

    verb ──▶ first database ──▶ the server's log ──▶ second database, counted
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from bench.kernel import one
from tenure.postgres.connect import engine_dsn

#: The name under which the code that is watched connects.
WATCHED = "watched"

#: A server on which nothing happens by itself, and whose log has every statement: no vacuum, no checkpoint, and no WAL
#: that depends on when the last one was (full pages, snapshots for replicas).
SETTINGS = {
    "fsync": "off", "autovacuum": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0",
    "checkpoint_timeout": "1h", "max_wal_size": "8GB", "shared_buffers": "256MB",
    "log_statement": "all", "log_parameter_max_length": "-1", "log_line_prefix": "|%a|",
}  # fmt: skip

_ENTRY = re.compile(r"^\|", re.MULTILINE)
_SENT = re.compile(r"LOG: {2}(?:statement|execute [^:]*): (.*)", re.DOTALL)
_VALUES = re.compile(r"DETAIL: {2}[Pp]arameters: (.*)", re.DOTALL)
_VALUE = re.compile(r"\$\d+ = (NULL|'(?:[^']|'')*')")
_NAME = re.compile(r"/\* tenure: (\w+) \*/")
_RANGE = re.compile(r"\b(job_done|event)_\d+")

# An index has the rows that were fetched by it, and the entries read for that; a table those read from end to end.
_COUNTERS = """
select sum(case relkind when 'i' then pg_stat_get_xact_tuples_fetched(oid)
                        else pg_stat_get_xact_tuples_returned(oid) end)::bigint,
       sum(case relkind when 'i' then pg_stat_get_xact_tuples_returned(oid) else 0 end)::bigint,
       sum(pg_stat_get_xact_blocks_fetched(oid))::bigint
from unnest(%s::oid[]) as asked join pg_class on oid = asked
"""

_RELATIONS = """
with tables as (
    select oid, reltoastrelid from pg_class where relnamespace = 'tenure'::regnamespace and relkind = 'r'
), all_tables as (
    select oid from tables union select reltoastrelid from tables where reltoastrelid <> 0
)
select array_agg(oid) from (
    select oid from all_tables union select indexrelid from pg_index join all_tables on oid = indrelid
) as relation
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement as the server's log has it; the values are literals."""

    text: str
    values: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the query, or the first word of a statement that has none."""
        found = _NAME.search(self.text)
        return found[1] if found else self.text.split(maxsplit=1)[0].strip(";").lower()

    @property
    def is_frame(self) -> bool:
        """Whether it only begins or ends a transaction."""
        return self.name in ("begin", "begin_snapshot", "commit", "rollback", "start")


class Log:
    """The server's log, as far as it is about the code that is watched."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.skip()

    def skip(self) -> None:
        """Go to the end of what was written so far."""
        self._at = self._path.stat().st_size

    def read(self) -> list[Sent]:
        """What was sent since the last time; every server process writes before it answers."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            text = file.read().decode()
        self.skip()
        return list(_sent(text))


def _sent(text: str) -> Iterator[Sent]:
    last: str | None = None
    for entry in _ENTRY.split(text):
        process, _, message = entry.rstrip("\n").partition("|")
        if process != WATCHED:
            continue
        if found := _VALUES.fullmatch(message):
            assert last is not None
            yield Sent(last, tuple(_VALUE.findall(found[1])))
            last = None
            continue
        if last is not None:
            yield Sent(last)
        # An empty statement only tries a connection.
        last = (found[1] or None) if (found := _SENT.fullmatch(message)) else None
    if last is not None:
        yield Sent(last)


@dataclass
class Work:
    """What some statements did together."""

    statements: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    rows: int = 0
    entries: int = 0
    pages: int = 0
    wal: int = 0
    #: Query → what its plans are made of, for these values and for any.
    plans: dict[str, set[str]] = field(default_factory=dict)


class Second:
    """The second database, which takes the steps of the first one."""

    def __init__(self, dsn: str) -> None:
        # The engine's own settings, and no prepared statements but those made here.
        self._connection = psycopg.connect(engine_dsn(dsn), autocommit=True, prepare_threshold=None)
        self._relations = one(self._connection, _RELATIONS)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def run(self, query: LiteralString) -> None:
        """Do something that is not counted."""
        self._connection.execute(query)

    def follow(self, sent: Iterable[Sent]) -> Work:
        """Take the same steps, in one transaction, and say what they did."""
        work = Work()
        before = self._lsn()
        with self._connection.transaction():
            for statement in (each for each in sent if not each.is_frame):
                self._follow(statement, work)
        work.wal = one(self._connection, f"select (pg_current_wal_insert_lsn() - '{before}'::pg_lsn)::bigint")
        return work

    def _follow(self, statement: Sent, work: Work) -> None:
        work.statements[statement.name] += 1
        values = f"({', '.join(statement.values)})" if statement.values else ""
        self._connection.execute(b"prepare probe as " + statement.text.encode())
        plan = work.plans.setdefault(statement.name, set())
        for kind in ("custom", "generic"):
            self._connection.execute(f"set local plan_cache_mode = force_{kind}_plan".encode())
            plan |= parts(one(self._connection, f"explain (format json, costs off) execute probe {values}")[0]["Plan"])
        # Planned already, for any values: planning looks at pages of its own, and goes on only until a plan is kept.
        before = self._counters()
        self._connection.execute(f"execute probe {values}".encode())
        rows, entries, pages = (now - was for now, was in zip(self._counters(), before, strict=True))
        work.rows, work.entries, work.pages = work.rows + rows, work.entries + entries, work.pages + pages
        self._connection.execute("deallocate probe")

    def _counters(self) -> tuple[int, int, int]:
        (row,) = self._connection.execute(_COUNTERS, [self._relations]).fetchall()
        return row

    def _lsn(self) -> str:
        return str(one(self._connection, "select pg_current_wal_insert_lsn()"))


def parts(plan: dict[str, Any]) -> set[str]:
    """What a plan is made of: its nodes, with the tables and indexes that they read or write; ranges are one table."""
    words = [plan["Operation"] if plan["Node Type"] == "ModifyTable" else plan["Node Type"]]
    for word, key in (("using", "Index Name"), ("on", "Relation Name")):
        if key in plan:
            words += [word, plan[key]]
    if "Index Name" in plan and "Index Cond" not in plan:
        words.append("as a whole")  # unless it ends early, which only the rows tell
    found = {_RANGE.sub(r"\1", " ".join(words))}
    for below in plan.get("Plans", ()):
        found |= parts(below)
    return found


def counted(sent: Iterable[Sent]) -> Work:
    """Statements and commits of what was sent, for steps that only the first database takes."""
    work, open_frame = Work(), False
    for statement in sent:
        if not statement.is_frame:
            work.statements[statement.name] += 1
        elif statement.name in ("begin", "start"):
            open_frame = True
            continue
        else:
            open_frame = False
        work.commits += not open_frame
    return work


def watched(dsn: str) -> str:
    """The address for code whose statements are to be read in the log."""
    return make_conninfo(dsn, application_name=WATCHED)
