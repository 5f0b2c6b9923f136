"""The kept connection of an engine: one reader for its whole life, whatever happens to it and to the calls on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.app import App
from tenure.errors import BadInput, ConnectionLost
from tenure.jobs.job import NewJob
from tenure.postgres.engine_connection import EngineConnection
from tenure.postgres.kept_connection import KeptConnection
from tenure.postgres.listener import Listener
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.listening import Heard
from tests.worker.working import until, working

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

_LARGE = 6_000_000
_CLAIMING = "select count(*) from pg_stat_activity where state = 'active' and query ~ 'tenure: claim' and pid = %s"
_LAST = "select query from pg_stat_activity where pid = %s"


@asynccontextmanager
async def keeping(dsn: str, **options: Any) -> AsyncIterator[tuple[Store, KeptConnection]]:
    """A store with a kept connection, and that connection, free and used before."""
    async with Store.open(dsn, **{"wake": False, "keeps": True, **options}) as store:
        kept = store.kept_for(dsn)
        assert kept is not None
        await store.enqueue(NewJob("first"))
        yield store, kept


async def pid_of(kept: KeptConnection) -> int:
    """The server process of the connection as it is now."""
    return (await kept.connection()).info.backend_pid


async def test_worker_claims_on_the_session_that_hears_wakeups(app: App, db: Harness) -> None:
    heard = asyncio.Event()

    @app.task
    async def work() -> None:
        heard.set()

    async with working(app, poll=3_600, upkeep=False):
        sessions = "select pid, query from pg_stat_activity where application_name = 'tenure listener'"
        await until(lambda: bool(db.sql(sessions)))
        await work.enqueue()
        await asyncio.wait_for(heard.wait(), 60)
        await until(lambda: "/* tenure: claim" in db.sql(sessions)[0]["query"])


async def test_call_beside_another_one_uses_the_pool(dsn: str, db: Harness) -> None:
    async with keeping(dsn) as (store, kept):
        async with (await kept.connection()).in_use:
            assert kept.free() is None
            await store.enqueue(NewJob("t"))
        assert kept.free() is not None
    assert db.value("select count(*) from tenure.job") == 2


async def test_cancelled_claim_is_cancelled_in_the_server_and_leaves_the_connection_usable(
    dsn: str, db: Harness
) -> None:
    async with keeping(dsn) as (store, kept):
        pid = await pid_of(kept)
        with psycopg.connect(dsn) as other:
            other.execute("lock table tenure.job in access exclusive mode")
            claim = asyncio.create_task(store.claim(worker="w"))
            await until(lambda: db.value(_CLAIMING, pid) == 1)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            assert db.value(_CLAIMING, pid) == 0, "the server still waits for the lock"
        assert len(await store.claim(worker="w")) == 1, "the cancelled claim took the job"
        assert await pid_of(kept) == pid


async def test_only_claims_that_wait_for_nothing_use_the_kept_connection(dsn: str, db: Harness) -> None:
    async with keeping(dsn) as (store, kept):
        pid = await pid_of(kept)
        assert await store.claim(worker="w", claim_key=uuid4())
        assert "tenure: claim" not in db.value(_LAST, pid), "a repeat waits for the first call with its key"
        await store.claim(worker="w", contract="reliability")
        assert "tenure: claim" not in db.value(_LAST, pid), (
            "expired leases are closed first, under the locks of their rows"
        )
        await store.claim(worker="w")
        assert "tenure: claim" in db.value(_LAST, pid)


async def test_lost_connection_is_replaced_and_calls_use_the_pool_meanwhile(dsn: str, db: Harness) -> None:
    async with keeping(dsn) as (store, kept):
        pid = await pid_of(kept)
        db.sql("select pg_terminate_backend(%s, 60000)", pid)
        await store.enqueue(NewJob("t"))  # also where the end of the session has not been read yet
        await until(lambda: kept.free() is not None)
        assert await pid_of(kept) != pid
        await store.enqueue(NewJob("t"))
    assert db.value("select count(*) from tenure.job") == 3


class CuttingProxy:
    """Forwards to the server; when told, it ends the client's connection in the middle of an answer."""

    def __init__(self, dsn: str) -> None:
        self._at = conninfo_to_dict(dsn)
        self.cuts = False

    async def serve(self) -> tuple[asyncio.Server, str]:
        """Start to listen; the server, and the address for clients."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        return server, make_conninfo(**{**self._at, "host": "127.0.0.1", "port": port, "sslmode": "disable"})

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_unix_connection(f"{self._at['host']}/.s.PGSQL.{self._at['port']}")
        asking = asyncio.create_task(self._forward(reader, questions))
        while data := await answers.read(65536):
            if self.cuts:
                self.cuts = False
                writer.write(data[: len(data) // 2])
                await writer.drain()
                break
            writer.write(data)
        writer.transport.abort()
        questions.close()
        await asyncio.gather(asking, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, questions: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            questions.write(data)


async def test_reset_in_the_middle_of_an_answer_is_a_lost_connection(dsn: str, db: Harness) -> None:
    proxy = CuttingProxy(dsn)
    server, address = await proxy.serve()
    async with keeping(address) as (store, kept):
        proxy.cuts = True
        with pytest.raises(ConnectionLost):
            await store.enqueue(NewJob("t"))
        await store.enqueue(NewJob("t"))
        await until(lambda: kept.free() is not None)
    assert db.value("select count(*) from tenure.job") == 3, "the first one was made before its answer was lost"
    server.close()


async def test_deaf_listener_leaves_its_connection_and_hears_on_the_next(dsn: str, db: Harness) -> None:
    async with keeping(dsn) as (store, kept):
        heard = Heard()
        listener = Listener(kept, heard, probe=0.05)
        listening = asyncio.create_task(listener.run())
        await heard.until(1)
        deaf = await kept.connection()
        listener._patience = 0.2
        async with deaf.in_use:
            await deaf.execute("unlisten *")
        await until(lambda: deaf.closed)
        listener._patience = 60.0
        await store.enqueue(NewJob("t"))
        await heard.until(2)
        db.sql("select pg_notify('tenure', 'standard:mail')")
        await until(lambda: ("standard", "mail") in heard.names)
        listening.cancel()
        await asyncio.wait([listening])


async def test_statement_and_answer_larger_than_the_buffers_of_the_socket(dsn: str) -> None:
    connection = await EngineConnection.connect(dsn, autocommit=True)
    connection.start_reading()
    text = "x" * _LARGE
    for _ in range(7):  # unprepared, then prepared
        assert await connection.fetch("select $1::text || 'y'", [text], prepare=True) == [(f"{text}y",)]
    assert await connection.fetch("select $1::boolean, $2::int8", [True, None], prepare=True) == [(True, None)]
    await connection.close()
    assert connection.ended.is_set()


async def test_statement_on_an_ended_session_is_not_sent(dsn: str, db: Harness) -> None:
    connection = await EngineConnection.connect(dsn, autocommit=True)
    connection.start_reading()
    db.sql("select pg_terminate_backend(%s, 60000)", connection.info.backend_pid)
    await asyncio.wait_for(connection.ended.wait(), 60)
    with pytest.raises(psycopg.errors.IdleSessionTimeout):
        await connection.fetch("select 1", [], prepare=True)


async def test_text_that_the_driver_would_cut_is_refused(dsn: str) -> None:
    async with keeping(dsn) as (store, _):
        with pytest.raises((psycopg.DataError, BadInput)):
            await store._engine.run(lambda: _tell("a\x00b"), quick=True)


def _tell(text: str) -> Any:
    from tenure.postgres.statement import Query, Statement

    return (yield Statement(Query("tell", "select $1::text", ("text",)), (text,)))
