"""What the engine's connections are like: timeouts on every one of them, and one that heartbeats share with nobody."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import tenure
from tenure.errors import CannotConnect, ConnectionLost
from tenure.jobs.job import NewJob
from tenure.postgres import connect
from tenure.postgres.connect import LOCK_TIMEOUT_MS, engine_dsn, plain_dsn
from tenure.postgres.listener import Listener
from tenure.postgres.migrate import migrate
from tenure.postgres.statement import Plan, Query, Row, Statement
from tenure.postgres.store import Store
from tests.conftest import OwnCluster
from tests.harness import Harness
from tests.worker.rounds import Pulse
from tests.worker.working import steady, until, working

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every connection that is opened from now on."""
    found: list[Any] = []
    for kind in (psycopg.Connection, psycopg.AsyncConnection):
        finish = kind.__init__

        def noted(self: Any, *args: Any, finish: Any = finish, **options: Any) -> None:
            finish(self, *args, **options)
            if isinstance(self, psycopg.AsyncConnection):
                self.its_loop = asyncio.get_running_loop()  # type: ignore[attr-defined]
            found.append(self)

        monkeypatch.setattr(kind, "__init__", noted)
    return found


def shown(rows: list[tuple[str, str]]) -> dict[str, int]:
    return {name: int(setting) for name, setting in rows}


_SHOW = "select name, setting from pg_settings where name = any (%s) order by name"


#: What every session of the engine has, and what the listener has otherwise.
_OF_ALL = {
    "idle_in_transaction_session_timeout": 10_000, "idle_session_timeout": 0, "lock_timeout": LOCK_TIMEOUT_MS,
    "tcp_keepalives_count": 3, "tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_user_timeout": 30_000,
}  # fmt: skip
_OF_THE_LISTENER = {**_OF_ALL, "lock_timeout": 0, "statement_timeout": 10_000}
#: And the client's end of each connection: (level, option) → value, times in seconds, the last in milliseconds.
_SOCKET = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 10,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 20_000,
}


_IS_SET = (
    "select exists (select from pg_stat_activity where application_name = 'tenure listener' and state = 'idle' "
    "and query ~ 'set_config' and datname = current_database())"
)


async def settings_of(connection: Any) -> dict[str, int]:
    """Ask a connection that others use, in the loop that it belongs to."""

    async def ask() -> list[tuple[str, str]]:
        cursor = await connection.execute(_SHOW, [list(_OF_THE_LISTENER)])
        rows: list[tuple[str, str]] = await cursor.fetchall()
        return rows

    return shown(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), connection.its_loop)))


def options_of(connection: Any) -> dict[tuple[int, int], int]:
    """How the client's end of a connection is set."""
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
        return {which: end.getsockopt(*which) for which in _SOCKET}


