"""Wake-ups are sent once jobs are committed: one for a lone job, few for many, none for what is not due yet."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tenure.errors import BadInput
from tenure.job import Failure, NewJob
from tenure.postgres.enqueue import Order, enqueue
from tenure.postgres.statement import Plan, run, run_sync
from tenure.postgres.store import Store
from tenure.postgres.wake import REST, Wakeups, due, notify
from tenure.settings import Settings
from tests.contracts.gate_b2 import left_pending
from tests.harness import Harness
from tests.postgres.listening import bare_ear

HOPELESS = Failure("never", type="PermanentError", retryable=False)
AGAIN = Failure("again", type="TransientError", retryable=True)


async def test_one_job_on_an_idle_queue_is_exactly_one_wakeup(store: Store, dsn: str) -> None:
    async with bare_ear(dsn) as come:
        await store.enqueue(NewJob("t", queue="mail:eu"))
        assert await come(0.3) == ["standard:mail:eu"]


async def test_ten_thousand_jobs_in_twenty_batches_are_at_most_twenty_one_wakeups(store: Store, dsn: str) -> None:
    async with bare_ear(dsn) as come:
        for batch in range(20):
            await store.enqueue_many(
                [NewJob("t", {"n": n}, key=f"{batch} {n}" if n == 0 else None) for n in range(500)]
            )
        came = await come(0.5)
    assert set(came) == {"standard:default"}
    assert 1 <= len(came) <= 21


async def test_a_batch_wakes_each_of_its_queues_once(store: Store, dsn: str) -> None:
    jobs = [NewJob("t", queue=f"q{n % 3}", contract=("standard", "phase27")[n % 2]) for n in range(60)]
    async with bare_ear(dsn) as come:
        await store.enqueue_many(jobs)
        assert sorted(await come(0.3)) == sorted({f"{job.contract}:{job.queue}" for job in jobs})


async def test_the_last_wakeup_of_a_burst_comes_after_the_last_job(store: Store, dsn: str) -> None:
    async with bare_ear(dsn) as come:
        begun = time.monotonic()
        for _ in range(40):
            await store.enqueue(NewJob("t"))
        took = time.monotonic() - begun
        came = await come(0.3)
    assert 2 <= len(came) <= 2 + took / REST


async def test_only_jobs_that_can_be_claimed_now_wake_anybody(store: Store, dsn: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    async with bare_ear(dsn) as come:
        await store.enqueue_many([NewJob("t", queue="a", delay_ms=60_000), NewJob("t", queue="b", run_at=later)])
        assert await come(0.1) == []
        await store.enqueue_many([NewJob("t", queue="c", delay_ms=0), NewJob("t", queue="d", run_at=datetime.now(UTC))])
        assert sorted(await come(0.1)) == ["standard:c", "standard:d"]


async def test_a_repeated_key_makes_no_job_and_no_wakeup(store: Store, dsn: str) -> None:
    await store.enqueue(NewJob("t", key="once"))
    await asyncio.sleep(2 * REST)
    async with bare_ear(dsn) as come:
        assert not (await store.enqueue(NewJob("t", key="once"))).made
        assert await come(0.1) == []


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
    await asyncio.sleep(2 * REST)
    async with bare_ear(dsn) as come:
        await store.promote("standard")
        assert await come(0.1) == []
        await store.letters.requeue((await store.letters.of_job(dead.id)).id, actor="ada")
        await store.requeue(done.id, actor="ada")
        await store.promote("dispatcher")
        assert sorted(await come(0.2)) == ["dispatcher:", "phase27:", "standard:"]


async def test_wakeups_can_be_switched_off(dsn: str) -> None:
    assert Settings.load({}).wakeups is True
    assert Settings.load({"TENURE_WAKEUPS": "off"}).wakeups is False
    with pytest.raises(BadInput, match="TENURE_WAKEUPS must be on or off, not 'maybe'"):
        Settings.load({"TENURE_WAKEUPS": "maybe"})
    async with Store.open(dsn, wake=False) as store, bare_ear(dsn) as come:
        await store.enqueue(NewJob("t"))
        assert await come(0.1) == []


async def test_closing_a_store_says_at_once_what_is_still_to_be_said(dsn: str) -> None:
    async with bare_ear(dsn) as come:
        begun = time.monotonic()
        async with Store.open(dsn) as store:
            await store.enqueue(NewJob("t"))
            await asyncio.sleep(REST / 2)
            await store.enqueue(NewJob("t"))
        assert time.monotonic() - begun < 1
        assert len(await come(0.1)) == 2


async def test_a_wakeup_that_cannot_be_sent_fails_no_enqueue(dsn: str, db: Harness) -> None:
    async def broken(plan: object) -> None:
        raise psycopg.OperationalError("the server closed the connection")

    async with Store.open(dsn) as store:
        store._engine.wakeups = Wakeups(broken, on=True)
        for _ in range(3):
            assert (await store.enqueue(NewJob("t"))).made
            await asyncio.sleep(2 * REST)
    assert db.value("select count(*) from tenure.job") == 3


async def test_another_queue_need_not_wait_while_one_rests() -> None:
    sent: list[tuple[float, str]] = []

    async def note(plan: object) -> None:
        assert callable(plan)
        made: Plan[None] = plan()
        names = str(next(made).values[0])  # type: ignore[union-attr]
        sent.append((time.monotonic(), names))

    wakeups = Wakeups(note, on=True)
    wakeups.want([("standard", "a")])
    await asyncio.sleep(REST / 10)
    wakeups.want([("standard", "a")])
    wakeups.want([("standard", "b")])
    await asyncio.sleep(REST / 10)
    assert [names for _, names in sent] == ['{"standard:a"}', '{"standard:b"}']
    await asyncio.sleep(3 * REST)
    assert [names for _, names in sent] == ['{"standard:a"}', '{"standard:b"}', '{"standard:a"}']
    assert sent[2][0] - sent[0][0] >= REST


@pytest.mark.parametrize("commits", [True, False])
async def test_in_a_transaction_of_the_callers_the_wakeup_comes_with_the_commit(
    store: Store, dsn: str, db: Harness, commits: bool
) -> None:
    jobs = [NewJob("t", {}, queue="now"), NewJob("t", {}, queue="now"), NewJob("t", {}, queue="later", delay_ms=5_000)]
    order = Order(await store._engine.machine("standard"), jobs, ["{}"] * 3)
    async with bare_ear(dsn) as come:
        async with await psycopg.AsyncConnection.connect(dsn) as theirs:
            await run(theirs, enqueue([order], None))
            await run(theirs, notify(due(jobs)))
            assert await come(0.1) == []
            await (theirs.commit() if commits else theirs.rollback())
        assert await come(0.1) == (["standard:now"] if commits else [])
    assert db.value("select count(*) from tenure.job") == (3 if commits else 0)


def test_a_plan_for_no_job_that_is_due_sends_nothing(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        assert run_sync(connection, notify(due([NewJob("t", delay_ms=1)]))) == []
        assert connection.info.transaction_status.name == "IDLE"


async def test_settling_wakes_nobody(store: Store, dsn: str, db: Harness) -> None:
    job_id = (await store.enqueue(NewJob("t", contract="gate_b2"))).job_id
    await left_pending(store, db, job_id)
    await asyncio.sleep(2 * REST)
    async with bare_ear(dsn) as come:
        await store.settle("gate_b2")
        assert await come(0.1) == []
