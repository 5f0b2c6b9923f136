"""Upkeep's look finds the next fire, and starts firing when it is due; without schedules nothing is asked of them."""

from __future__ import annotations

import logging

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.schedules.declaration import declare
from tenure.schedules.timing import timing
from tenure.upkeep import KeepTimes
from tenure.upkeep import once as run_once
from tests.harness import Harness
from tests.upkeep.running import QUICK, Observed, running, until

REPORT = declare("report", NewJob("report"), timing(days=1))


async def stored(store: Store, db: Harness) -> None:
    """A schedule that is due."""
    await store.schedules.declare([REPORT], application="shop")
    db.sql("update tenure.schedule set fire_at = date_trunc('day', now()), next_at = date_trunc('day', now())")


async def test_upkeep_fires_what_is_due(store: Store, db: Harness) -> None:
    loops = Observed(store, periods=QUICK)
    async with running(loops):
        await loops.another("look")
        assert loops.ended["fire"] == 0
        await stored(store, db)
        await until(lambda: loops.counts.get("fire") == 1)
    assert db.value("select count(*) from tenure.job where type = 'report'") == 1


async def test_idle_upkeep_does_not_look_for_schedules_that_do_not_fire(store: Store, db: Harness) -> None:
    await stored(store, db)
    await store.schedules.pause("report", actor="ann")
    assert (await store.watch.find_pending()).next_fire_at is None
    assert await store._engine.ask("find_due_schedules", after_at="-infinity", after_id=0, limit=10) == []
    await store.schedules.resume("report")
    assert (await store.watch.find_pending()).next_fire_at is not None
    db.sql("update tenure.schedule set withdrawn_at = now()")
    assert (await store.watch.find_pending()).next_fire_at is None


async def test_a_schedule_that_cannot_be_decided_is_reported_once_and_tried_again(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await stored(store, db)
    db.sql('update tenure.schedule set declaration = declaration || \'{"cron": "@daily", "tz": "Mars/Base"}\'')
    with caplog.at_level(logging.WARNING, "tenure.upkeep"):
        loops = Observed(store, periods=QUICK)
        async with running(loops):
            await until(lambda: loops.troubled["fire"] >= 2)
            db.sql('update tenure.schedule set declaration = declaration || \'{"tz": "UTC"}\'')
            await until(lambda: loops.counts.get("fire") == 1)
    assert sum("Mars/Base" in record.getMessage() for record in caplog.records) == 1


async def test_one_round_fires_and_forgets_old_fires(store: Store, db: Harness) -> None:
    await stored(store, db)
    done = {report.part: report.did for report in await run_once(store)}
    assert done["fire"] == 1
    db.sql("delete from tenure.job")
    await store.schedules.run_now("report", application="shop", actor="ann")
    db.sql("update tenure.schedule_fire set at = at - interval '2 minutes'")
    done = {report.part: report.did for report in await run_once(store, KeepTimes(schedule_fires_s=60))}
    assert done["forget fires"] == 1
