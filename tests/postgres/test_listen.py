"""The listener hears at once, knows when it does not, and comes back whatever happens to its connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.embedded import Cluster
from tenure.errors import BadInput
from tenure.jobs.job import NewJob
from tenure.postgres.listener import _SOONEST, Listener
from tenure.postgres.store import Store
from tests.conftest import own_database
from tests.harness import Harness
from tests.postgres.listening import Heard, bare_ear, listening

ANY = ("", "")


async def until(what: str, listener: Listener, hears: bool, seconds: float = 90.0) -> None:
    """Wait until a listener hears, or does not."""
    give_up = time.monotonic() + seconds
    while listener.is_listening is not hears:
        assert time.monotonic() < give_up, what
        await asyncio.sleep(0.002)


def killed(db: Harness) -> int:
    """End every listener's connection; how many there were."""
    return len(
        db.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'tenure listener' and datname = current_database()"
        )
    )


async def failed_again(listener: Listener) -> None:
    """Wait until a listener that lost its connection, or has none, has tried in vain to connect."""
    give_up = time.monotonic() + 60
    while listener._wait <= 2 * _SOONEST:  # it doubles after each try
        assert time.monotonic() < give_up, "it did not try again"
        await asyncio.sleep(0.01)


async def test_a_wakeup_is_heard_as_it_comes_and_not_with_the_next_probe(store: Store, dsn: str) -> None:
    async with listening(dsn, probe=3_600.0) as (listener, heard):
        assert heard.names == [ANY], "who knows what was missed before"
        assert listener.is_listening
        for n in range(9):
            await store.enqueue(NewJob("t", queue=f"mail {n}"))
            await heard.until(2 + n)
        assert heard.names[1:] == [("standard", f"mail {n}") for n in range(9)]
    assert not listener.is_listening


async def test_a_killed_listener_says_so_once_and_hears_again(
    store: Store, dsn: str, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tenure.listen"):
        async with listening(dsn) as (listener, heard):
            assert killed(db) == 1
            await heard.until(2)
            assert heard.names == [ANY, ANY], "what was missed meanwhile nobody knows"
            assert listener.is_listening
            await store.enqueue(NewJob("t"))
            await heard.until(3)
    told = [record.levelname for record in caplog.records if record.name == "tenure.listen"]
    assert told == ["WARNING", "INFO"]


async def test_a_deaf_listener_notices_it_by_its_own_probe(store: Store, dsn: str, db: Harness) -> None:
    async with bare_ear(dsn) as ear, listening(dsn, probe=0.05) as (listener, heard):
        for _ in range(3):  # who probes for the third time has the second back
            await ear.until(lambda word: word.startswith("?"))
        assert heard.names == [ANY], "a probe that comes back is nobody's wake-up"
        # As a pooler does, which gives the session's connection to somebody else.
        async with _muted(listener):
            await until("the deaf listener did not notice", listener, False)
        await heard.until(2)
        await store.enqueue(NewJob("t"))
        await heard.until(3)
        assert heard.names == [ANY, ANY, ("standard", "default")]


@asynccontextmanager
async def _muted(listener: Listener) -> AsyncIterator[None]:
    """Its next probe finds that the session listens no more."""
    check, patience = listener._check, listener._patience

    async def unlisten_and_check(connection: object) -> None:
        listener._check = check  # type: ignore[method-assign]
        await connection.execute("unlisten *")  # type: ignore[attr-defined]
        listener._patience = 0.2
        try:
            await check(connection)  # type: ignore[arg-type]
        finally:
            listener._patience = patience

    listener._check = unlisten_and_check  # type: ignore[method-assign]
    yield


class Proxy:
    """A network in between that can stop carrying what comes from the server."""

    def __init__(self, dsn: str) -> None:
        self.given = conninfo_to_dict(dsn)
        self.swallows = False
        self.carried = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        """Carry one direction."""
        while data := await reader.read(65_536):
            if not (back and self.swallows):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        path = f"{self.given['host']}/.s.PGSQL.{self.given['port']}"
        if str(self.given["host"]).startswith("/"):
            theirs, ours = await asyncio.open_unix_connection(path)
        else:
            theirs, ours = await asyncio.open_connection(str(self.given["host"]), int(str(self.given["port"])))
        await asyncio.gather(
            self.carry(reader, ours, back=False), self.carry(theirs, writer, back=True), return_exceptions=True
        )


async def test_a_listener_behind_a_network_that_swallows_everything_notices_it(store: Store, dsn: str) -> None:
    proxy = Proxy(dsn)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    plainly = {"sslmode": "disable", "gssencmode": "disable"}
    through = make_conninfo(dsn, host="127.0.0.1", port=port, connect_timeout=2, **plainly)
    try:
        async with listening(through, probe=0.1, patience=20.0) as (listener, heard):
            proxy.swallows, listener._patience = True, 0.2
            await store.enqueue(NewJob("swallowed"))
            await until("the network swallows, and nobody noticed", listener, False)
            assert heard.names == [ANY]
            proxy.swallows, listener._patience = False, 20.0
            await heard.until(2)
            await store.enqueue(NewJob("t"))
            await heard.until(3)
    finally:
        server.close()


@pytest.mark.serial
async def test_a_restart_of_the_server_is_survived(tmp_path: Path) -> None:
    settings = {"fsync": "off", "max_connections": "20", "shared_buffers": "32MB"}
    with Cluster(tmp_path / "cluster", settings=settings) as cluster:
        async with listening(cluster.dsn) as (listener, heard):
            await asyncio.to_thread(cluster.release)
            await until("the server is gone", listener, False)
            await failed_again(listener)
            await asyncio.to_thread(cluster.acquire)
            await heard.until(2)
            with Harness(cluster.dsn) as db:
                db.sql("select pg_notify('tenure', 'simple:mail')")
            await heard.until(3)
            assert heard.names == [ANY, ANY, ("simple", "mail")]


async def test_wakeups_of_other_databases_are_not_heard(server: str, dsn: str, db: Harness) -> None:
    async with listening(dsn) as (_, heard):
        with own_database(server) as other, Harness(other) as there:
            there.sql("select pg_notify('tenure', 'standard:theirs')")
        db.sql("select pg_notify('tenure', 'standard:ours')")
        await heard.until(2)
        assert heard.names == [ANY, ("standard", "ours")]


async def test_what_is_no_wakeup_is_left_alone_and_a_failing_callback_stops_nothing(dsn: str, db: Harness) -> None:
    heard = Heard()

    def clumsy(contract: str, queue: str) -> None:
        heard(contract, queue)
        raise RuntimeError("the worker's own trouble")

    task = asyncio.create_task(Listener(dsn, clumsy).run())
    await heard.until(1)
    words = ["", "hello", "?probe", "standard:a", "gate_b2:b"]
    db.sql("select pg_notify('tenure', word) from unnest(%s::text[]) as word", words)
    await heard.until(3)
    task.cancel()
    assert heard.names == [ANY, ("standard", "a"), ("gate_b2", "b")]


async def test_a_database_that_is_not_there_is_waited_for(server: str, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    listener = Listener(make_conninfo(server, dbname="not_made_yet"), heard)
    task = asyncio.create_task(listener.run())
    await failed_again(listener)
    assert not listener.is_listening
    with Harness(server) as db:
        db.sql("create database not_made_yet")
        await heard.until(1)
        task.cancel()
        await asyncio.wait({task})
        db.sql("drop database not_made_yet with (force)")
    assert [record.levelname for record in caplog.records if record.name == "tenure.listen"] == ["WARNING"]


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="the address of the database"):
        Listener("mysql://nowhere", lambda contract, queue: None)
