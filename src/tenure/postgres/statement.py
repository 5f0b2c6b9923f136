"""Statements, and the two small runners that execute them.

A verb is a generator (a plan): it yields statements and is sent their rows. It never waits, so synchronous and
asynchronous code share it; only the runners at the bottom of this file use a connection.

    verb ──Statement──▶ runner ──▶ PostgreSQL
         ◀───rows──────        ◀──
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

import psycopg
from psycopg.rows import tuple_row

from tenure.jobs.validation import MAX_BATCH
from tenure.postgres.connection_health import is_ended

T = TypeVar("T")
Row = tuple[Any, ...]
Value = str | bool | None

#: The most bytes of text that one statement carries.
_MAX_STATEMENT_BYTES = 16 * 1024 * 1024
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
#: Reads or changes rows of a partitioned table. An INSERT does not: PostgreSQL locks only the partitions of its rows.
_READS_PARTITIONS = re.compile(r"\b(?:from|join|update)\s+tenure\.(?:event|job_done)\b")
#: How a statement begins that may only read, and the words which show that it changes something.
_MAY_ONLY_READ = re.compile(r"(?:/\*[^*]*\*/\s*)?(?:select|with|set)\b")
_CHANGES = re.compile(r"\b(?:insert|update|delete|merge|extend_ranges)\b")


@dataclass(frozen=True, slots=True)
class Query:
    """A named .sql file: its text with $1, $2… for PostgreSQL, and the parameter names behind these numbers."""

    name: str
    text: str
    names: tuple[str, ...]
    #: The text before its parameters were numbered, if ids are written into it (see `_with_ids_written_out`).
    source: str | None = None

    @property
    def changes(self) -> bool:
        """Whether it may change stored rows; a notification changes none."""
        return _MAY_ONLY_READ.match(self.text) is None or _CHANGES.search(self.text) is not None


@cache
def query(name: str) -> Query:
    """Read queries/NAME.sql; each `:name` becomes a numbered parameter."""
    source = files("tenure.postgres").joinpath(f"queries/{name}.sql").read_text(encoding="utf-8")
    body = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("--"))
    body = f"/* tenure: {name} */ " + body.strip()
    return Query(name, *_numbered(body), body if _READS_PARTITIONS.search(body) else None)


def _numbered(source: str, write: Callable[[str], str | None] = lambda _: None) -> tuple[str, tuple[str, ...]]:
    """Replace each `:name` by $1, $2…, or by the text that `write` has for it; returns the text and the names."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if (written := write(match[1])) is not None:
            return written
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _PARAMETER.sub(number, source), tuple(names)


@dataclass(frozen=True, slots=True)
class Statement:
    """One query with its values."""

    query: Query
    values: tuple[Value, ...]
    #: For a command that PostgreSQL refuses inside of a transaction: the setting that limits its time.
    alone: Literal["lock_timeout", "statement_timeout"] | None = None
    #: Give it up after this many seconds: through a pooler no setting limits such a command.
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Atomic:
    """Steps that commit together or not at all.

    With `snapshot` they only read, and all of them read the same snapshot. A `rehearsal` never commits: its steps are
    rolled back when all of them have worked.
    """

    plan: Plan[Any]
    snapshot: bool = False
    rehearsal: bool = False


Step = Statement | Atomic
Plan = Generator[Step, Any, T]


def statement(name: str, values: Mapping[str, Any], *, skip_locked: bool = False) -> Statement:
    """Bind values to a named query, or to its variant that skips locked rows.

    Each value goes as text that the query casts, so no plan changes with a type.
    """
    found = query(f"{name}_skip_locked" if skip_locked else name)
    if found.source is not None:
        return _with_ids_written_out(found.name, found.source, values)
    return Statement(found, tuple(bound(values.get(name)) for name in found.names))


def _with_ids_written_out(name: str, source: str, values: Mapping[str, Any]) -> Statement:
    """Bind values, but write numbers and NULL into the text: PostgreSQL then locks only the partitions of those ids.

    With a parameter in their place, a plan for any value locks every partition of the table, at each execution.
    """

    def write(name: str) -> str | None:
        value = values.get(name)
        if value is None:
            return "null"
        is_ids = type(value) is int or (isinstance(value, (list, tuple)) and all(type(one) is int for one in value))
        return f"'{bound(value)}'" if is_ids else None

    text, names = _numbered(source, write)
    return Statement(Query(name, text, names, source), tuple(bound(values[name]) for name in names))


