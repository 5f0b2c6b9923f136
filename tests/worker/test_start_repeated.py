"""A start whose answer was lost is said again, and costs no attempt: beside the database and through a dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tenure.app import App
from tenure.client.remote import RemoteClient
from tenure.errors import ConnectionLost
from tenure.jobs.holder_call import HolderCall
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.harness import Harness
from tests.http.processes import dispatching
from tests.worker.working import until, working


def losing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *first: str) -> list[int]:
    """Let the first call of this method with these first arguments be made, and its answer be lost; one item a call."""
    real, calls = getattr(owner, name), list[int]()

    async def lost(self: Any, *arguments: Any) -> Any:
        is_counted = arguments[: len(first)] == first
        calls.extend([1] * is_counted)
        answer = await real(self, *arguments)
        if is_counted and len(calls) == 1:
            raise ConnectionLost("the answer was lost. Next: repeat it with the same key")
        return answer

    monkeypatch.setattr(owner, name, lost)
    return calls


async def ran_once(app: App, db: Harness) -> None:
    """Run a job that has one attempt to its end."""
    ran: list[int] = []

    @app.task(contract="reliability", max_attempts=1)
    async def work() -> str:
        ran.append(1)
        return "done"

    async with working(app):
        ticket = await work.enqueue()
        assert await app.result(ticket, timeout=60) == "done"
    assert ran == [1]
    assert db.value("select count(*) from tenure.event where trigger = 'start'") == 1


async def test_lost_answer_to_a_start_spends_no_attempt(app: App, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = losing(monkeypatch, Store, "report", "start")
    await ran_once(app, db)
    assert len(calls) == 2


async def test_lost_answer_to_a_start_through_a_dispatcher_spends_no_attempt(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = losing(monkeypatch, RemoteClient, "_report", "starts")
    with dispatching(dsn, "--log-level", "warning") as (_, url):
        async with App(dispatcher_url=url, settings=Settings()) as app:
            await ran_once(app, db)
    assert len(calls) == 2


async def test_start_that_is_refused_after_a_lost_answer_runs_nothing_when_the_job_was_cancelled_meanwhile(
    app: App, store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @app.task(contract="reliability", max_attempts=2)
    async def work() -> None:
        ran.append(1)

    real = Store.report

    async def taken_meanwhile(self: Store, verb: str, calls: Sequence[HolderCall]) -> Any:
        if verb != "start":
            return await real(self, verb, calls)
        monkeypatch.setattr(Store, "report", real)
        await real(self, verb, calls)
        await store.cancel(calls[0].held.id, mode="hard", actor="operator")
        raise ConnectionLost("the answer was lost. Next: repeat it with the same key")

    monkeypatch.setattr(Store, "report", taken_meanwhile)
    ticket = await work.enqueue()
    async with working(app) as worker:
        await until(lambda: worker.counts["cancelled"] == 1)
    assert ran == []
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "start", "cancel"]
