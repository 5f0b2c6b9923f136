"""Examinations of databases with staged faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.jobs.finding import Finding
from tenure.postgres.doctor.examination import examine
from tenure.postgres.doctor.limits import Limits

Examined = Callable[..., Awaitable[dict[str, Finding]]]


async def look(dsn: str, limits: Limits | None = None, **more: Any) -> dict[str, Finding]:
    """The findings of an examination by their code; of several with one code, the worst."""
    found: dict[str, Finding] = {}
    for one in await examine(dsn, limits=limits, **more):
        assert one.next, f"{one.code} has no next command"
        found.setdefault(one.code, one)
    return found


@pytest.fixture
def examined(dsn: str) -> Examined:
    """Examines this test's database."""

    async def run(limits: Limits | None = None, **more: Any) -> dict[str, Finding]:
        return await look(dsn, limits, **more)

    return run
