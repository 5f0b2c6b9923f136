"""A text that this database or connection cannot store is one caller's error, and costs no neighbour its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.app import App
from tenure.errors import BadInput
from tenure.http.job_calls import JobCalls
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.conftest import own_database
from tests.harness import Harness
from tests.worker.working import steady, until, working

WRONG = "日本"
FINE = "Zürich"


@pytest.fixture(scope="module")
def latin(server: str) -> Iterator[str]:
    """A database whose encoding has no Japanese."""
    with own_database(server, "template template0 encoding LATIN1 locale 'C'") as made:
        migrate(made)
        yield made


def eyes(dsn: str) -> Harness:
    """What is stored, in letters that can be read."""
    return Harness(make_conninfo(dsn, client_encoding="UTF8"))


@pytest.fixture
async def app(latin: str) -> AsyncIterator[App]:
    """An application on it."""
    async with steady(latin) as app:
        yield app


async def test_callers_whose_text_can_be_stored_are_not_failed_by_one_whose_cannot(app: App, latin: str) -> None:
    @app.task
    async def send(text: str) -> str:
        return text

    calls = [send.options(key=key) for key in (None, "k")]
    for n, call in enumerate(calls):
        keyed = [call.options(key=f"{n}:{m}") if n else call for m in range(6)]
        answers = await asyncio.gather(
            *(task.enqueue(WRONG if m == 3 else FINE) for m, task in enumerate(keyed)), return_exceptions=True
        )
        refused = answers.pop(3)
        assert isinstance(refused, BadInput), refused
        assert "a character that this database or connection cannot store" in str(refused)
        assert "Next: leave the character out, or use a database with encoding UTF8" in str(refused)
        with eyes(latin) as db:
            for ticket in answers:
                assert not isinstance(ticket, BaseException), ticket
                assert db.row(ticket.id)["payload"] == {"text": FINE}


async def test_every_way_to_enqueue_names_the_error(app: App, latin: str) -> None:
    @app.task
    async def send(text: str) -> str:
        return text

    with pytest.raises(BadInput, match="cannot store"):
        await app.enqueue_many([send.call(FINE), send.call(WRONG)])
    with psycopg.connect(latin) as connection, pytest.raises(BadInput, match="cannot store"):
        send.enqueue_in(connection, WRONG)
    with psycopg.connect(latin, client_encoding="LATIN1") as connection, pytest.raises(BadInput, match="cannot store"):
        send.enqueue_in(connection, WRONG)
    async with Store.open(latin) as store:
        for field in ("queue", "type", "key", "tenant_id", "correlation_id"):
            odd: dict[str, Any] = {"type": "t", field: WRONG}
            with pytest.raises(BadInput, match="cannot store"):
                await store.enqueue(NewJob(**odd))


async def test_one_result_or_reason_that_cannot_be_stored_fails_no_neighbour(latin: str) -> None:
    async with Store.open(latin) as store:
        desk = JobCalls(store)
        for verb, facts in (("succeed", "result"), ("cancelled", "reason"), ("hand_back", "reason")):
            await store.enqueue_many([NewJob("t", queue=verb) for _ in range(5)])
            jobs = await store.claim(queues=[verb], worker="w", limit=5)
            told: list[dict[str, Any]] = [{facts: WRONG if n == 2 else FINE} for n in range(5)]
            said = [HolderCall(job.held, **fact) for job, fact in zip(jobs, told, strict=True)]
            answers = await asyncio.gather(*(desk.report(verb, one) for one in said), return_exceptions=True)
            assert isinstance(answers.pop(2), BadInput)
            assert [type(one) for one in answers] == [Moved] * 4, (verb, answers)


async def test_failure_is_stored_whatever_its_text(latin: str) -> None:
    async with Store.open(latin) as store:
        desk = JobCalls(store)
        await store.enqueue_many([NewJob("t", queue="fail") for _ in range(5)])
        jobs = await store.claim(queues=["fail"], worker="w", limit=5)
        said = [HolderCall(job.held, failure=Failure(WRONG if n == 2 else FINE)) for n, job in enumerate(jobs)]
        answers = await asyncio.gather(*(desk.report("fail", one) for one in said), return_exceptions=True)
        assert [type(one) for one in answers] == [Moved] * 5, answers
        with eyes(latin) as db:
            told = [db.row(job.id)["last_error"]["message"] for job in jobs]
        assert told == [FINE, FINE, r"\u65e5\u672c", FINE, FINE]


async def test_handler_whose_result_or_error_cannot_be_stored_fails_alone(app: App, latin: str) -> None:
    @app.task(max_attempts=1)
    async def echo(codes: list[int], *, fails: bool = False) -> str:
        text = "".join(map(chr, codes))
        if fails:
            raise ValueError(text)
        return text

    fine, wrong = [ord(one) for one in FINE], [ord(one) for one in WRONG]
    tickets = [await echo.enqueue(wrong if n == 3 else fine) for n in range(6)]
    bad = await echo.enqueue(wrong, fails=True)
    async with working(app):
        with eyes(latin) as db:
            ids = [ticket.id for ticket in (*tickets, bad)]
            await until(lambda: all(db.row(one)["role"] == "done" for one in ids))
            states = [db.row(one)["state"] for one in ids]
            assert states == ["succeeded"] * 3 + ["dead"] + ["succeeded"] * 2 + ["dead"]
            assert r"\u65e5\u672c" in db.row(bad.id)["last_error"]["message"]


async def test_encoding_of_the_client_is_the_engines_own(dsn: str, db: Harness) -> None:
    for address in (make_conninfo(dsn, client_encoding="LATIN1"), make_conninfo(dsn, client_encoding="SQL_ASCII")):
        async with Store.open(address) as store:
            made = await store.enqueue(NewJob("t", {"text": WRONG}))
            assert isinstance(made, Enqueued)
            (seen,) = await store.jobs([made.job_id])
            assert seen.payload == {"text": WRONG}
            assert db.row(made.job_id)["payload"] == {"text": WRONG}
