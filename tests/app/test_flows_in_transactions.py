"""A flow is started in the caller's own transaction, on the real connections of every library that people bring."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from tenure import testing
from tenure.app import App
from tenure.errors import BadInput, FlowConflict
from tenure.flow import FlowGraph
from tenure.middleware import Middleware
from tests.app.callers import done
from tests.app.test_enqueue_in import Bring, bring, django_beside_a_loop
from tests.harness import Harness
from tests.postgres.listening import bare_ear
from tests.worker.working import steady

__all__ = ["bring", "django_beside_a_loop"]


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application with the tasks of a flow."""
    async with steady(dsn) as app:
        declare(app)
        yield app


def declare(app: App) -> None:
    @app.task(queue="mail")
    async def first(text: str) -> str:
        return text

    @app.task
    async def second(text: str) -> str:
        return text * 2


def flow_of(app: App, text: str, **options: str) -> FlowGraph:
    flow = app.flow("two", key="k", **options)  # type: ignore[arg-type]
    flow.chain(app.tasks["first"].call(text), app.tasks["second"])
    return flow


async def test_commit_starts_the_flow_and_rollback_leaves_nothing(
    app: App, db: Harness, dsn: str, bring: Bring
) -> None:
    async with bring(dsn) as caller:
        await done(flow_of(app, "lost").start_in(caller.connection))
        await done(caller.rollback())
        made = await done(flow_of(app, "a").start_in(caller.connection))
        again = await done(flow_of(app, "a").start_in(caller.connection))
        assert (made.made, again.made, made.id) == (True, False, again.id)
        assert db.value("select count(*) from tenure.flow") == 0
        with pytest.raises(FlowConflict):
            async with caller.nested():
                await done(flow_of(app, "b").start_in(caller.connection))
        await done(caller.commit())
    await testing.drain(app)
    assert await app.flows.result(made) == {"second": "aa"}


async def test_workers_are_woken_by_the_commit(app: App, dsn: str) -> None:
    async with bare_ear(dsn) as ear:
        with psycopg.connect(dsn) as connection:
            flow_of(app, "a").start_in(connection)
            assert await ear.come() == []
            connection.commit()
        assert any("mail" in word for word in await ear.come())


async def test_an_app_with_middleware_or_a_dispatcher_starts_no_flow_in_a_transaction(dsn: str, db: Harness) -> None:
    with psycopg.connect(dsn) as connection:
        async with steady(dsn, middleware=[Middleware()]) as app:
            declare(app)
            with pytest.raises(BadInput, match="start_in cannot call the enqueue hooks"):
                flow_of(app, "a").start_in(connection)
        remote = App(dispatcher_url="http://localhost:1")
        declare(remote)
        with pytest.raises(BadInput, match="start_in writes in your own transaction, and this app uses a dispatcher"):
            flow_of(remote, "a").start_in(connection)
        with pytest.raises(BadInput, match="connection"):
            flow_of(app, "a").start_in(7)  # type: ignore[call-overload]
        connection.commit()
    assert db.value("select count(*) from tenure.flow") == 0
