"""No call in these tests gives up waiting for a lock unless its test says so."""

from __future__ import annotations

import pytest

from tenure.postgres import connect


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lock be waited for longer than any test takes: a slow machine may release it late."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100_000)
