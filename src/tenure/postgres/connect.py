"""Connections of the engine: planner settings that hold on an empty table, timeouts, and errors in our own words.

    direct           the settings come with the connection, and hold as long as it
    behind a pooler  another session with every transaction: the settings come with each (see `borrowed`), and nothing
                     is prepared, because it would stay behind with the session

The planner settings belong on the engine's own connections alone, never on one that runs users' SQL: from the
statistics of an empty table PostgreSQL would choose scans and sorts that read every dead index entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from tenure.errors import BadInput, CannotConnect, ConnectionLost, NotPermitted, SchemaMissing, Unavailable

LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 120_000

#: A peer that went silent is noticed within half a minute, not after hours. The address may say otherwise.
DEADLINES = {
    "application_name": "tenure", "connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5",
    "keepalives_count": "3", "tcp_user_timeout": "20000",
}  # fmt: skip

#: jit is off because a disabled plan node's price would set the compiler to work on every statement.
PLANNER = {
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "enable_hashjoin": "off",
    "enable_mergejoin": "off", "jit": "off", "timezone": "UTC",
}  # fmt: skip


#: What PgBouncer says to a connection that comes with settings.
_NO_SETTINGS = "unsupported startup parameter"

#: What a server says that is there, to whom it will not let in.
_TURNED_AWAY = re.compile(
    r'authentication failed|no pg_hba\.conf entry|(database|role) "[^"]*" does not exist|no such (user|database)'
)

_TRIED_AGAIN = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)
_SHUTTING_DOWN = ("57P01", "57P02", "57P03", "57P05")
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


def settings() -> dict[str, str]:
    """What every statement of the engine runs under."""
    timeouts = {"lock_timeout": str(LOCK_TIMEOUT_MS), "statement_timeout": str(STATEMENT_TIMEOUT_MS)}
    return {**PLANNER, **timeouts}


def engine_dsn(dsn: str) -> str:
    """The same database, with the engine's settings on every connection."""
    given = checked(dsn)
    options = {**settings(), "default_transaction_isolation": "read\\ committed"}
    ours = " ".join(f"-c {name}={value}" for name, value in options.items())
    merged = f"{given.get('options') or ''} {ours}".strip()
    return make_conninfo(dsn, options=merged, **_unless_given(given, DEADLINES))


def plain_dsn(dsn: str, application_name: str = "tenure") -> str:
    """The same database for what runs no query of the engine's, or sets the engine's settings itself."""
    ours = {**DEADLINES, "application_name": application_name}
    return make_conninfo(dsn, **_unless_given(checked(dsn), ours))


async def reached(dsn: str) -> tuple[str, bool]:
    """Where the engine connects, and whether a pooler stands in between; refuses a database that it cannot work on.

    A pooler refuses the settings of a session, or takes them and forgets them.
    """
    address = engine_dsn(dsn)
    with connecting():
        try:
            if (await _in_force(address))["enable_seqscan"] == "off":
                return address, False
        except psycopg.OperationalError as error:
            if _NO_SETTINGS not in str(error):
                raise
        address = plain_dsn(dsn)
        found = await _in_force(address)
    if found["default_transaction_isolation"] != "read committed":
        raise BadInput(
            f"transactions behind this pooler run at {found['default_transaction_isolation']}, and Tenure needs read "
            "committed. Next: alter role … set default_transaction_isolation = 'read committed'"
        )
    return address, True


async def _in_force(address: str) -> dict[str, str]:
    """Settings as they are on a new connection."""
    names = ["enable_seqscan", "default_transaction_isolation"]
    async with await psycopg.AsyncConnection.connect(address, autocommit=True, prepare_threshold=None) as connection:
        cursor = await connection.execute("select name, setting from pg_settings where name = any(%s)", [names])
        return dict(await cursor.fetchall())


def _unless_given(given: dict[str, Any], ours: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in ours.items() if name not in given}


@contextmanager
def connecting() -> Iterator[None]:
    """Say why a first connection could not be had."""
    try:
        yield
    except psycopg.OperationalError as error:
        why = " ".join(str(error).split())
        if _TURNED_AWAY.search(why):  # it is there, and waiting does not help
            raise NotPermitted(f"{why}. Next: check the name of the database, the role and its password") from error
        raise CannotConnect(f"{why}. Next: check the address of the database, and that it runs") from error


@contextmanager
def our_errors() -> Iterator[None]:
    """Say what a driver's error means for the caller."""
    try:
        yield
    except _MISSING as error:
        what = str(error).splitlines()[0]
        raise SchemaMissing(f"the database lacks part of Tenure's schema ({what}). Next: tenure migrate") from error
    except PoolClosed:
        raise BadInput("this store is closed. Next: open another one") from None
    except (PoolTimeout, TooManyRequests) as error:
        raise CannotConnect(
            f"no connection could be had in time ({error}); nothing was done. Next: try again"
        ) from error
    except _TRIED_AGAIN:
        raise
    except psycopg.errors.InsufficientPrivilege as error:
        what = str(error).splitlines()[0]
        raise NotPermitted(
            f"this role may not do that ({what}); nothing was done. Next: tenure migrate --grants, or another role"
        ) from error
    except psycopg.OperationalError as error:
        what = str(error).splitlines()[0] if str(error) else "no answer"
        if error.sqlstate is None or error.sqlstate[:2] == "08" or error.sqlstate in _SHUTTING_DOWN:
            raise ConnectionLost(
                f"the database went away ({what}); the call may or may not have happened. "
                "Next: repeat it with the same key"
            ) from error
        raise Unavailable(f"PostgreSQL could not do it ({what}); nothing was done. Next: try again later") from error
    except psycopg.errors.InFailedSqlTransaction:
        raise
    except psycopg.InternalError as error:  # a server that only reads, as a standby does, among others
        what = str(error).splitlines()[0] if str(error) else "an internal error"
        raise Unavailable(f"PostgreSQL could not do it ({what}); nothing was done. Next: try again later") from error
