"""FastAPI: the lifespan runs a worker around the application's own, and routes enqueue in their own transaction."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx2
import psycopg
import pytest
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import tenure
from tenure.integrations.fastapi import Enqueue, EnqueueSync, lifespan
from tests.harness import Harness
from tests.integrations.processes import as_url
from tests.worker.working import steady


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[tenure.App]:
    """An application."""
    async with steady(dsn) as app:
        yield app


@asynccontextmanager
async def client(api: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application in this process, without its lifespan."""
    transport = httpx2.ASGITransport(app=api)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


async def test_the_worker_runs_inside_the_applications_own_lifespan_and_leaves_signals_alone(
    app: tenure.App, db: Harness
) -> None:
    order: list[str] = []

    @app.task
    async def double(n: int) -> int:
        order.append("runs")
        return 2 * n

    @asynccontextmanager
    async def own(api: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        await double.enqueue(1)  # the app is open
        order.append("own begins")
        yield {"pool": "a pool"}
        order.append(f"own ends, {db.value('select count(*) from tenure.worker')} workers")

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    api = FastAPI(lifespan=lifespan(app, own, worker=True, poll=0.05, name="inside"))
    async with api.router.lifespan_context(api) as state:
        assert state == {"pool": "a pool"}
        assert await app.result(await double.enqueue(21), timeout=60) == 42
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        assert db.value("select name from tenure.worker") == "inside"
    assert (order[0], order[-1], set(order[1:-1])) == ("own begins", "own ends, 0 workers", {"runs"})


async def test_without_a_worker_the_lifespan_closes_the_apps_connections(app: tenure.App, db: Harness) -> None:
    @app.task
    async def nothing() -> None:
        """Do nothing."""

    api = FastAPI(lifespan=lifespan(app))
    async with api.router.lifespan_context(api):
        await nothing.enqueue()
        assert app._connections._clients
    assert not app._connections._clients
    assert db.value("select count(*) from tenure.job") == 1


async def test_a_failing_worker_is_logged_and_the_application_serves_on(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def nothing() -> None:
        """Do nothing."""

    api = FastAPI(lifespan=lifespan(app, worker=True, contracts=["nowhere"], name="w"))
    async with api.router.lifespan_context(api):
        while not caplog.records:  # noqa: ASYNC110 (a log has no event)
            await asyncio.sleep(0.01)
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage().startswith("tenure worker w failed, and no longer runs jobs")
    assert "no contract 'nowhere'" in str(record.exc_info)


async def test_a_cancelled_lifespan_hands_back_the_jobs_that_run(app: tenure.App, db: Harness) -> None:
    began = asyncio.Event()

    @app.task
    async def hang() -> None:
        began.set()
        await asyncio.sleep(600)

    api = FastAPI(lifespan=lifespan(app, worker=True, poll=0.05, grace=600))

    async def serve() -> None:
        async with api.router.lifespan_context(api):
            await began.wait()

    async with app:
        job = await hang.enqueue()
        serving = asyncio.create_task(serve())
        await began.wait()
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])
        assert serving.cancelled()
    assert (db.row(job.id)["state"], db.row(job.id)["lease_token"]) == ("queued", None)


def orders(api: FastAPI, task: Any, session: Any, enqueue: Any) -> None:
    """A route that stores and enqueues, and fails after that for n = 0."""

    @api.post("/orders/{n}")
    async def order(n: int, session: session, enqueue: enqueue) -> dict[str, int]:
        await session.execute(text("insert into shop_order values (:n)"), {"n": n})
        job = await enqueue(task.options(priority=3), n)
        if n == 0:
            raise HTTPException(422)
        return {"id": job.id}


@pytest.mark.parametrize("form", ["function", "annotated", "function scope"])
async def test_a_route_enqueues_in_its_own_asynchronous_session(
    form: str, app: tenure.App, dsn: str, db: Harness
) -> None:
    @app.task
    async def confirm(n: int) -> None:
        """Confirm."""

    db.sql("create table shop_order (n int)")
    engine = create_async_engine(as_url(dsn).replace("postgresql", "postgresql+psycopg", 1))
    opened: list[AsyncSession] = []

    async def open_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session, session.begin():
            opened.append(session)
            yield session

    api = FastAPI()
    scope: Any = {"scope": "function"} if form == "function scope" else {}
    session = Annotated[AsyncSession, Depends(open_session, **scope)]
    enqueue = Annotated[Enqueue, Depends(Enqueue.using(open_session if form == "function" else session), **scope)]
    orders(api, confirm, session, enqueue)
    async with client(api) as http:
        assert (await http.post("/orders/0")).status_code == 422
        assert db.value("select count(*) from shop_order") + db.value("select count(*) from tenure.job") == 0
        job = (await http.post("/orders/7")).json()["id"]
    assert len(opened) == 2  # one for each request
    assert db.value("select n from shop_order") == 7
    assert (db.row(job)["payload"], db.row(job)["priority"]) == ({"n": 7}, 3)
    await engine.dispose()


async def test_a_plain_route_enqueues_in_its_own_session_which_a_test_can_replace(
    app: tenure.App, dsn: str, db: Harness
) -> None:
    @app.task
    async def confirm(n: int) -> None:
        """Confirm."""

    engine = create_engine(as_url(dsn).replace("postgresql", "postgresql+psycopg", 1))

    def open_session() -> Iterator[Session]:
        raise AssertionError("a test replaces it")

    def replaced() -> Iterator[Session]:
        with Session(engine) as session, session.begin():
            yield session

    api = FastAPI()

    @api.post("/orders/{n}")
    def order(n: int, enqueue: Annotated[EnqueueSync, Depends(EnqueueSync.using(open_session))]) -> int:
        ticket = enqueue(confirm, n)
        if n == 0:
            raise HTTPException(422)
        return ticket.id

    api.dependency_overrides[open_session] = replaced
    async with client(api) as http:
        assert (await http.post("/orders/0")).status_code == 422
        assert db.value("select count(*) from tenure.job") == 0
        assert db.row((await http.post("/orders/7")).json())["payload"] == {"n": 7}
    engine.dispose()


async def test_a_wrong_call_is_refused_and_nothing_is_stored(app: tenure.App, dsn: str, db: Harness) -> None:
    @app.task
    async def confirm(n: int) -> None:
        """Confirm."""

    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        with pytest.raises(tenure.TenureError, match="missing 1 required positional argument: 'n'"):
            await Enqueue(connection)(confirm)  # type: ignore[call-arg]
        assert (await Enqueue(connection)(confirm, 1)).made
        await connection.rollback()
    assert db.value("select count(*) from tenure.job") == 0
