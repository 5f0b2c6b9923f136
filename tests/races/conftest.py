"""One database per file: every test makes jobs of its own in queues of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clock import SEARCH_PATH, StoppedClock
from tests.conftest import own_database
from tests.harness import Harness
from tests.races.sessions import Arena, Session


@pytest.fixture(scope="module")
def file_dsn(server: str, template: str) -> Iterator[str]:
    """A migrated database that the tests of one file share."""
    with own_database(server, f"template {template}") as made:
        yield made


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


@pytest.fixture
def clock(arena: Arena) -> Iterator[StoppedClock]:
    """A clock that stands still, for the second session."""
    stopped = StoppedClock(arena.db)
    arena.second.sql(f"set search_path = {SEARCH_PATH}")
    yield stopped
    arena.second.sql("reset search_path")
    stopped.remove()
