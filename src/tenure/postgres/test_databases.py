"""Databases for tests: copies of a migrated template, each marked as made for tests.

The mark is the database's comment. The name of a template contains the hash of its schema; it is made once per server,
and processes that need it at the same time wait for the first one.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tenure.contracts.declaration import Contract
from tenure.postgres.migrate import migrate, render_sql
from tenure.postgres.settle import settle_plan
from tenure.postgres.store import Store
from tenure.postgres.upkeep_verbs import promote_plan, reap_plan

MARK: Final = "made for tests by tenure"
_COMPLETE: Final = "a template of databases for tests, by tenure"
_COMMENT: Final = "select shobj_description(oid, 'pg_database') from pg_database where datname = %s"


class TestDatabases:
    """Lends one database after another; the next copy is made while a test runs."""

    __test__ = False  # not a test class, despite its name

    def __init__(self, server: str) -> None:
        """`server` is the address of a database on it, as a role that may create databases."""
        self._server = server
        self._template = _template(server)
        self._beside = ThreadPoolExecutor(1, "tenure-test-databases")
        self._next: Future[str] | None = None

    def lend(self) -> str:
        """Return the address of a database that no test has used."""
        name = self._copy() if self._next is None else self._next.result()
        self._next = self._beside.submit(self._copy)
        return _address(self._server, name)

    def take_back(self, address: str) -> None:
        """Drop a lent database in the background, even if sessions are connected."""
        name = psycopg.conninfo.conninfo_to_dict(address)["dbname"]
        self._beside.submit(self._drop, str(name))

    def close(self) -> None:
        """Drop the prepared database that was not lent."""
        if self._next is not None:
            self._beside.submit(self._drop, self._next.result())
        self._beside.shutdown()

    def _copy(self) -> str:
        name = f"tenure_test_{uuid.uuid4().hex[:16]}"
        with psycopg.connect(self._server, autocommit=True) as connection:
            copied = sql.SQL("create database {} template {}")
            connection.execute(copied.format(sql.Identifier(name), sql.Identifier(self._template)))
            _comment(connection, name, MARK)
        return name

    def _drop(self, name: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _template(server: str) -> str:
    """Return the name of the migrated template database on this server; creates it if needed."""
    name = f"tenure_template_{hashlib.sha256(render_sql().encode()).hexdigest()[:16]}"
    with psycopg.connect(server, autocommit=True) as connection:
        # Held until the connection closes: a second process then finds the template.
        connection.execute("select pg_advisory_lock(hashtext(%s))", [name])
        found = connection.execute(_COMMENT, [name]).fetchone()
        if found != (_COMPLETE,):
            if found is not None:  # a killed process left it incomplete
                connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            migrate(_address(server, name))
            _comment(connection, name, _COMPLETE)
    return name


def _comment(connection: psycopg.Connection[Any], name: str, text: str) -> None:
    command = sql.SQL("comment on database {} is {}").format(sql.Identifier(name), sql.Literal(text))
    connection.execute(command)


def _address(server: str, name: str) -> str:
    """Return the address of another database on the same server, in the same form."""
    if server.startswith(("postgresql://", "postgres://")):
        return urlsplit(server)._replace(path=f"/{name}").geturl()
    return make_conninfo(server, dbname=name)


async def foreign_database_name(store: Store) -> str | None:
    """Return the name of a store's database if it was not made for tests, else None."""
    ((name, comment),) = await store._engine.ask("read_database_comment")
    return None if comment == MARK else str(name)


def mark(address: str) -> bool:
    """Mark a database as made for tests; returns False and does nothing if it ever had jobs."""
    with psycopg.connect(address, autocommit=True) as connection:
        (name,) = connection.execute("select current_database()").fetchone() or ("",)
        if connection.execute(_COMMENT, [name]).fetchone() == (MARK,):
            return True
        if connection.execute("select is_called from tenure.job_id_seq").fetchone() != (False,):
            return False
        _comment(connection, name, MARK)
        return True


def register(address: str, contracts: Mapping[str, Contract]) -> None:
    """Register contracts in a database that was made for tests; leaves any other as it is."""
    with psycopg.connect(address, autocommit=True) as connection:
        (name,) = connection.execute("select current_database()").fetchone() or ("",)
        is_for_tests = connection.execute(_COMMENT, [name]).fetchone() == (MARK,)
    if is_for_tests:
        migrate(address, contracts)


async def advance(store: Store, span: timedelta, types: Sequence[str]) -> None:
    """Make every live job of these types older by this span."""
    await store._engine.ask("advance_test_clock", seconds=span.total_seconds(), types=list(types))


async def upkeep(store: Store, contract: str, types: Sequence[str]) -> None:
    """Run one round of upkeep for the jobs of these types only."""
    rows = await store._engine.ask("list_live_of_types", contract=contract, types=list(types))
    ids = [row[0] for row in rows]
    if ids:
        for plan in (settle_plan, reap_plan, promote_plan):
            await store._each_version(contract, len(ids), partial(plan, ids=ids))
