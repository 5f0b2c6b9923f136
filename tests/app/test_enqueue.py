"""Jobs are made from async code, from synchronous code, in the caller's own transaction, and in any number."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg.pq import ConnStatus

import tenure
from tenure.app import App
from tenure.errors import BadInput
from tests.harness import Harness
from tests.worker.working import quick


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An application with one task."""
    async with quick(dsn) as app:

        @app.task(queue="mail", max_attempts=7)
        async def send(to: str, *, subject: str = "hello") -> int:
            return len(to) + len(subject)

        yield app


def test_an_app_connects_to_nothing_and_imports_no_driver_until_first_use() -> None:
    code = (
        "import sys, tenure; app = tenure.App()\n"
        "@app.task\ndef f(n: int) -> int: return n\n"
        "f.call(1)\n"
        "sys.exit(any(name.split('.')[0] in ('psycopg', 'psycopg_pool') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_job_is_made_with_what_its_task_declares(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    ticket = await send.enqueue("a@b.c", subject="hi")
    row = db.row(ticket.id)
    assert (row["type"], row["queue"], row["max_attempts"]) == ("send", "mail", 7)
    assert row["payload"] == {"to": "a@b.c", "subject": "hi"}
    assert ticket.made


async def test_options_change_one_job_and_not_the_task(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    due = datetime.now(UTC) + timedelta(hours=1)
    other = send.options(
        run_at=due, priority=1, queue="slow", key="welcome:42", tenant="acme", correlation_id="order 7",
        max_attempts=2, contract="phase27", timeout=5,
    )  # fmt: skip
    row = db.row((await other.enqueue("a@b.c")).id)
    shown = (
        "queue",
        "priority",
        "tenant_id",
        "correlation_id",
        "max_attempts",
        "contract",
        "due_at",
        "idempotency_key",
    )
    assert [row[name] for name in shown] == ["slow", 1, "acme", "order 7", 2, "phase27", due, "welcome:42"]
    assert row["payload"]["$timeout"] == 5
    plain = db.row((await send.enqueue("a@b.c")).id)
    assert (plain["queue"], plain["contract"], plain["idempotency_key"]) == ("mail", "standard", None)


async def test_one_key_is_one_job_and_the_second_ticket_says_so(app: App) -> None:
    welcome = app.tasks["send"].options(key="welcome:42")
    first, second = await welcome.enqueue("a@b.c"), await welcome.enqueue("a@b.c")
    assert (first.id, first.made, second.made) == (second.id, True, False)
    with pytest.raises(tenure.TenureError, match="welcome:42"):
        await welcome.enqueue("somebody@else")


@pytest.mark.parametrize(
    "options", [{"delay": -1}, {"delay": "soon"}, {"priority": 10}, {"timeout": 0}, {"timeout": 1e9}, {"key": ""}]
)
async def test_an_option_that_makes_no_sense_is_refused_and_nothing_is_written(
    app: App, db: Harness, options: dict[str, object]
) -> None:
    with pytest.raises(BadInput):
        await app.tasks["send"].options(**options).enqueue("a@b.c")  # type: ignore[arg-type]
    assert db.value("select count(*) from tenure.job") == 0


async def test_arguments_that_do_not_fit_the_signature_are_refused(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    for args, kwargs in (((), {}), (("a", "b"), {}), (("a",), {"topic": "b"})):
        with pytest.raises(BadInput, match="send"):
            await send.enqueue(*args, **kwargs)
    with pytest.raises(BadInput, match="to"):
        await send.enqueue(object())
    assert db.value("select count(*) from tenure.job") == 0


async def test_synchronous_code_enqueues_from_any_thread(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    with ThreadPoolExecutor(8) as threads:
        tickets = await asyncio.gather(
            *(asyncio.get_running_loop().run_in_executor(threads, send.enqueue_sync, f"{n}@b.c") for n in range(40))
        )
    assert len({ticket.id for ticket in tickets}) == 40
    assert db.value("select count(*) from tenure.job") == 40


def test_a_program_without_an_event_loop_enqueues_and_waits(dsn: str, db: Harness) -> None:
    app = App(dsn)

    @app.task
    def double(n: int) -> int:
        return 2 * n

    ticket = double.enqueue_sync(21)
    worker = threading.Thread(target=lambda: asyncio.run(app.worker(poll=0.05).run(until_idle=True)))
    worker.start()
    assert app.result_sync(ticket, timeout=60) == 42
    worker.join()
    asyncio.run(app.close())


async def test_enqueue_in_a_synchronous_transaction_is_made_by_its_commit_alone(
    app: App, dsn: str, db: Harness
) -> None:
    send = app.tasks["send"]
    with psycopg.connect(dsn) as connection:
        connection.execute("create table customer (name text)")
        connection.commit()
        connection.execute("insert into customer values ('Ada')")
        rolled_back = send.enqueue_in(connection, "ada@b.c")
        keyed = send.options(key="ada").enqueue_in(connection, "ada@b.c")
        assert db.value("select count(*) from tenure.job") == 0
        connection.rollback()
        assert db.value("select count(*) from tenure.job") == 0
        kept = send.options(key="ada").enqueue_in(connection, "ada@b.c")
        connection.execute("insert into customer values ('Ada')")
        connection.commit()
    assert db.value("select array_agg(id) from tenure.job") == [kept.id]
    assert db.value("select count(*) from customer") == 1
    assert rolled_back.id != keyed.id


async def test_enqueue_in_an_asynchronous_transaction_is_made_by_its_commit_alone(
    app: App, dsn: str, db: Harness
) -> None:
    send = app.tasks["send"]
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await send.enqueue_in(connection, "a@b.c")
        await connection.rollback()
        async with connection.transaction():
            ticket = await send.options(contract="dispatcher").enqueue_in(connection, "a@b.c")
    assert db.value("select array_agg(id) from tenure.job") == [ticket.id]


async def test_enqueue_in_leaves_the_callers_connection_as_it_was(app: App, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        before = connection.execute("select name, setting from pg_settings order by name").fetchall()
        app.tasks["send"].enqueue_in(connection, "a@b.c")
        assert connection.execute("select name, setting from pg_settings order by name").fetchall() == before


async def test_enqueue_in_what_is_no_connection_is_refused(app: App) -> None:
    with pytest.raises(BadInput, match="psycopg connection"):
        app.tasks["send"].enqueue_in("a@b.c")  # type: ignore[call-overload]


async def test_any_number_of_calls_is_enqueued_in_batches(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    told: list[int] = []
    ids = await app.enqueue_many((send.call(f"{n}@b.c") for n in range(2_500)), progress=told.append)
    assert told == [1_000, 2_000, 2_500]
    assert db.value("select array_agg(id order by id) from tenure.job") == sorted(ids)

    async def calls() -> AsyncIterator[object]:
        for n in range(3):
            yield send.call(f"{n}@b.c")

    assert len(await app.enqueue_many(calls())) == 3  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"task\.call"):
        await app.enqueue_many([send])  # type: ignore[list-item]


async def test_enqueues_at_the_same_time_share_their_statements(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    await send.enqueue("first@b.c")
    tickets = await asyncio.gather(*(send.enqueue(f"{n}@b.c") for n in range(500)))
    assert len({ticket.id for ticket in tickets}) == 500
    assert db.value("select count(distinct xmin::text) from tenure.job") <= 4


async def test_one_bad_job_in_a_batch_is_its_callers_trouble_alone(app: App, db: Harness) -> None:
    send = app.tasks["send"]
    answers = await asyncio.gather(
        *(send.options(priority=5 if n != 3 else 11).enqueue(f"{n}@b.c") for n in range(8)), return_exceptions=True
    )
    assert [isinstance(answer, BadInput) for answer in answers] == [n == 3 for n in range(8)]
    assert db.value("select count(*) from tenure.job") == 7


def test_two_tasks_of_one_name_are_refused(dsn: str) -> None:
    app = quick(dsn)
    app.task(name="send")(lambda: None)
    with pytest.raises(BadInput, match="already declared"):
        app.task(name="send")(lambda: None)


def test_a_task_is_still_a_function(dsn: str) -> None:
    app = quick(dsn)

    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8


def test_connections_of_an_event_loop_that_has_ended_are_closed_by_the_next_one(dsn: str, db: Harness) -> None:
    app = App(dsn)

    @app.task
    def nothing() -> None: ...

    opened: list[psycopg.pq.abc.PGconn] = []
    for _ in range(3):
        asyncio.run(nothing.enqueue())
        clients: list[Any] = [opening.result() for opening in app._connections._clients.values()]
        assert {each.status for each in opened} <= {ConnStatus.BAD}
        opened += [each.pgconn for client in clients for each in client.store._engine._opened]
        assert ConnStatus.OK in {each.status for each in opened}
    asyncio.run(app.close())
