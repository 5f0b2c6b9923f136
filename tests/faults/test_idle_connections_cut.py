"""Connections that are cut while they are idle: the next enqueue succeeds, and makes exactly one job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from tenure.app import App
from tenure.jobs.job import NewJob
from tenure.postgres.connection_health import watch
from tenure.postgres.statement import Atomic, Plan, run, statement
from tenure.postgres.store import Store
from tenure.queue import AsyncTaskQueue
from tests.harness import Harness
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

_SESSIONS = (
    "select pid, state from pg_stat_activity "
    "where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
)


async def cut(db: Harness, how: str) -> None:
    """Wait until the server has ended every session that there is now, or end them here."""
    there = [row["pid"] for row in db.sql(_SESSIONS)]
    assert there or how == "by idle_session_timeout"
    if how == "by the administrator":
        db.sql("select pg_terminate_backend(pid) from unnest(%s::int[]) as pid", there)
    await until(lambda: not {row["pid"] for row in db.sql(_SESSIONS)} & set(there))


async def until_idle(app: App) -> None:
    """Wait until no connection of the app is in use or being opened: only idle ones are the subject of these tests."""
    client: Any = await app._client()
    pools = client.store._engine._pools()
    await until(lambda: all(pool.get_stats()["pool_available"] == pool.get_stats()["pool_size"] > 0 for pool in pools))


def limit_idle_sessions(db: Harness, how: str) -> None:
    """Let new sessions of this database end when they were idle for 3 s: no call rests that long between two steps."""
    if how == "by idle_session_timeout":
        db.sql(f"alter database {db.value('select current_database()')} set idle_session_timeout = '3s'")


#: How connections are cut, and how often: what the server does takes it seconds.
CUTS = {"by idle_session_timeout": 1, "by the administrator": 3}
HOW = pytest.mark.parametrize("how", CUTS)


@HOW
@pytest.mark.parametrize("many", [1, 4])
async def test_enqueue_after_idle_connections_were_cut_makes_one_job(
    dsn: str, db: Harness, how: str, many: int
) -> None:
    limit_idle_sessions(db, how)
    async with App(dsn) as app:

        @app.task
        async def send(n: int) -> int:
            return n

        await asyncio.gather(*(send.options(key=f"first{n}").enqueue(n) for n in range(many)))
        made = many
        for n in range(CUTS[how]):
            await until_idle(app)
            await cut(db, how)
            ticket = await send.enqueue(n)
            made += 1
            assert db.row(ticket.id)["payload"] == {"n": n}
        assert db.value("select count(*) from tenure.job") == made


@HOW
def test_synchronous_enqueue_after_idle_connections_were_cut_makes_one_job(dsn: str, db: Harness, how: str) -> None:
    limit_idle_sessions(db, how)
    app = App(dsn)

    @app.task
    def send(n: int) -> int:
        return n

    try:
        send.enqueue_sync(0)
        for n in range(1, CUTS[how] + 1):
            asyncio.run(cut(db, how))
            ticket = send.enqueue_sync(n)
            assert db.row(ticket.id)["payload"] == {"n": n}
        assert db.value("select count(*) from tenure.job") == CUTS[how] + 1
    finally:
        asyncio.run(app.close())


@HOW
async def test_enqueue_on_a_pool_of_the_callers_after_its_connections_were_cut_makes_one_job(
    dsn: str, db: Harness, how: str
) -> None:
    limit_idle_sessions(db, how)
    async with AsyncConnectionPool(dsn, min_size=2, max_size=2) as pool, AsyncTaskQueue(pool) as queue:
        await queue.enqueue("send")
        await pool.wait()
        await cut(db, how)
        await queue.enqueue("send")
    assert db.value("select count(*) from tenure.job") == 2


async def test_refusal_of_an_idle_session_is_run_again_on_another(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may end a session in the moment between the look and the statement."""

    async def sees_nothing(_: object) -> bool:
        return False

    monkeypatch.setattr("tenure.postgres.engine.is_ended", sees_nothing)
    limit_idle_sessions(db, "by idle_session_timeout")
    async with Store.open(dsn, wake=False) as store:
        await store.enqueue(NewJob("t"))
        await cut(db, "by idle_session_timeout")
        await store.enqueue(NewJob("t"))
    assert db.value("select count(*) from tenure.job") == 2


