"""Connections of the engine: the settings that its statements rely on, timeouts, and translated errors.

    direct           the connection carries the settings for its whole life
    behind a pooler  each transaction may use another session: it sets the settings itself (`shared_sessions.py`), and
                     nothing is prepared, because prepared statements would stay in the session

Only the engine's own connections get the planner settings, never one that runs users' SQL. They are needed because from
the statistics of an empty table PostgreSQL would choose scans and sorts that read every dead index entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from tenure.errors import BadInput, CannotConnect, ConnectionLost, NotPermitted, SchemaMissing, Unavailable

LOCK_TIMEOUT_MS = 5_000
#: Statement timeouts: of upkeep and operators' commands, which read whole ranges; and of every other call.
STATEMENT_TIMEOUT_MS = 120_000
CALL_TIMEOUT_MS = 30_000
#: PostgreSQL ends a session that is idle inside a transaction for this long and releases its locks: the process is
#: frozen or cut off. The engine itself never waits between two statements.
IDLE_IN_TRANSACTION_MS = 10_000

#: A silent peer is noticed within half a minute, not after hours. The address may override these.
DEADLINES = {
    "application_name": "tenure", "connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5",
    "keepalives_count": "3", "tcp_user_timeout": "20000",
}  # fmt: skip

#: The same on the server, for a client whose machine is gone. PostgreSQL ignores them on a local socket.
SERVER_DEADLINES = {
    "tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
}  # fmt: skip

#: jit is off because the cost of disabled plan nodes would compile every statement.
PLANNER = {
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "enable_hashjoin": "off",
    "enable_mergejoin": "off", "jit": "off", "timezone": "UTC",
}  # fmt: skip

#: Settings that a role or a database may have changed and that the engine relies on: how values are read and written,
#: and which plans exist.
STANDARD = {
    "array_nulls": "on", "bytea_output": "hex", "client_encoding": "UTF8", "datestyle": "ISO, MDY",
    "enable_indexonlyscan": "on", "enable_indexscan": "on", "enable_nestloop": "on", "enable_partition_pruning": "on",
    "extra_float_digits": "1", "intervalstyle": "postgres", "plan_cache_mode": "auto",
    "standard_conforming_strings": "on", "transform_null_equals": "off",
}  # fmt: skip


#: PgBouncer's error for a connection with settings.
_SETTINGS_REFUSED = "unsupported startup parameter"

#: Errors of a server that is reachable and refuses the login.
_LOGIN_REFUSED = re.compile(
    r'authentication failed|no pg_hba\.conf entry|(database|role) "[^"]*" does not exist|no such (user|database)'
)

#: Errors caused by the locks of another transaction: the caller decides whether to try again.
LOCK_ERRORS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)
UNSTORABLE = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
#: PostgreSQL rolled the transaction back, and the session cannot be used any more.
SESSION_ENDED = (
    psycopg.errors.IdleSessionTimeout,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.ReadOnlySqlTransaction,
)
_SHUTTING_DOWN = ("57P01", "57P02", "57P03", "57P05")
_MISSING = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parts of a database address; refuses an invalid one without repeating it."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        begins = f"begins with {dsn.split('://')[0]}://" if "://" in dsn else "has no postgresql:// in front"
        raise BadInput(
            f"the address of the database {begins}; PostgreSQL's is postgresql://user:password@host:port/database"
        ) from None


def session_settings(statement_ms: int | None = None) -> dict[str, str]:
    """Return the settings of every statement of the engine; `statement_ms` is the statement timeout."""
    timeouts = {
        "lock_timeout": LOCK_TIMEOUT_MS,
        "statement_timeout": STATEMENT_TIMEOUT_MS if statement_ms is None else statement_ms,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
    }
    return {**PLANNER, **STANDARD, **{name: str(value) for name, value in timeouts.items()}}


def engine_dsn(dsn: str, statement_ms: int | None = None) -> str:
    """Return the same address with the engine's settings on every connection."""
    settings = {**session_settings(statement_ms), **SERVER_DEADLINES, "default_transaction_isolation": "read committed"}
    ours = " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())
    return plain_dsn(dsn, options=f"{parse_dsn(dsn).get('options') or ''} {ours}".strip())


