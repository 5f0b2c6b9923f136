"""The connection of a caller, and the driver's connection inside of it, with an open transaction.

    psycopg      Connection, AsyncConnection                         itself
    asyncpg      Connection, also one of a pool                      itself
    SQLAlchemy   Session, Connection, AsyncSession, AsyncConnection  its driver's connection, by public methods
    Django       connection, connections["…"]                        its psycopg connection

No library is imported here: a connection is known by the module of its class. Nothing is set on it, and only the caller
commits. A connection that would commit each statement alone is refused: the job would exist whatever becomes of the
caller's own rows.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from tenure.errors import BadInput
from tenure.postgres.statement import Plan, run, run_sync, statement

_SQLALCHEMY_SYNC = {"Session", "scoped_session", "Connection"}
_SQLALCHEMY_ASYNC = {"AsyncSession", "async_scoped_session", "AsyncConnection"}
_DRIVERS = {False: "postgresql+psycopg", True: "postgresql+psycopg or postgresql+asyncpg"}


def is_async(connection: object, verb: str) -> bool:
    """Whether calls with this connection are awaited; refuses what is no connection."""
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return isinstance(connection, psycopg.AsyncConnection)
    library, names = _library(connection)
    if library == "sqlalchemy" and names & (_SQLALCHEMY_SYNC | _SQLALCHEMY_ASYNC):
        return bool(names & _SQLALCHEMY_ASYNC)
    if library == "django" and hasattr(connection, "in_atomic_block"):
        return False
    if library == "asyncpg" and hasattr(connection, "is_in_transaction"):
        return True
    raise BadInput(
        f"{verb} needs a psycopg connection, or a connection of asyncpg, SQLAlchemy (also a Session) or Django; got "
        f"{connection!r}. Next: pass the connection of your transaction first, then the arguments"
    )


def open_connection(connection: Any, verb: str) -> psycopg.Connection[Any]:
    """Return the psycopg connection of a synchronous connection; its transaction is open."""
    library, names = _library(connection)
    if library == "django":
        connection = _of_django(connection, verb)
    elif library == "sqlalchemy":
        # A Session gives the connection of its transaction.
        own = connection if "Connection" in names else connection.connection()
        _check_dialect(own, verb, asynchronous=False)
        driver = own.connection.driver_connection
        if not (own.in_transaction() and _is_in_transaction(driver)):
            own.exec_driver_sql("select 1")  # SQLAlchemy begins its transaction
        connection = driver
    psycopg_connection: psycopg.Connection[Any] = connection
    if _must_begin(psycopg_connection, verb):
        run_sync(psycopg_connection, _begin())
    return psycopg_connection


async def open_async_connection(connection: Any, verb: str) -> Any:
    """Return the connection of psycopg or asyncpg of an asynchronous connection; its transaction is open."""
    library, names = _library(connection)
    if library == "sqlalchemy":
        own = connection if "AsyncConnection" in names else await connection.connection()
        _check_dialect(own, verb, asynchronous=True)
        driver = (await own.get_raw_connection()).driver_connection
        if not (own.in_transaction() and _is_in_transaction(driver)):
            await own.exec_driver_sql("select 1")  # SQLAlchemy begins its transaction, which asyncpg would not
        connection = driver
    if not isinstance(connection, psycopg.AsyncConnection):
        if not connection.is_in_transaction():
            raise _not_in_transaction(verb)
    elif _must_begin(connection, verb):
        await run(connection, _begin())
    return connection


def _library(connection: object) -> tuple[str, set[str]]:
    """The library that a connection's class comes from, and the names of its classes there."""
    for library in ("sqlalchemy", "django", "asyncpg"):
        names = {kind.__name__ for kind in type(connection).__mro__ if kind.__module__.partition(".")[0] == library}
        if names:
            return library, names
    return "", set()


def _of_django(connection: Any, verb: str) -> Any:
    if connection.vendor != "postgresql":
        raise BadInput(
            f"{verb} needs a connection to PostgreSQL, and this one of Django is to {connection.vendor}. "
            'Next: pass connections["…"] of the database that has the schema tenure'
        )
    connection.ensure_connection()
    if not isinstance(connection.connection, psycopg.Connection):
        raise BadInput(f"{verb} needs psycopg 3 under Django. Next: uninstall psycopg2, which Django takes otherwise")
    connection.validate_no_broken_transaction()
    return connection.connection


def _check_dialect(own: Any, verb: str, *, asynchronous: bool) -> None:
    dialect = own.dialect
    if not asynchronous and dialect.is_async:
        raise BadInput(
            f"{verb} was given the synchronous side of an asynchronous engine. "
            "Next: pass the AsyncSession or the AsyncConnection, outside of run_sync"
        )
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "asyncpg"):
        raise BadInput(
            f"{verb} needs an engine with the driver {_DRIVERS[asynchronous]}; this one has "
            f"{dialect.name}+{dialect.driver}. Next: write {_DRIVERS[asynchronous]}:// in its address"
        )


def _is_in_transaction(driver: Any) -> bool:
    if isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection)):
        return driver.info.transaction_status is not TransactionStatus.IDLE
    return bool(driver.is_in_transaction())


def _must_begin(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], verb: str) -> bool:
    """Whether a statement must begin the transaction; refuses a connection that has none and begins none."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise BadInput(f"{verb} cannot use a connection in pipeline mode. Next: leave the pipeline")
    if _is_in_transaction(connection):
        return False
    if connection.autocommit:
        raise _not_in_transaction(verb)
    return True


def _begin() -> Plan[None]:
    """Begin the caller's transaction: without it an Atomic step would begin and commit its own."""
    yield statement("begin_transaction", {})


def _not_in_transaction(verb: str) -> BadInput:
    return BadInput(
        f"{verb} needs an open transaction, and this connection commits each statement by itself. Next: call it inside "
        "of `with connection.transaction():` (psycopg), `transaction.atomic()` (Django) or `async with "
        "connection.transaction():` (asyncpg), or use enqueue"
    )
