"""A real dispatcher on a real socket, on the test's own database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenure.http.dispatcher import Dispatcher
from tenure.http.long_poll import ClaimGroup
from tenure.postgres import connect
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.faults.clock import MODULES, MovedClock

#: Files whose tests schemathesis makes while pytest collects them: seconds, in every test process. And the marks of
#: runs that would leave these tests out afterwards.
_GENERATED = {"test_schema.py": "not serial", "test_schema_at_length.py": "not prove"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file that takes seconds to collect when the run's marks exclude all its tests."""
    excluding = _GENERATED.get(collection_path.name)
    return True if excluding and excluding in config.getoption("markexpr") else None


@contextmanager
def serving(dsn: str, *, port: int = 0, **settings: Any) -> Iterator[str]:
    """The address of a dispatcher that runs in a thread of this process."""
    dispatcher = Dispatcher(dsn, Settings(**settings), port=port)
    with dispatcher.in_a_thread():
        yield dispatcher.url


@pytest.fixture
def url(dsn: str) -> Iterator[str]:
    """The address of a dispatcher without keys, open to this machine, that may run jobs by request."""
    with serving(dsn, internal_run=True) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx2.Client]:
    """A client of that dispatcher."""
    with httpx2.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[ClaimGroup]:
    """The line of each claim, in the order in which they began to wait in the dispatchers of this process."""
    lines: list[ClaimGroup] = []
    wait = ClaimGroup._wait

    async def seen(line: ClaimGroup, rung: asyncio.Event, seconds: float) -> None:
        lines.append(line)
        await wait(line, rung, seconds)

    monkeypatch.setattr(ClaimGroup, "_wait", seen)
    return lines


class Clock:
    """The clock of the workers in this process: so many seconds ahead."""

    ahead = 0.0

    def now(self) -> float:
        """What it shows."""
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves."""
    moved = Clock()
    for module in MODULES:
        monkeypatch.setattr(module, "time", MovedClock(lambda: moved.ahead))
    return moved


@pytest.fixture
async def patient_store(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store that waits for a lock for as long as a test may take."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100_000)
    async with Store.open(dsn) as opened:
        yield opened


def new_key(
    dsn: str, name: str, *scopes: str, tenant: str | None = None, person: str | None = None, revoked: bool = False
) -> str:
    """Make a key; its text."""

    async def make() -> str:
        async with Store.open(dsn, connections=1) as store:
            key, text = await store.keys.create(name, scopes, tenant, person, "test", 3_600)
            if revoked:
                await store.keys.revoke(key.id, "test")
            return text

    return asyncio.run(make())


class Caller:
    """Calls a dispatcher, and expects what it is told to."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client

    def post(self, path: str, body: Any = None, *, status: int = 200, **headers: str) -> Any:
        """The answer to a POST with this body."""
        return self._answer(self.client.post(path, json=body, headers=headers), status)

    def get(self, path: str, *, status: int = 200, **params: Any) -> Any:
        """The answer to a GET."""
        return self._answer(self.client.get(path, params=params), status)

    def _answer(self, response: httpx2.Response, status: int) -> Any:
        assert response.status_code == status, response.text
        return response.json()

    def refused(self, path: str, body: Any, status: int, code: str) -> Any:
        """The error of a POST that is refused so."""
        error = self.post(path, body, status=status)["error"]
        assert error["code"] == code, error
        return error

    def enqueued(self, contract: str = "standard", **fields: Any) -> str:
        """The id of a new job."""
        made = self.post("/api/v1/jobs", {"type": "t", "contract": contract, **fields}, status=201)
        return str(made["id"])

    def claimed(self, contract: str = "standard", **fields: Any) -> list[dict[str, Any]]:
        """What a claim won, as proofs: the job's id with what its holder shows."""
        asked = {"contract": contract, "worker_id": "w1", "limit": 10, **fields}
        return list(self.post("/api/v1/claims", asked)["claims"])


@pytest.fixture
def http(client: httpx2.Client) -> Caller:
    """Calls that dispatcher."""
    return Caller(client)


def proof(claim: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """What a holder shows, with these facts."""
    return {"claims": claim["claims"], "lease_token": claim["lease_token"], **facts}
