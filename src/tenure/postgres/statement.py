"""Statements, and the two small runners that execute them.

A verb is a generator: it yields statements and is sent their rows. It never waits, so synchronous and asynchronous
code share it; only the runners at the bottom of this file know a connection.

    verb ──Statement──▶ runner ──▶ PostgreSQL
         ◀───rows──────        ◀──
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

import psycopg
from psycopg.rows import tuple_row

from tenure.intake import MAX_BATCH

T = TypeVar("T")
Row = tuple[Any, ...]
Value = str | bool | None

#: What one statement carries at the most.
_MAX_BYTES = 16 * 1024 * 1024
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@dataclass(frozen=True, slots=True)
class Query:
    """A named .sql file: its text with $1, $2… for PostgreSQL, and the names they stand for."""

    name: str
    text: str
    names: tuple[str, ...]


@cache
def query(name: str, skip_locked: bool = False, parts: tuple[str, ...] = ()) -> Query:
    """Read queries/NAME.sql; `:name` becomes a numbered parameter. It may be told not to wait for locked rows.

    A line that begins with `--word:` is part of the statement only for callers that ask for that word: what few need
    must not make the plan dearer for all.
    """
    source = files("tenure.postgres").joinpath(f"queries/{name}.sql").read_text(encoding="utf-8")
    for part in parts:
        source = source.replace(f"--{part}:", "")
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    body = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("--"))
    if skip_locked:
        body = body.replace("for update", "for update skip locked")
    return Query(name, f"/* tenure: {name} */ " + _PARAMETER.sub(number, body).strip(), tuple(names))


@dataclass(frozen=True, slots=True)
class Statement:
    """One query with its values."""

    query: Query
    values: tuple[Value, ...]
    #: A command that PostgreSQL refuses inside of a transaction: the setting that says how long it may take.
    alone: Literal["lock_timeout", "statement_timeout"] | None = None


@dataclass(frozen=True, slots=True)
class Atomic:
    """Steps that commit together or not at all; `steady` ones only read, and all of one moment."""

    plan: Plan[Any]
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Bounded:
    """A statement that we give up after so many seconds, where PostgreSQL cannot be told to."""

    statement: Statement
    seconds: float


Step = Statement | Atomic | Bounded
Plan = Generator[Step, Any, T]


def statement(
    name: str, values: Mapping[str, Any], *, skip_locked: bool = False, parts: tuple[str, ...] = ()
) -> Statement:
    """Bind values to a named query; each goes as text that the query casts, so no plan changes with a type."""
    found = query(name, skip_locked, parts)
    return Statement(found, tuple(bound(values.get(name)) for name in found.names))


def bound(value: Any) -> Value:
    """A value as PostgreSQL reads it."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return array(value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def array(values: Iterable[Any]) -> str:
    """A PostgreSQL array literal. Columns of one kind are written at once: a batch has thousands of values."""
    listed = list(values)
    kinds = set(map(type, listed))
    if kinds == {int}:
        return "{" + ",".join(map(str, listed)) + "}"
    if kinds == {str}:
        # No text has a NUL (PostgreSQL could not store it), so it can stand between them while all are escaped.
        return '{"' + _escaped("\x00".join(listed)).replace("\x00", '","') + '"}'
    return "{" + ",".join("NULL" if value is None else f'"{_escaped(str(value))}"' for value in listed) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def if_any(column: list[Any]) -> list[Any]:
    """A column that is mostly absent: nothing where nobody gave it, because unnest makes NULLs of that."""
    return [] if column.count(None) == len(column) else column


def carried(which: Sequence[int], texts: Sequence[str | None]) -> Iterator[list[int]]:
    """These places, in parts whose texts one statement can carry."""
    sizes = [len(texts[n] or "") for n in which]
    if not which:
        return
    if len(which) <= MAX_BATCH and sum(sizes) <= _MAX_BYTES:
        yield list(which)
        return
    part: list[int] = []
    total = 0
    for n, size in zip(which, sizes, strict=True):
        if part and (total + size > _MAX_BYTES or len(part) == MAX_BATCH):
            yield part
            part, total = [], 0
        part.append(n)
        total += size
    yield part


async def run(connection: psycopg.AsyncConnection[Any], plan: Plan[T]) -> T:
    """Execute a verb on an asynchronous connection."""
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Atomic):
                    async with connection.transaction():
                        if step.steady:
                            await _execute(connection, _STEADY)
                        answer: Any = await run(connection, step.plan)
                else:
                    cursor = await _execute(connection, step)
                    answer = await cursor.fetchall() if _has_rows(cursor) else []
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _execute(connection: psycopg.AsyncConnection[Any], step: Statement | Bounded) -> psycopg.AsyncRawCursor[Row]:
    if isinstance(step, Bounded):
        try:
            async with asyncio.timeout(step.seconds):
                return await _execute(connection, step.statement)
        except TimeoutError:
            raise psycopg.errors.LockNotAvailable(f"it took longer than {step.seconds:g} s") from None
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    await cursor.execute(step.query.text, step.values, binary=True)
    return cursor


def run_sync(connection: psycopg.Connection[Any], plan: Plan[T]) -> T:
    """Execute a verb on a synchronous connection."""
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Atomic):
                    with connection.transaction():
                        if step.steady:
                            _execute_sync(connection, _STEADY)
                        answer: Any = run_sync(connection, step.plan)
                else:
                    cursor = _execute_sync(connection, step)
                    answer = cursor.fetchall() if _has_rows(cursor) else []
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _execute_sync(connection: psycopg.Connection[Any], step: Statement | Bounded) -> psycopg.RawCursor[Row]:
    if isinstance(step, Bounded):  # whoever waits for a synchronous connection interrupts it himself
        return _execute_sync(connection, step.statement)
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    cursor.execute(step.query.text, step.values, binary=True)
    return cursor


def _has_rows(cursor: psycopg.AsyncRawCursor[Row] | psycopg.RawCursor[Row]) -> bool:
    """Whether there is an answer to fetch; asked of the result, because describing its columns costs more than it."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


_STEADY = statement("steady", {})
