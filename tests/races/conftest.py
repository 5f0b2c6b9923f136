"""One database per file: every test makes jobs of its own in queues of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.harness import Harness
from tests.races.sessions import Arena, Session


@pytest.fixture(scope="module")
def file_dsn(server: str, template: str) -> Iterator[str]:
    """A migrated database that the tests of one file share."""
    name = f"races_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name} template {template}")
        yield make_conninfo(server, dbname=name)
        connection.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def file_arena(file_dsn: str) -> Iterator[Arena]:
    """The sessions of one file."""
    with Harness(file_dsn) as db, Session(file_dsn, "first") as first, Session(file_dsn, "second") as second:
        yield Arena(file_dsn, db, first, second)


@pytest.fixture
def arena(file_arena: Arena) -> Iterator[Arena]:
    """The file's sessions; whatever the last test left open is rolled back."""
    yield file_arena
    file_arena.first.connection.rollback()
