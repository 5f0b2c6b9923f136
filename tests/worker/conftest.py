"""An application on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tenure.app import App
from tests.worker.rounds import Limits, Polls, Pulse
from tests.worker.working import steady


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """It, without tasks."""
    async with steady(dsn) as app:
        yield app


@pytest.fixture
def pulse(monkeypatch: pytest.MonkeyPatch) -> Pulse:
    """The clock of every heart; it stands still until a test moves it."""
    return Pulse(monkeypatch)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    """How often the workers of this process have looked for jobs."""
    return Polls(monkeypatch)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """The time limits of handlers; they pass when the test says so."""
    return Limits(monkeypatch)


@pytest.fixture
def patient_presence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that give up no write of their row, however slow the machine is: one that has stopped has left."""
    monkeypatch.setattr("tenure.worker.presence._TIMEOUT_S", 60.0)
