"""The sessions of the races serve here too: they prepare what is then killed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from psycopg.conninfo import make_conninfo

from tenure.app import App
from tenure.postgres.store import Store
from tests.faults.kills import VICTIM
from tests.races.conftest import arena, file_arena, file_dsn
from tests.races.sessions import Arena
from tests.worker.working import quick

__all__ = ["arena", "file_arena", "file_dsn", "victim"]


@pytest.fixture
async def victim(arena: Arena) -> AsyncIterator[Store]:
    """A store whose only connection can be found and killed."""
    async with Store.open(make_conninfo(arena.dsn, application_name=VICTIM), connections=1) as store:
        await store.jobs([1])  # connected, and the registry read
        yield store


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application that enqueues with the numbers of the workers, and is closed afterwards."""
    async with quick(dsn) as app:
        yield app
