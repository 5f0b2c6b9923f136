"""Options of job types, with several releases and applications on one database: each worker's own numbers hold."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.jobs.job import NewJob
from tenure.jobs.job_type import JobType
from tenure.postgres.store import Store
from tests.contracts.job_types import beat
from tests.harness import Harness
from tests.worker.working import steady, until, working

pytestmark = pytest.mark.usefixtures("patient_presence")


def release(dsn: str, *, application: str = "shop", **options: Any) -> App:
    """A release of an application whose task `index` has these options."""
    app = steady(dsn)
    app._module = application

    @app.task(contract="reliability", **options)
    async def index(*, fails: bool = False) -> None:
        if fails:
            raise tenure.TransientError("no answer")

    return app


async def declared(store: Store) -> list[str]:
    """Which types have options in force."""
    return [one.type for one in await store.types.list()]


def declared_long_ago(db: Harness) -> None:
    """Let the options be older than the time that a worker has to write its row."""
    db.sql("update tenure.job_type set updated_at = updated_at - interval '1 minute'")


async def test_a_newer_releases_heartbeat_does_not_orphan_an_older_workers_job(
    dsn: str, store: Store, db: Harness
) -> None:
    older, newer = steady(dsn), release(dsn, heartbeat=10, lease=60)
    going, end = asyncio.Event(), asyncio.Event()

    @older.task(contract="reliability")
    async def index() -> None:
        going.set()
        await end.wait()

    async with older, newer:
        job = await newer.tasks["index"].enqueue()
        async with working(older, upkeep=False):
            await asyncio.wait_for(going.wait(), 60)
            beat(db, job.id, 25)  # two beats of the newer release are missed, and not two of the contract's own
            reaped = await store.reap("reliability")
            end.set()
            assert reaped == []
            await older.result(job, timeout=60)


async def test_a_failure_waits_as_long_as_the_workers_own_code_says(dsn: str, db: Harness) -> None:
    older, newer = release(dsn), release(dsn, backoff_base=3_600, backoff_cap=7_200)
    async with older, newer:
        job = await newer.tasks["index"].options(max_attempts=2).enqueue(fails=True)
        async with working(older, upkeep=False) as worker:
            await until(lambda: worker.counts["retried"] == 1)
        (first, *_) = [event for event in db.log(job.id) if event["trigger"] == "retry"]
        assert first["facts"]["delay_ms"] < 60_000


async def test_options_removed_from_the_code_end_with_the_release_that_had_them(
    dsn: str, store: Store, db: Harness
) -> None:
    before, after = release(dsn, max_attempts=9), release(dsn)
    async with before, after:
        await before.worker(upkeep=False).run(until_idle=True)
        assert await declared(store) == ["index"]
        declared_long_ago(db)
        await after.worker(upkeep=False).run(until_idle=True)
        assert await declared(store) == []
        made = await store.enqueue(NewJob("index", contract="reliability"))
        assert (await store.jobs([made.job_id]))[0].max_attempts != 9


async def test_options_end_also_where_the_old_release_stops_after_the_new_one_began(
    dsn: str, store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.presence.EVERY_S", 0.05)
    before, after = release(dsn, max_attempts=9), release(dsn)
    async with before, after:
        async with working(after, upkeep=False, name="new"):
            async with working(before, upkeep=False, name="old"):
                await until(lambda: db.value("select count(*) from tenure.worker") == 2)
                declared_long_ago(db)
                assert await store.types.withdraw("shop") == [], "a live worker declares it"
                assert await declared(store) == ["index"]
            await until(lambda: db.value("select count(*) from tenure.job_type where withdrawn_at is not null") == 1)
        assert await declared(store) == []


async def test_options_stay_while_the_worker_that_declared_them_is_still_starting(store: Store, db: Harness) -> None:
    options = [JobType("index", "reliability", max_attempts=9)]
    await store.types.declare(options, application="shop", by="first")
    assert await store.types.withdraw("shop") == [], "its worker has no row yet"
    declared_long_ago(db)
    await store.types.declare(options, application="shop", by="second")
    assert await store.types.withdraw("shop") == [], "the second worker declared the same options just now"
    declared_long_ago(db)
    assert await store.types.withdraw("shop") == [("reliability", "index")], "no worker with these options started"


async def test_a_worker_leaves_alone_what_another_application_declared(dsn: str, store: Store, db: Harness) -> None:
    shop, other = release(dsn, max_attempts=9), release(dsn, application="press")
    async with shop, other:
        await shop.worker(upkeep=False).run(until_idle=True)
        declared_long_ago(db)
        await other.worker(upkeep=False).run(until_idle=True)
        assert await declared(store) == ["index"]
        (entry,) = await store.types.entries()
        assert entry.application == "shop"


async def test_two_applications_do_not_write_over_each_others_options(
    dsn: str, store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    shop, press = release(dsn, lease=100), release(dsn, application="press", lease=50)
    async with shop, press:
        async with working(shop, upkeep=False, name="w1"):
            await until(lambda: db.value("select count(*) from tenure.worker") == 1)
            with caplog.at_level(logging.WARNING, "tenure"):
                await press.worker(upkeep=False, name="w2").run(until_idle=True)
            (entry,) = await store.types.entries()
            assert (entry.application, entry.options.lease_ttl_sec) == ("shop", 100)
            assert "index" in caplog.text
            assert "shop" in caplog.text
        # Nobody of the first application declares it any more: the other one's word counts.
        await press.worker(upkeep=False, name="w3").run(until_idle=True)
        (entry,) = await store.types.entries()
        assert (entry.application, entry.options.lease_ttl_sec) == ("press", 50)


async def test_a_limit_that_the_enqueuing_code_declares_wins_over_the_stored_one(dsn: str, store: Store) -> None:
    web, other = release(dsn, max_attempts=3), release(dsn, application="press", max_attempts=7)
    async with web, other:
        assert (await store.jobs([(await web.tasks["index"].enqueue()).id]))[0].max_attempts == 3
        await other.tasks["index"].enqueue()
        assert (await store.jobs([(await web.tasks["index"].enqueue()).id]))[0].max_attempts == 3


async def test_an_application_without_a_name_is_known_by_the_module_that_made_it(dsn: str) -> None:
    assert App(dsn).application == __name__
