"""An application on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tenure.app import App
from tests.worker.working import quick


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """It, without tasks."""
    async with quick(dsn) as app:
        yield app
