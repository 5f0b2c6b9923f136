"""Wake-ups are sent once jobs are committed: one for a lone job, few for many, none for what is not due yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tenure.errors import BadInput
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres import notify as wakeups
from tenure.postgres.enqueue import JobGroup, enqueue_plan
from tenure.postgres.notify import PAUSE_S, Wakeups, notify, queues_to_wake
from tenure.postgres.statement import Plan, run, run_sync
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.contracts.gate_b2 import left_pending
from tests.harness import Harness
from tests.postgres.listening import bare_ear

HOPELESS = Failure("never", type="PermanentError", retryable=False)
AGAIN = Failure("again", type="TransientError", retryable=True)


async def test_one_job_on_an_idle_queue_is_exactly_one_wakeup(store: Store, dsn: str) -> None:
    async with bare_ear(dsn) as ear:
        await store.enqueue(NewJob("t", queue="mail:eu"))
        assert await ear.come(store) == ["standard:mail:eu"]


async def test_ten_thousand_jobs_in_twenty_batches_are_at_most_twenty_one_wakeups(store: Store, dsn: str) -> None:
    async with bare_ear(dsn) as ear:
        for batch in range(20):
            await store.enqueue_many(
                [NewJob("t", {"n": n}, key=f"{batch} {n}" if n == 0 else None) for n in range(500)]
            )
        came = await ear.come(store)
    assert set(came) == {"standard:default"}
    assert 1 <= len(came) <= 21


async def test_a_batch_wakes_each_of_its_queues_once(store: Store, dsn: str) -> None:
    jobs = [NewJob("t", queue=f"q{n % 3}", contract=("standard", "phase27")[n % 2]) for n in range(60)]
    async with bare_ear(dsn) as ear:
        await store.enqueue_many(jobs)
        assert sorted(await ear.come(store)) == sorted({f"{job.contract}:{job.queue}" for job in jobs})


async def test_the_last_wakeup_of_a_burst_comes_after_the_last_job(store: Store, dsn: str) -> None:
    async with bare_ear(dsn) as ear:
        begun = time.monotonic()
        for _ in range(39):
            await store.enqueue(NewJob("t"))
        await ear.say("the last job")
        await store.enqueue(NewJob("t"))
        took = time.monotonic() - begun
        came = await ear.come(store)
    assert len(came) - 1 <= 2 + took / PAUSE_S, "a queue rests after each wake-up"
    assert "standard:default" in came[came.index("the last job") :]


async def test_only_jobs_that_can_be_claimed_now_wake_anybody(store: Store, dsn: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    async with bare_ear(dsn) as ear:
        await store.enqueue_many([NewJob("t", queue="a", delay_ms=60_000), NewJob("t", queue="b", run_at=later)])
        assert await ear.come(store) == []
        await store.enqueue_many([NewJob("t", queue="c", delay_ms=0), NewJob("t", queue="d", run_at=datetime.now(UTC))])
        assert sorted(await ear.come(store)) == ["standard:c", "standard:d"]


async def test_a_repeated_key_makes_no_job_and_no_wakeup(store: Store, dsn: str) -> None:
    await store.enqueue(NewJob("t", key="once"))
    async with Store.open(dsn) as rested, bare_ear(dsn) as ear:
        for _ in range(2):
            assert not (await rested.enqueue(NewJob("t", key="once"))).made
        assert await ear.come(rested) == []


async def test_what_is_run_again_or_promoted_wakes_its_contracts_workers(store: Store, dsn: str, db: Harness) -> None:
    jobs = []
    for contract in ("standard", "phase27", "dispatcher"):
        await store.enqueue(NewJob("t", contract=contract))
        jobs += await store.claim(contract, worker="w")
    dead, done, waits = jobs
    for job in jobs:
        await store.start(job.held)
    await store.fail(dead.held, HOPELESS)
    await store.succeed(done.held)
    await store.fail(waits.held, AGAIN)
    db.due(waits.id)
    async with bare_ear(dsn) as ear:
        await ear.come(store)
        await store.promote("standard")
        assert await ear.come(store) == []
        await store.letters.requeue((await store.letters.of_job(dead.id)).id, actor="ada")
        await store.requeue(done.id, actor="ada")
        await store.promote("dispatcher")
        assert sorted(await ear.come(store)) == ["dispatcher:", "phase27:", "standard:"]


async def test_wakeups_can_be_switched_off(dsn: str) -> None:
    assert Settings.load({}).wakeups is True
    assert Settings.load({"TENURE_WAKEUPS": "off"}).wakeups is False
    with pytest.raises(BadInput, match="TENURE_WAKEUPS must be on or off, not 'maybe'"):
        Settings.load({"TENURE_WAKEUPS": "maybe"})
    async with Store.open(dsn, wake=False) as store, bare_ear(dsn) as ear:
        await store.enqueue(NewJob("t"))
        assert await ear.come(store) == []


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue rests for an hour after a wake-up, and closing has a minute to send what is left."""
    monkeypatch.setattr(wakeups, "PAUSE_S", 3_600.0)
    monkeypatch.setattr(wakeups, "_CLOSE_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("long_rest")
async def test_closing_a_store_says_at_once_what_is_still_to_be_said(dsn: str) -> None:
    async with bare_ear(dsn) as ear:
        async with Store.open(dsn) as store:
            await store.enqueue(NewJob("t"))
            await store.enqueue(NewJob("t"))
            assert await ear.come() == ["standard:default"], "the second one rests"
        assert await ear.come() == ["standard:default"]


async def test_a_wakeup_that_cannot_be_sent_fails_no_enqueue(dsn: str, db: Harness) -> None:
    tried = asyncio.Semaphore(0)

    async def broken(plan: object) -> None:
        tried.release()
        raise psycopg.OperationalError("the server closed the connection")

    async with Store.open(dsn) as store:
        store._engine.wakeups = Wakeups(broken, on=True)
        for _ in range(3):
            made = await store.enqueue_many([NewJob("t"), NewJob("t", queue="other")])
            assert all(isinstance(one, Enqueued) and one.made for one in made)
            await tried.acquire()
    assert db.value("select count(*) from tenure.job") == 6


class Sent:
    """Stands for the database: notes which wake-ups a sender sends, and when."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.at: list[float] = []
        self._more = asyncio.Semaphore(0)

    async def __call__(self, plan: Callable[[], Plan[Any]]) -> list[tuple[str]]:
        self.names.append(str(next(plan()).values[0]))  # type: ignore[union-attr]
        self.at.append(time.monotonic())
        self._more.release()
        return [("",)]  # the queue of notifications had room

    async def one(self) -> None:
        """Wait for the next."""
        await self._more.acquire()


@pytest.mark.usefixtures("long_rest")
async def test_another_queue_need_not_wait_while_one_rests() -> None:
    sent = Sent()
    wakeups = Wakeups(sent, on=True)
    wakeups.request([("standard", "a")])
    await sent.one()
    wakeups.request([("standard", "a")])
    wakeups.request([("standard", "b")])
    await sent.one()
    assert sent.names == ['{"standard:a"}', '{"standard:b"}']
    await wakeups.close()
    assert sent.names == ['{"standard:a"}', '{"standard:b"}', '{"standard:a"}']


async def test_what_is_wanted_while_a_queue_rests_is_sent_after_the_rest() -> None:
    sent = Sent()
    wakeups = Wakeups(sent, on=True)
    wakeups.request([("standard", "a")])
    await sent.one()
    for _ in range(3):
        wakeups.request([("standard", "a")])
    await sent.one()
    assert sent.at[1] - sent.at[0] >= PAUSE_S
    await wakeups.close()
    assert sent.names == ['{"standard:a"}'] * 2


@pytest.mark.parametrize("commits", [True, False])
async def test_in_a_transaction_of_the_callers_the_wakeup_comes_with_the_commit(
    store: Store, dsn: str, db: Harness, commits: bool
) -> None:
    jobs = [NewJob("t", {}, queue="now"), NewJob("t", {}, queue="now"), NewJob("t", {}, queue="later", delay_ms=5_000)]
    order = JobGroup(await store._engine.bound_contract("standard"), jobs, ["{}"] * 3)
    async with bare_ear(dsn) as ear:
        async with await psycopg.AsyncConnection.connect(dsn) as theirs:
            await run(theirs, enqueue_plan([order], None))
            await run(theirs, notify(queues_to_wake(jobs)))
            assert await ear.come() == []
            await (theirs.commit() if commits else theirs.rollback())
        assert await ear.come() == (["standard:now"] if commits else [])
    assert db.value("select count(*) from tenure.job") == (3 if commits else 0)


def test_a_plan_for_no_job_that_is_due_sends_nothing(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        assert run_sync(connection, notify(queues_to_wake([NewJob("t", delay_ms=1)]))) == []
        assert connection.info.transaction_status.name == "IDLE"


async def test_settling_wakes_nobody(store: Store, dsn: str, db: Harness) -> None:
    job_id = (await store.enqueue(NewJob("t", contract="gate_b2"))).job_id
    await left_pending(store, db, job_id)
    async with bare_ear(dsn) as ear:
        await ear.come(store)
        await store.settle("gate_b2")
        assert await ear.come(store) == []
