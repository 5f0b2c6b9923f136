"""A database with every kind of job, lived once: tests share it, and what one has changed is put back after it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tenure.postgres.store import Store
from tests.conftest import Databases, is_left, own_database
from tests.harness import Harness
from tests.proof.histories import Lived, live_all, retire_a_range

_TABLES = (
    "job", "job_done", "event", "dead_letter", "effect", "key", "claim", "rerun", "range", "contract", "job_type",
    "outbox",
)  # fmt: skip


@dataclass
class World:
    """A database in which all these lives were lived."""

    dsn: str
    lived: Lived


@pytest.fixture(scope="session")
def lived_once(databases: Databases) -> Iterator[World]:
    """The database as it was lived, with a copy of every row in a schema of its own."""
    with own_database(databases.server, f"template {databases.template}") as dsn:

        async def make() -> Lived:
            with Harness(dsn) as db:
                async with Store.open(dsn) as store:
                    await retire_a_range(store, db)
                    lived = await live_all(store, db)
                db.sql("create schema kept")
                for table in _TABLES:
                    db.sql(f"create table kept.{table} as select * from tenure.{table}")
                db.sql("create table kept.ids as select last_value from tenure.job_id_seq")
                return lived

        yield World(dsn, asyncio.run(make()))


@pytest.fixture
def world(lived_once: World) -> Iterator[World]:
    """It, for a test that changes rows: they are put back."""
    yield lived_once
    with psycopg.connect(lived_once.dsn, autocommit=True) as connection, connection.transaction():
        connection.execute("set local session_replication_role = replica")
        for table in _TABLES:
            connection.execute(f"truncate tenure.{table}".encode())
            connection.execute(
                f"insert into tenure.{table} overriding system value select * from kept.{table}".encode()
            )
        connection.execute("select setval('tenure.job_id_seq', last_value) from kept.ids")


@pytest.fixture
def own_world(databases: Databases, lived_once: World) -> Iterator[World]:
    """A copy of it, for a test that changes tables."""
    name = str(conninfo_to_dict(lived_once.dsn)["dbname"])
    with psycopg.connect(databases.server, autocommit=True) as server:
        assert is_left(server, name)
    with own_database(databases.server, f"template {name}") as dsn:
        yield World(dsn, lived_once.lived)
