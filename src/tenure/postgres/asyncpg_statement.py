"""The runner of plans on an asyncpg connection, beside those for psycopg in `statement.py`.

Each value goes as text that PostgreSQL converts, so the codecs of the caller's connection are not used. Errors reach
the plan as psycopg's class of the same SQLSTATE, with asyncpg's error as their cause. asyncpg is not imported.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeVar

import psycopg

from tenure.postgres.statement import Atomic, Plan, Row, Statement, Value

T = TypeVar("T")
_PARAMETER = re.compile(r"\$([0-9]+)(?=::)")


async def run_asyncpg(connection: Any, plan: Plan[T]) -> T:
    """Execute a verb on an asyncpg connection, inside of the open transaction; no plan of it reads a snapshot."""
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Atomic):
                    answer: Any = await _run_atomic(connection, step)
                else:
                    answer = await _execute(connection, step)
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _run_atomic(connection: Any, step: Atomic) -> Any:
    """Run the steps inside of a savepoint. asyncpg's own `transaction()` refuses to nest in one begun by SQL."""
    await _send(connection, "savepoint tenure")
    try:
        answer = await run_asyncpg(connection, step.plan)
    except Exception:
        await _send(connection, "rollback to savepoint tenure")
        await _send(connection, "release savepoint tenure")
        raise
    if step.rehearsal:
        await _send(connection, "rollback to savepoint tenure")
    await _send(connection, "release savepoint tenure")
    return answer


async def _execute(connection: Any, step: Statement) -> list[Row]:
    return [tuple(row) for row in await _send(connection, _with_texts(step.query.text), *map(_text, step.values))]


async def _send(connection: Any, text: str, *values: str | None) -> Any:
    try:
        return await connection.fetch(text, *values)
    except Exception as error:
        if (sqlstate := getattr(error, "sqlstate", None)) is None:
            raise
        raise _psycopg_class(sqlstate)(str(error)) from error


@lru_cache(1_000)
def _with_texts(text: str) -> str:
    """The text of a query with every parameter as text; each is followed by its cast."""
    return _PARAMETER.sub(r"$\1::text", text)


def _text(value: Value) -> str | None:
    return str(value).lower() if isinstance(value, bool) else value


def _psycopg_class(sqlstate: str) -> type[psycopg.Error]:
    try:
        return psycopg.errors.lookup(sqlstate)
    except KeyError:
        return psycopg.DatabaseError