class LateProxy:
    """Forwards between a client and the server; when told, it sends the rest of a session in one piece, at its end.

    It does not close the client's side then: the client learns of the end by what it reads, or when it sends.
    """

    def __init__(self, dsn: str) -> None:
        self._at = conninfo_to_dict(dsn)
        self._clients: list[asyncio.StreamWriter] = []
        self.holds_back = False
        #: The same for the next session alone, from its beginning.
        self.holds_back_next = False
        #: How many sessions have ended, with all that they sent on the way to their clients.
        self.ended = 0

    async def serve(self) -> tuple[asyncio.Server, str]:
        """Start to listen; the server, and the address for clients."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        return server, make_conninfo(**{**self._at, "host": "127.0.0.1", "port": port, "sslmode": "disable"})

    @property
    def opened(self) -> int:
        """How many sessions there were so far."""
        return len(self._clients)

    def close(self) -> None:
        """Close what clients left open."""
        for client in self._clients:
            client.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        holds_back, self.holds_back_next = self.holds_back_next, False
        answers, questions = await asyncio.open_unix_connection(f"{self._at['host']}/.s.PGSQL.{self._at['port']}")
        answering = asyncio.create_task(self._answer(answers, writer, holds_back=holds_back))
        while (data := await reader.read(65536)) and not answering.done():
            questions.write(data)
        writer.close()
        questions.close()
        await answering

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds_back: bool) -> None:
        held = b""
        while data := await answers.read(65536):
            held += data
            if not (holds_back or self.holds_back):
                writer.write(held)
                held = b""
        writer.write(held)
        self.ended += 1


async def test_session_that_ended_with_an_answer_is_not_used_again(dsn: str, db: Harness) -> None:
    """The driver reads the answer and the FATAL message at once; the end of the connection is not there yet."""
    proxy = LateProxy(dsn)
    server, address = await proxy.serve()
    async with Store.open(address, connections=1, wake=False) as store:
        await store.enqueue(NewJob("t"))
        proxy.holds_back = True
        answered = asyncio.create_task(store.enqueue(NewJob("t")))
        await until(lambda: db.value("select count(*) from tenure.job") == 2)
        await cut(db, "by the administrator")
        await answered
        proxy.holds_back = False
        await store.enqueue(NewJob("t"))
    assert db.value("select count(*) from tenure.job") == 3
    proxy.close()
    server.close()


async def test_session_that_ended_while_it_was_opened_is_not_used(dsn: str, db: Harness) -> None:
    """The driver reads the end of the connection's start and the FATAL message at once, and keeps the latter."""
    proxy = LateProxy(dsn)
    server, address = await proxy.serve()
    async with Store.open(address, connections=1, wake=False) as store:
        await store.enqueue(NewJob("t"))
        opened = proxy.opened
        await cut(db, "by the administrator")
        await until(lambda: proxy.ended == opened)
        proxy.holds_back_next = True
        answered = asyncio.create_task(store.enqueue(NewJob("t")))
        await until(lambda: [row["state"] for row in db.sql(_SESSIONS)] == ["idle"])
        await cut(db, "by the administrator")
        await answered
    assert db.value("select count(*) from tenure.job") == 2
    proxy.close()
    server.close()


async def test_transaction_whose_session_ended_with_an_answer_is_reported_as_idle_for_too_long(dsn: str) -> None:
    """A process that was frozen while it waited for an answer reads the answer and the FATAL message at once."""
    proxy = LateProxy(dsn)
    server, address = await proxy.serve()
    timeout = "-c idle_in_transaction_session_timeout=300"
    answered: list[object] = []

    def statements() -> Plan[None]:
        proxy.holds_back = True
        answered.append((yield statement("audit_now", {"seconds": 1})))
        yield statement("audit_now", {"seconds": 1})

    def transaction() -> Plan[None]:
        yield Atomic(statements())

    async with await psycopg.AsyncConnection.connect(address, autocommit=True, options=timeout) as connection:
        await watch(connection)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            await run(connection, transaction())
    assert len(answered) == 1
    proxy.close()
    server.close()


async def test_connection_is_tried_before_its_first_use(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = await counted(monkeypatch)
    async with Store.open(dsn, connections=1, wake=False) as store:
        before = asked()
        await store.enqueue(NewJob("t"))
        assert asked() == before + 1
        await store.enqueue(NewJob("t"))
        assert asked() == before + 1


async def test_connection_that_was_idle_for_long_is_tried_before_it_is_used(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("tenure.postgres.connection_health.monotonic", lambda: clock[0])
    asked = await counted(monkeypatch)
    async with Store.open(dsn, connections=1, wake=False) as store:
        await store.enqueue(NewJob("t"))
        before = asked()
        clock[0] = 29.0
        await store.enqueue(NewJob("t"))
        assert asked() == before
        clock[0] += 30.0
        await store.enqueue(NewJob("t"))
        assert asked() == before + 1
        await store.enqueue(NewJob("t"))
        assert asked() == before + 1


async def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a connection was tried with an empty statement."""
    tried: list[object] = []
    check: Any = AsyncConnectionPool.check_connection

    async def noted(connection: object) -> None:
        tried.append(connection)
        await check(connection)

    monkeypatch.setattr(AsyncConnectionPool, "check_connection", noted)
    return lambda: len(tried)