async def test_every_connection_of_a_worker_has_timeouts(
    own_cluster: OwnCluster, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", LOCK_TIMEOUT_MS)
    host = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"  # nobody else's here
    with own_cluster(listen_addresses=host) as cluster, Harness(cluster.dsn) as db:
        migrate(cluster.dsn)
        opened.clear()
        async with steady(make_conninfo(cluster.dsn, host=host)) as app:

            @app.task
            async def work(n: int) -> int:
                return n

            async with working(app):
                assert await app.result(await work.enqueue(1), timeout=60) == 1
                await until(lambda: any(map(is_listener, opened)) and db.value(_IS_SET))
                found = [connection for connection in opened if not connection.closed]
                asked = [asyncio.create_task(settings_of(connection)) for connection in found]
                while not all(one.done() for one in asked):
                    await work.enqueue(2)  # until it hears something, the listener's connection is not free
                    await asyncio.sleep(0.02)
                settings = dict(zip(found, [await one for one in asked], strict=True))
                options = [options_of(connection) for connection in found]
                (listener,) = filter(is_listener, found)
    assert settings.pop(listener) == _OF_THE_LISTENER
    limits = {one.pop("statement_timeout") for one in settings.values()}
    assert limits == {connect.CALL_TIMEOUT_MS, connect.STATEMENT_TIMEOUT_MS}
    assert list(settings.values()) == [_OF_ALL] * len(settings)
    assert options == [_SOCKET] * len(found)


def is_listener(connection: Any) -> bool:
    return not connection.closed and connection.info.parameter_status("application_name") == "tenure listener"


async def test_a_store_has_the_timeouts_of_its_use(dsn: str) -> None:
    for statement_ms in (None, connect.CALL_TIMEOUT_MS):
        async with Store.open(dsn, statement_ms=statement_ms) as store:
            rows = await store._engine.run(lambda: _shown(TIMEOUTS))
        assert shown(rows) == {
            "statement_timeout": statement_ms or 120_000,
            "lock_timeout": connect.LOCK_TIMEOUT_MS,
            "idle_in_transaction_session_timeout": 10_000,
            "idle_session_timeout": 0,
        }


def _shown(names: tuple[str, ...]) -> Plan[list[tuple[str, str]]]:
    text = f"select name, setting from pg_settings where name = any ('{{{','.join(names)}}}')"
    rows: list[tuple[str, str]] = yield Statement(Query("shown", text, ()), ())
    return rows


async def test_applications_and_workers_have_the_timeouts_of_calls(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    reached = connect.probe_dsn

    async def noted(dsn: str, statement_ms: int | None = None) -> tuple[str, bool]:
        asked.append(statement_ms)
        return await reached(dsn, statement_ms)

    monkeypatch.setattr("tenure.postgres.engine.probe_dsn", noted)
    async with steady(dsn) as app, working(app):
        await until(lambda: len(asked) == 2)
    assert sorted(asked, key=str) == [connect.CALL_TIMEOUT_MS, None], "the worker's own, and its service's"


async def test_the_listener_has_timeouts_and_may_be_idle(dsn: str, opened: list[Any]) -> None:
    listener = Listener(dsn, lambda *_: None)
    task = asyncio.create_task(listener.run())
    try:
        await until(lambda: listener.is_listening)
        task.cancel()
        await asyncio.wait([task])
    finally:
        task.cancel()
    heard: list[str] = []
    monitored = Listener(dsn, lambda *_: heard.append(""))

    async def asked(connection: psycopg.AsyncConnection[Any], *_: Any) -> bool:
        rows = await (await connection.execute(_SHOW, [list(TIMEOUTS)])).fetchall()
        heard.append(str(shown(rows)))
        raise asyncio.CancelledError

    monitored._receive = _first_then(monitored._receive, asked)  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await monitored.run()
    assert heard[-1] == str({
        "idle_in_transaction_session_timeout": 10_000, "idle_session_timeout": 0, "lock_timeout": 0,
        "statement_timeout": 10_000,
    })  # fmt: skip


def _first_then(first: Any, then: Any) -> Any:
    calls: list[Any] = [first]

    async def call(*args: Any) -> bool:
        return bool(await (calls.pop() if calls else then)(*args))

    return call


def test_migrate_has_no_limit_but_lets_go_of_its_locks(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Harness(empty_dsn) as db:
        name = db.value("select current_database()")
        db.sql(f"alter database {name} set statement_timeout = '90s'")
    seen: list[dict[str, int]] = []
    from tenure.postgres import migrate as module

    become = module._set_owner_role

    def noted(connection: psycopg.Connection[Any]) -> None:
        seen.append(shown(connection.execute(_SHOW, [list(TIMEOUTS)]).fetchall()))
        become(connection)

    monkeypatch.setattr(module, "_set_owner_role", noted)
    migrate(empty_dsn, lock_timeout_ms=4_000)
    assert seen == [{
        "idle_in_transaction_session_timeout": 60_000, "idle_session_timeout": 0, "lock_timeout": 4_000,
        "statement_timeout": 0,
    }]  # fmt: skip


def test_connections_are_opened_in_few_places_and_with_an_address_of_the_engines() -> None:
    found: dict[str, set[str]] = {}
    root = Path(tenure.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            called = ast.unparse(node.func)
            if called in ("psycopg.connect", "psycopg.AsyncConnection.connect", "psycopg.Connection.connect"):
                found.setdefault(str(file.relative_to(root)), set()).add(ast.unparse(node.args[0]))
    assert found == {
        "postgres/connect.py": {"address"},
        "postgres/test_databases.py": {"address", "self._server", "server"},  # makes and drops databases of tests
        "postgres/listener.py": {"self._address"},
        "postgres/migrate.py": {"plain_dsn(dsn, 'tenure migrate')"},
        "postgres/doctor/examination.py": {  # it judges what it connects to, and must not wait for a pool
            "plain_dsn(dsn, 'tenure doctor')",
            "plain_dsn(exam.direct_url, 'tenure doctor')",
        },
    }


@pytest.mark.parametrize("made", [engine_dsn, plain_dsn])
def test_several_hosts_mean_the_one_that_writes(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(dsn: str) -> Any:
        return conninfo_to_dict(made(dsn)).get("target_session_attrs")

    assert wanted("postgresql://a/db") is None
    assert wanted("postgresql://a,b/db") == "read-write"
    assert wanted("postgresql://a,b/db?target_session_attrs=any") == "any"
    monkeypatch.setenv("PGHOST", "a,b")
    assert wanted("dbname=db") == "read-write"


@pytest.fixture
def occupied(dsn: str) -> Iterator[Harness]:
    """Somebody who holds a lock that others wait for."""
    with Harness(dsn) as harness:
        harness.sql("select pg_advisory_lock(14)")
        yield harness


def waiting_for_ever() -> Plan[list[Row]]:
    """A statement that ends when the lock is let go."""
    rows: list[Row] = yield Statement(Query("occupy", "select pg_advisory_lock_shared(14)", ()), ())
    return rows


_WAITING = (
    "select count(*) from pg_locks where locktype = 'advisory' and not granted "
    "and database = (select oid from pg_database where datname = current_database())"
)


async def test_heartbeat_waits_for_no_connection(
    dsn: str, db: Harness, occupied: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100_000)
    async with Store.open(dsn, connections=3, heartbeats=True) as store:
        await store.enqueue(NewJob("t"))
        (job,) = await store.claim(worker="w")
        others: list[asyncio.Task[Any]] = [asyncio.create_task(store._engine.run(waiting_for_ever)) for _ in range(10)]
        try:
            await until(lambda: db.value(_WAITING) == 2)
            beat = asyncio.create_task(store.heartbeat(job.held))
            others.append(beat)
            await until(beat.done)
            assert not beat.result().cancel_requested
            assert db.value(_WAITING) == 2, "they went away by themselves"
        finally:
            occupied.sql("select pg_advisory_unlock(14)")
            await asyncio.gather(*others)


class Few:
    """A role with the rights of a worker that may have three connections."""

    def __init__(self, dsn: str, db: Harness) -> None:
        self.name = f"few_{uuid4().hex[:12]}"
        self.dsn = make_conninfo(dsn, user=self.name, password="x")
        self._db = db
        self._others: list[psycopg.Connection[Any]] = []
        db.sql(f"create role {self.name} login password 'x' connection limit 3 in role tenure_app")

    async def use_up(self) -> None:
        """Take every connection that is left."""
        await until(self._is_full)

    def _is_full(self) -> bool:
        try:
            self._others.append(psycopg.connect(self.dsn))
        except psycopg.OperationalError:  # one that was closed counts for a moment longer
            return bool(self._db.value("select count(*) = 3 from pg_stat_activity where usename = %s", self.name))
        return False

    def let_go(self) -> None:
        """Close what others took."""
        for other in self._others:
            other.close()


@pytest.fixture
def few(dsn: str, db: Harness) -> Iterator[Few]:
    """Somebody whose connections are soon used up."""
    migrate(dsn, grants=True)
    role = Few(dsn, db)
    yield role
    role.let_go()
    db.sql(f"drop role {role.name}")


async def test_heartbeat_has_its_connection_when_the_server_has_none_left(
    few: Few, db: Harness, occupied: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.connect.LOCK_TIMEOUT_MS", 100_000)
    monkeypatch.setattr("tenure.postgres.engine._UNAVAILABLE_S", 3_600.0)
    async with Store.open(few.dsn, connections=3, heartbeats=True, patience_s=1.0, wake=False) as store:
        # Not before it has one: who comes earlier lets the pool open another.
        await until(lambda: store._engine._calls.pool.get_stats()["pool_available"] == 1)
        await store.enqueue(NewJob("t"))
        (job,) = await store.claim(worker="w")
        await few.use_up()
        busy = asyncio.create_task(store._engine.run(waiting_for_ever))
        try:
            await until(lambda: db.value(_WAITING) == 1)
            with pytest.raises(CannotConnect):
                await store.enqueue(NewJob("t"))
            assert not (await store.heartbeat(job.held)).cancel_requested
            assert db.value(_WAITING) == 1, "it went away by itself"
        finally:
            occupied.sql("select pg_advisory_unlock(14)")
            await busy


async def test_store_is_refused_where_heartbeats_get_no_connection(few: Few, monkeypatch: pytest.MonkeyPatch) -> None:
    async def last(dsn: str, statement_ms: int | None = None) -> tuple[str, bool]:
        found = await connect.probe_dsn(dsn, statement_ms)
        await few.use_up()
        return found

    monkeypatch.setattr("tenure.postgres.engine.probe_dsn", last)
    with pytest.raises(CannotConnect):
        async with Store.open(few.dsn, connections=3, heartbeats=True, patience_s=1.0):
            pass


async def test_connection_of_heartbeats_is_made_again_although_nobody_waits_for_it(few: Few, db: Harness) -> None:
    async with Store.open(few.dsn, connections=2, heartbeats=True, patience_s=1.0, wake=False) as store:
        beats = store._engine._heartbeats.pool
        await store.enqueue(NewJob("t"))
        db.sql(f"alter role {few.name} connection limit 0")
        db.sql("select pg_terminate_backend(pid, 60000) from pg_stat_activity where usename = %s", few.name)
        with pytest.raises((CannotConnect, ConnectionLost)):
            await store.enqueue(NewJob("t"))
        await until(lambda: beats.get_stats().get("connections_errors", 0) > 4)  # more than one round of tries
        db.sql(f"alter role {few.name} connection limit 3")
        await until(lambda: beats.get_stats()["pool_available"] == 1)


async def test_worker_beats_while_upkeep_occupies_its_connections(
    dsn: str, db: Harness, occupied: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100_000)

    async def occupy(upkeep: Any) -> None:
        await asyncio.gather(*(upkeep._store._engine.run(waiting_for_ever) for _ in range(20)))
        await asyncio.Event().wait()

    monkeypatch.setattr("tenure.upkeep.Upkeep.run", occupy)
    gate, pulse = asyncio.Event(), Pulse(monkeypatch)
    async with steady(dsn) as app:

        @app.task
        async def work() -> str:
            await gate.wait()
            return "done"

        async with working(app):
            await until(lambda: db.value(_WAITING) >= 5)
            ticket = await work.enqueue()
            await until(lambda: db.row(ticket.id)["lease_expires_at"] is not None)
            await pulse.half_a_lease(db, [ticket.id])
            assert db.value(_WAITING) >= 5, "upkeep let go of its connections"
            assert db.row(ticket.id)["claims"] == 1
            occupied.sql("select pg_advisory_unlock(14)")
            gate.set()
            assert await app.result(ticket, timeout=60) == "done"