def bound(value: Any) -> Value:
    """A value in the text form that PostgreSQL reads."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return array(value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def array(values: Iterable[Any]) -> str:
    """A PostgreSQL array literal. A column of one type is written in one step: a batch has thousands of values."""
    listed = list(values)
    kinds = set(map(type, listed))
    if kinds == {int}:
        return "{" + ",".join(map(str, listed)) + "}"
    if kinds == {str}:
        # No text contains NUL (PostgreSQL cannot store it), so it can separate them while all are escaped at once.
        return '{"' + _escaped("\x00".join(listed)).replace("\x00", '","') + '"}'
    return "{" + ",".join("NULL" if value is None else f'"{_escaped(str(value))}"' for value in listed) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def if_any(column: list[Any]) -> list[Any]:
    """An optional column: empty if no job has a value, because unnest fills it up with NULLs."""
    return [] if column.count(None) == len(column) else column


def carried(which: Sequence[int], texts: Sequence[str | None]) -> Iterator[list[int]]:
    """Yield these positions in parts whose texts one statement can carry."""
    sizes = [len(texts[n] or "") for n in which]
    if not which:
        return
    if len(which) <= MAX_BATCH and sum(sizes) <= _MAX_STATEMENT_BYTES:
        yield list(which)
        return
    part: list[int] = []
    total = 0
    for n, size in zip(which, sizes, strict=True):
        if part and (total + size > _MAX_STATEMENT_BYTES or len(part) == MAX_BATCH):
            yield part
            part, total = [], 0
        part.append(n)
        total += size
    yield part


async def run(
    connection: psycopg.AsyncConnection[Any],
    plan: Plan[T],
    done: list[Query] | None = None,
    *,
    atomic: bool = False,
    adapt: Callable[[Step], Step] | None = None,
) -> T:
    """Execute a verb on an asynchronous connection; `atomic`: inside of a transaction.

    Statements that are committed, or executed in the open transaction, are appended to `done`, for use after an error.
    `adapt` replaces each step (see `shared_sessions.py`).
    """
    done = [] if done is None else done
    try:
        step = next(plan)
        while True:
            try:
                step = step if adapt is None else adapt(step)
                if isinstance(step, Atomic):
                    inside: list[Query] = []
                    async with connection.transaction(force_rollback=step.rehearsal):
                        if step.snapshot:
                            await _execute(connection, _BEGIN_SNAPSHOT)
                        answer: Any = await run(connection, step.plan, inside, atomic=True)
                        await _refuse_if_ended(connection)
                    if not step.rehearsal:
                        done += inside
                else:
                    if atomic:
                        await _refuse_if_ended(connection)
                    cursor = await _execute(connection, step)
                    answer = await cursor.fetchall() if _has_rows(cursor) else []
                    done.append(step.query)
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _refuse_if_ended(connection: psycopg.AsyncConnection[Any]) -> None:
    """Refuse to continue a transaction whose session the server has ended: nothing of it was done.

    The next statement, or the commit, would only report that the connection was lost.
    """
    if await is_ended(connection):
        raise psycopg.errors.IdleInTransactionSessionTimeout("the session was ended between two statements")


async def _execute(connection: psycopg.AsyncConnection[Any], step: Statement) -> psycopg.AsyncRawCursor[Row]:
    if step.timeout_s is not None:
        try:
            async with asyncio.timeout(step.timeout_s):
                return await _execute(connection, replace(step, timeout_s=None))
        except TimeoutError:
            raise psycopg.errors.LockNotAvailable(f"it took longer than {step.timeout_s:g} s") from None
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    await cursor.execute(step.query.text, step.values, binary=True, prepare=_prepare(step))
    return cursor


def run_sync(connection: psycopg.Connection[Any], plan: Plan[T]) -> T:
    """Execute a verb on a synchronous connection; no plan of such a connection reads a snapshot."""
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Atomic):
                    with connection.transaction(force_rollback=step.rehearsal):
                        answer: Any = run_sync(connection, step.plan)
                else:
                    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
                    cursor.execute(step.query.text, step.values, binary=True, prepare=_prepare(step))
                    answer = cursor.fetchall() if _has_rows(cursor) else []
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _prepare(step: Statement) -> bool | None:
    """Do not prepare a text that contains ids: it would push the others out of the driver's cache of statements."""
    return None if step.query.source is None else False


def _has_rows(cursor: psycopg.AsyncRawCursor[Row] | psycopg.RawCursor[Row]) -> bool:
    """Whether there are rows to fetch; read from the result, because describing its columns costs more."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


_BEGIN_SNAPSHOT = statement("begin_snapshot", {})