def plain_dsn(dsn: str, application_name: str = "tenure", **more: str) -> str:
    """Return the same address for connections without engine queries, or that set the settings themselves."""
    given = parse_dsn(dsn)
    ours = {**DEADLINES, "application_name": application_name}
    missing = {name: value for name, value in ours.items() if name not in given}
    return make_conninfo(dsn, **missing, **_always(given), **more)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _always(given: dict[str, Any]) -> dict[str, str]:
    """Force UTF-8; and if the address names several servers, choose the one that accepts writes."""
    ours = {"client_encoding": "UTF8"}
    hosts = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")
    if "," in hosts and "target_session_attrs" not in given and "PGTARGETSESSIONATTRS" not in os.environ:
        ours["target_session_attrs"] = "read-write"
    return ours


async def probe_dsn(dsn: str, statement_ms: int | None = None) -> tuple[str, bool]:
    """Return the engine's address, and whether a pooler is in between; refuses an unsuitable database.

    A pooler refuses the settings of a session, or accepts them and forgets them.
    """
    address = engine_dsn(dsn, statement_ms)
    with translate_connect_errors():
        try:
            if (await _in_force(address))["enable_seqscan"] == "off":
                return address, False
        except psycopg.OperationalError as error:
            if _SETTINGS_REFUSED not in str(error):
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
    """Return the settings of a new connection."""
    names = ["enable_seqscan", "default_transaction_isolation"]
    async with await psycopg.AsyncConnection.connect(address, autocommit=True, prepare_threshold=None) as connection:
        cursor = await connection.execute("select name, setting from pg_settings where name = any(%s)", [names])
        return dict(await cursor.fetchall())


@contextmanager
def translate_connect_errors() -> Iterator[None]:
    """Raise NotPermitted or CannotConnect for a failed first connection."""
    try:
        yield
    except psycopg.OperationalError as error:
        why = " ".join(str(error).split())
        if _LOGIN_REFUSED.search(why):  # the server is reachable, so a retry does not help
            raise NotPermitted(f"{why}. Next: check the name of the database, the role and its password") from error
        raise CannotConnect(f"{why}. Next: check the address of the database, and that it runs") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return " ".join((str(error).splitlines() or ["no answer"])[0].split())


def is_unstorable(error: BadInput) -> bool:
    """Whether a text was refused because this database cannot store it."""
    return isinstance(error.__cause__, (UnicodeEncodeError, *UNSTORABLE))


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise Tenure's error for an error of the driver."""
    try:
        yield
    except (*LOCK_ERRORS, psycopg.errors.InFailedSqlTransaction):
        raise
    except _MISSING as error:
        what = first_line(error)
        raise SchemaMissing(f"the database lacks part of Tenure's schema ({what}). Next: tenure migrate") from error
    except PoolClosed:
        raise BadInput("this store is closed. Next: open a new one") from None
    except (PoolTimeout, TooManyRequests) as error:
        raise CannotConnect(
            f"no connection became free in time ({error}); nothing was done. Next: try again"
        ) from error
    except (UnicodeEncodeError, *UNSTORABLE) as error:
        what = first_line(error)
        raise BadInput(
            f"a text has a character that this database or connection cannot store ({what}); nothing was written. "
            "Next: leave the character out, or use a database with encoding UTF8"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotPermitted(
            f"this role is not permitted to do that ({first_line(error)}); nothing was done. "
            "Next: tenure migrate --grants, or another role"
        ) from error
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        what, code = first_line(error), error.sqlstate
        is_internal = isinstance(error, psycopg.InternalError)  # for example a read-only server, such as a standby
        if not is_internal and (code is None or code[:2] == "08" or code in _SHUTTING_DOWN):
            raise ConnectionLost(
                f"the connection to the database broke ({what}); the call may or may not have happened. "
                "Next: repeat it with the same key"
            ) from error
        raise Unavailable(
            f"PostgreSQL could not execute the call ({what}); nothing was done. Next: try again later"
        ) from error
