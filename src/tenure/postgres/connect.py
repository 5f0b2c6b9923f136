"""Connections of the engine: planner settings that hold on an empty table, timeouts, and errors in our own words.

The planner settings belong on the engine's own connections alone, never on one that runs users' SQL: from the
statistics of an empty table PostgreSQL would choose scans and sorts that read every dead index entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolClosed, PoolTimeout

from tenure.errors import BadInput, CannotConnect, ConnectionLost, SchemaMissing, TenureError

LOCK_TIMEOUT_MS = 5_000

#: jit is off because a disabled plan node's price would set the compiler to work on every statement.
PLANNER = {
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "enable_hashjoin": "off",
    "enable_mergejoin": "off", "jit": "off", "timezone": "UTC",
}  # fmt: skip


_MISSING = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


def checked(dsn: str) -> dict[str, Any]:
    """The parts of a database's address; refuses what PostgreSQL does not understand, without repeating it."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        begins = f"begins with {dsn.split('://')[0]}://" if "://" in dsn else "has no postgresql:// in front"
        raise BadInput(
            f"the address of the database {begins}; PostgreSQL's is postgresql://user:password@host:port/database"
        ) from None


def engine_dsn(dsn: str) -> str:
    """The same database, with the engine's settings on every connection."""
    given = checked(dsn)
    options = {**PLANNER, "lock_timeout": str(LOCK_TIMEOUT_MS), "default_transaction_isolation": "read\\ committed"}
    ours = " ".join(f"-c {name}={value}" for name, value in options.items())
    merged = f"{given.get('options') or ''} {ours}".strip()
    return make_conninfo(dsn, options=merged, application_name=str(given.get("application_name") or "tenure"))


@contextmanager
def connecting() -> Iterator[None]:
    """Say why a first connection could not be had."""
    try:
        yield
    except psycopg.OperationalError as error:
        why = " ".join(str(error).split())
        raise CannotConnect(f"{why}. Next: check the address of the database, and that it runs") from error


@contextmanager
def our_errors() -> Iterator[None]:
    """Say what a driver's error means for the caller."""
    try:
        yield
    except _MISSING as error:
        what = str(error).splitlines()[0]
        raise SchemaMissing(f"the database lacks part of Tenure's schema ({what}). Next: tenure migrate") from error
    except psycopg.errors.StatementTooComplex as error:
        raise TenureError(f"PostgreSQL found the input too deeply nested: {error}") from error
    except PoolClosed:
        raise BadInput("this store is closed. Next: open another one") from None
    except PoolTimeout as error:
        raise CannotConnect(
            f"no connection could be had in time ({error}); nothing was done. Next: try again"
        ) from error
    except psycopg.OperationalError as error:
        if isinstance(error, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)):
            raise
        what = str(error).splitlines()[0] if str(error) else "no answer"
        raise ConnectionLost(
            f"the database went away ({what}); the call may or may not have happened. Next: repeat it with the same key"
        ) from error
