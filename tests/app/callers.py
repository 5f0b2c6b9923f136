"""Callers with transactions of their own: the same few steps on the real connections of every library."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import django.conf
import django.db
import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker


@dataclass
class Caller:
    """A connection inside of a transaction; `nested` is a block in a savepoint that an error rolls back."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    nested: Callable[[], AbstractAsyncContextManager[Any]]


async def done(answer: Any) -> Any:
    """The answer of a call that some libraries await and others do not."""
    return await answer if inspect.isawaitable(answer) else answer


def awaited(block: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """The same block for `async with`."""

    @asynccontextmanager
    async def entered() -> AsyncIterator[None]:
        with block():
            yield

    return entered


def address(dsn: str, *, of_asyncpg: bool = False) -> dict[str, Any]:
    """The parts of an address as a driver's `connect` takes them."""
    parts: dict[str, Any] = dict(conninfo_to_dict(dsn))
    if of_asyncpg:
        parts["database"] = parts.pop("dbname")
        parts = {name: parts[name] for name in ("host", "port", "user", "password", "database") if name in parts}
    return parts


@asynccontextmanager
async def with_psycopg(dsn: str) -> AsyncIterator[Caller]:
    """psycopg, synchronous."""
    with psycopg.connect(dsn) as own:
        yield Caller(own, lambda sql: own.execute(sql.encode()), own.commit, own.rollback, awaited(own.transaction))


@asynccontextmanager
async def with_async_psycopg(dsn: str) -> AsyncIterator[Caller]:
    """psycopg, asynchronous."""
    async with await psycopg.AsyncConnection.connect(dsn) as own:
        yield Caller(own, lambda sql: own.execute(sql.encode()), own.commit, own.rollback, own.transaction)


@asynccontextmanager
async def with_asyncpg(dsn: str, *, pooled: bool = False) -> AsyncIterator[Caller]:
    """asyncpg, a connection of its own or of a pool; its caller has set codecs that others would stumble over."""

    async def prepare(own: Any) -> None:
        for kind in ("json", "jsonb"):
            await own.set_type_codec(kind, schema="pg_catalog", encoder=lambda value: 1 / 0, decoder=lambda text: 1 / 0)

    if pooled:
        async with (
            asyncpg.create_pool(**address(dsn, of_asyncpg=True), min_size=1, max_size=1, init=prepare) as pool,
            pool.acquire() as own,
            _asyncpg_caller(own) as caller,
        ):
            yield caller
        return
    own = await asyncpg.connect(**address(dsn, of_asyncpg=True))
    try:
        await prepare(own)
        async with _asyncpg_caller(own) as caller:
            yield caller
    finally:
        await own.close()


@asynccontextmanager
async def _asyncpg_caller(own: Any) -> AsyncIterator[Caller]:
    await own.execute("begin")
    yield Caller(
        own, own.execute, lambda: own.execute("commit; begin"), lambda: own.execute("rollback; begin"),
        lambda: _savepoint(own),
    )  # fmt: skip
    await own.execute("rollback")


@asynccontextmanager
async def _savepoint(own: Any) -> AsyncIterator[None]:
    await own.execute("savepoint mine")
    try:
        yield
    except BaseException:
        await own.execute("rollback to savepoint mine")
        raise


@contextmanager
def sync_engine(dsn: str) -> Iterator[Any]:
    """SQLAlchemy on psycopg."""
    engine = create_engine("postgresql+psycopg://", connect_args=address(dsn))
    yield engine
    engine.dispose()


@asynccontextmanager
async def async_engine(dsn: str, driver: str) -> AsyncIterator[Any]:
    """SQLAlchemy on an asynchronous driver."""
    own = address(dsn, of_asyncpg=driver == "asyncpg")
    engine = create_async_engine(f"postgresql+{driver}://", connect_args=own)
    yield engine
    await engine.dispose()


def of_sqlalchemy(own: Any) -> Caller:
    """SQLAlchemy's sessions and connections have the same methods."""
    nested = own.begin_nested if hasattr(own, "run_sync") else awaited(own.begin_nested)
    return Caller(own, lambda sql: own.execute(text(sql)), own.commit, own.rollback, nested)


@asynccontextmanager
async def with_session(dsn: str) -> AsyncIterator[Caller]:
    """SQLAlchemy's Session."""
    with sync_engine(dsn) as engine, Session(engine) as session:
        yield of_sqlalchemy(session)


@asynccontextmanager
async def with_scoped_session(dsn: str) -> AsyncIterator[Caller]:
    """SQLAlchemy's scoped_session, as Flask has it."""
    with sync_engine(dsn) as engine:
        session = scoped_session(sessionmaker(engine))
        yield of_sqlalchemy(session)
        session.remove()


@asynccontextmanager
async def with_sqlalchemy_connection(dsn: str) -> AsyncIterator[Caller]:
    """SQLAlchemy's Connection."""
    with sync_engine(dsn) as engine, engine.connect() as own:
        yield of_sqlalchemy(own)


@asynccontextmanager
async def with_async_session(dsn: str, driver: str) -> AsyncIterator[Caller]:
    """SQLAlchemy's AsyncSession."""
    async with async_engine(dsn, driver) as engine, AsyncSession(engine) as session:
        yield of_sqlalchemy(session)


@asynccontextmanager
async def with_async_sqlalchemy_connection(dsn: str, driver: str) -> AsyncIterator[Caller]:
    """SQLAlchemy's AsyncConnection."""
    async with async_engine(dsn, driver) as engine, engine.connect() as own:
        yield of_sqlalchemy(own)


def django_connection(dsn: str) -> Any:
    """Django's connection to this database, which a setting names."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={}, USE_TZ=True)
    parts = address(dsn)
    fields = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    named = {fields[name]: value for name, value in parts.items() if name in fields}
    alias = str(parts["dbname"])
    django.db.connections.settings[alias] = {"ENGINE": "django.db.backends.postgresql", **named}
    django.db.connections.configure_settings(django.db.connections.settings)
    return django.db.connections[alias]


@asynccontextmanager
async def with_django(dsn: str) -> AsyncIterator[Caller]:
    """Django inside of `transaction.atomic`. Its test must allow it beside an event loop."""
    own = django_connection(dsn)
    atomic = django.db.transaction.atomic

    def execute(sql: str) -> None:
        with own.cursor() as cursor:
            cursor.execute(sql)

    outer = atomic(own.alias)
    outer.__enter__()

    def commit() -> None:
        outer.__exit__(None, None, None)
        outer.__enter__()

    def rollback() -> None:
        own.set_rollback(True)
        commit()

    try:
        yield Caller(own, execute, commit, rollback, awaited(lambda: atomic(own.alias)))
        own.set_rollback(True)
        outer.__exit__(None, None, None)
    finally:
        own.close()


CALLERS: dict[str, Callable[[str], AbstractAsyncContextManager[Caller]]] = {
    "psycopg": with_psycopg,
    "psycopg, async": with_async_psycopg,
    "asyncpg": with_asyncpg,
    "asyncpg, pooled": lambda dsn: with_asyncpg(dsn, pooled=True),
    "Session": with_session,
    "scoped_session": with_scoped_session,
    "Connection": with_sqlalchemy_connection,
    "AsyncSession, psycopg": lambda dsn: with_async_session(dsn, "psycopg"),
    "AsyncSession, asyncpg": lambda dsn: with_async_session(dsn, "asyncpg"),
    "AsyncConnection, psycopg": lambda dsn: with_async_sqlalchemy_connection(dsn, "psycopg"),
    "AsyncConnection, asyncpg": lambda dsn: with_async_sqlalchemy_connection(dsn, "asyncpg"),
    "Django": with_django,
}
