"""One PostgreSQL per run, one database per test, copied from a migrated template."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.embedded import Cluster
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.harness import Harness

_TEMPLATE = "tenure_template"

# Tests kill processes, not machines: what PostgreSQL was told is safe in the operating system's memory.
_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "256MB", "max_wal_size": "4GB"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of this run's PostgreSQL: DATABASE_URL, or an embedded one that all test processes share."""
    if given := os.environ.get("TENURE_TEST_DATABASE_URL"):
        yield given
        return
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with Cluster(shared / "cluster", settings=_SETTINGS) as cluster:
        yield cluster.dsn


@pytest.fixture(scope="session")
def template(server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database that is only ever copied; the first test process makes it."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with (shared / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = Path(f"{lock.name}.done")
        if not done.exists():
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"create database {_TEMPLATE}")
            migrate(make_conninfo(server, dbname=_TEMPLATE))
            done.touch()
    return _TEMPLATE


@contextmanager
def own_database(server: str, options: str = "") -> Iterator[str]:
    """A database that is gone afterwards, whoever is still connected."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name} {options}".encode())
        yield make_conninfo(server, dbname=name)
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def dsn(server: str, template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    with own_database(server, f"template {template}") as made:
        yield made


@pytest.fixture
def empty_dsn(server: str) -> Iterator[str]:
    """A database of this test's own in which nothing was made yet."""
    with own_database(server) as made:
        yield made


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    """The kernel's verbs on this test's database."""
    async with Store.open(dsn) as opened:
        yield opened


@pytest.fixture
def db(dsn: str) -> Iterator[Harness]:
    """This test's own eyes and hands in its database, as superuser."""
    with Harness(dsn) as harness:
        yield harness
