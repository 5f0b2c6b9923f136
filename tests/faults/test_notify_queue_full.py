"""PostgreSQL's queue of notifications is full, or must not be used: jobs are made all the same, without wake-ups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from tenure.app import App
from tenure.errors import BadInput
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.app.callers import address
from tests.conftest import OwnCluster
from tests.harness import Harness
from tests.worker.working import until, working

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

#: The smallest queue that there is, half a megabyte.
_SETTINGS = {
    "fsync": "off", "max_connections": "50", "shared_buffers": "64MB", "max_notify_queue_pages": "64",
    "max_prepared_transactions": "5",
}  # fmt: skip
_WARNING = "PostgreSQL's notification queue is full"


@pytest.fixture(scope="module")
def small(own_cluster: OwnCluster) -> Iterator[str]:
    """A server of this file's own, on which two-phase commit is allowed."""
    with own_cluster(**_SETTINGS) as own:
        migrate(own.dsn)
        yield own.dsn


def fill(writer: psycopg.Connection[Any]) -> None:
    """Send notifications until the queue has no room."""
    while True:
        writer.execute("select pg_notify('anything', n || repeat('x', 7900)) from generate_series(1, 20) as n")


@pytest.fixture
def full(small: str) -> Iterator[psycopg.Connection[Any]]:
    """The session that is to blame: it listens, and stands idle inside of a transaction."""
    with psycopg.connect(small, autocommit=True) as idle, psycopg.connect(small, autocommit=True) as writer:
        writer.execute("select pg_notification_queue_usage()")  # forgets what was in the queue before
        idle.execute("listen anything")
        idle.execute("begin")
        idle.execute("select 1")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            fill(writer)
        yield idle


@pytest.fixture
def eyes(small: str) -> Iterator[Harness]:
    """A connection to that server."""
    with Harness(small) as db:
        db.sql("truncate tenure.job, tenure.key")
        yield db


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of the full queue."""
    return [record.getMessage() for record in caplog.records if _WARNING in record.getMessage()]


@pytest.mark.usefixtures("full")
async def test_enqueues_survive_a_full_queue_of_notifications(
    small: str, eyes: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    async with Store.open(small) as store:
        for n in range(3):  # alone, each of them would bring its wake-up along
            await store.enqueue(NewJob("t", {"n": n}))
            await store.enqueue(NewJob("t", {"n": n}, queue=f"q{n}", trace_id="t1"))
        await store.enqueue(NewJob("t", key="k"))
        await store.enqueue_many([NewJob("t") for _ in range(10)])
    assert eyes.value("select count(*) from tenure.job") == 17
    (said,) = warnings(caplog)
    assert "Next: end the session that listens inside an open transaction" in said


@pytest.mark.usefixtures("full")
async def test_a_commit_of_the_callers_own_survives_a_full_queue_of_notifications(
    small: str, eyes: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(small)

    @app.task
    async def send(n: int) -> int:
        return n

    with psycopg.connect(small) as connection:
        for n in range(3):
            send.enqueue_in(connection, n)
            connection.commit()
    async with await psycopg.AsyncConnection.connect(small) as waiting:
        await send.enqueue_in(waiting, 3)
        await waiting.execute("select tenure.enqueue('send', '{\"n\": 4}')")  # from SQL too
    own = await asyncpg.connect(**address(small, of_asyncpg=True))
    async with own.transaction():
        await send.enqueue_in(own, 5)
    await own.close()
    assert eyes.value("select count(*) from tenure.job") == 6
    assert len(warnings(caplog)) == 1


async def test_workers_are_woken_again_when_the_queue_has_room(
    small: str, eyes: Harness, full: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.notify._QUIET_S", 0.0)
    async with App(small) as app:

        @app.task
        async def send(n: int) -> int:
            return n

        assert (await send.enqueue(1)).made
        full.execute("commit")
        async with working(app, poll=600.0):
            await until(lambda: eyes.value("select count(*) from tenure.job") == 0)
            assert await app.result(await send.enqueue(2), timeout=60) == 2


async def test_transaction_that_enqueued_without_notify_can_be_prepared(small: str, eyes: Harness) -> None:
    app = App(small)

    @app.task
    async def send(n: int) -> int:
        return n

    with psycopg.connect(small) as connection:
        send.enqueue_in(connection, 1)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):  # why the option is there
            connection.execute("prepare transaction 'with'")
    with psycopg.connect(small) as connection:
        connection.tpc_begin(connection.xid(1, "without", "b"))
        ticket = send.options(notify=False, key="k").enqueue_in(connection, 2)
        connection.tpc_prepare()
        assert eyes.value("select count(*) from tenure.job") == 0
        connection.tpc_commit()
    assert eyes.row(ticket.id)["payload"] == {"n": 2}
    await app.close()


async def test_no_path_notifies_for_a_job_that_asked_for_none(small: str, eyes: Harness) -> None:
    eyes.sql("listen tenure")
    quiet = [NewJob("t", notify=False), NewJob("t", key="k", notify=False)]
    async with App(small) as app, Store.open(small) as store:

        @app.task
        async def send(n: int) -> int:
            return n

        for job in quiet:
            await store.enqueue(job)
        await store.enqueue_many(quiet * 2)
        await store.enqueue_many([NewJob("t", queue="loud"), *(NewJob("t", notify=False) for _ in range(3))])
        await send.options(notify=False).enqueue(1)
        await app.enqueue_many(send.options(notify=False).call(n) for n in range(3))
        await store.enqueue(NewJob("t", queue="last"))
    heard = {note.payload for note in eyes.connection.notifies(timeout=30, stop_after=2)}
    assert heard == {"standard:loud", "standard:last"}
    with pytest.raises(BadInput, match="notify must be True or False"):
        async with Store.open(small) as store:
            await store.enqueue(NewJob("t", notify=1))  # type: ignore[arg-type]
