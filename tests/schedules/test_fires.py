"""A fire time has its job once, whatever happens: policies, refusals, pauses, and changed declarations."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tenure.errors import BadInput, ScheduleConflict, ScheduleNotFound
from tenure.jobs.job import NewJob
from tenure.jobs.unique import Unique
from tenure.postgres.callers_transaction import CallersTransaction
from tenure.postgres.store import Store
from tenure.schedules.declaration import Schedule
from tests.harness import Harness
from tests.schedules.conftest import Rows, schedule


async def declared(store: Store, **given: Any) -> Schedule:
    made = schedule(**given)
    await store.schedules.declare([made], application="shop", by="w1")
    return made


async def test_a_due_schedule_makes_its_job_once_and_waits_for_the_next_time(
    store: Store, rows: Rows, report: Schedule
) -> None:
    assert (await store.schedules.fire_due()).jobs == 0, "it is not due yet"
    at = rows.due()
    assert (await store.schedules.fire_due()).jobs == 1
    assert (await store.schedules.fire_due()).jobs == 0
    (job,) = rows.jobs()
    assert (job["type"], job["payload"], job["state"]) == ("report", {"month": "May"}, "queued")
    assert job["correlation_id"] == f"schedule:report@{at:%Y-%m-%dT%H:%M:%S}.000000Z"
    assert job["created_by"] == "schedule:report"
    assert rows.fires() == [(at, "enqueued", 1)]
    assert rows.one()["fire_at"] == at + timedelta(minutes=5)
    (stored,) = await store.schedules.list()
    assert stored.last_fire is not None
    assert (stored.last_fire.job_id, stored.state, stored.trouble) == (job["id"], "active", None)


async def test_the_options_of_the_job_hold(store: Store, rows: Rows) -> None:
    job = NewJob(
        "send", {"to": "a"}, contract="reliability", queue="mail", tenant_id="acme", priority=2, max_attempts=3,
        trace_id="t", correlation_id="c", delay_ms=60_000,
    )  # fmt: skip
    await declared(store, job=job)
    rows.due()
    await store.schedules.fire_due()
    (made,) = rows.jobs()
    wanted = {
        "contract": "reliability", "queue": "mail", "tenant_id": "acme", "priority": 2, "max_attempts": 3,
        "trace_id": "t", "correlation_id": "c",
    }  # fmt: skip
    assert {name: made[name] for name in wanted} == wanted
    assert made["due_at"] - made["created_at"] == timedelta(minutes=1)


async def test_a_key_makes_one_job_for_all_fires(store: Store, rows: Rows) -> None:
    await declared(store, job=NewJob("report", key="only"), overlap="allow")
    rows.due()
    await store.schedules.fire_due()
    rows.due()
    await store.schedules.fire_due()
    assert len(rows.jobs()) == 1
    assert [result for _, result, _ in rows.fires()][-1] == "enqueued"


async def test_a_fire_time_that_was_fired_is_not_fired_again(
    store: Store, rows: Rows, db: Harness, report: Schedule
) -> None:
    at = rows.due()
    await store.schedules.fire_due()
    rows.finish_jobs()
    db.sql("update tenure.schedule set fire_at = %s, next_at = %s", at, at)
    assert (await store.schedules.fire_due()).jobs == 0
    assert rows.fires() == [(at, "enqueued", 1)]
    assert rows.one()["fire_at"] == at + timedelta(minutes=5)


async def test_once_makes_one_job_of_the_missed_times_and_records_the_others(
    store: Store, rows: Rows, report: Schedule
) -> None:
    first = rows.due(late=timedelta(minutes=20))
    await store.schedules.fire_due()
    assert rows.fires() == [(first, "skipped", 4), (first + timedelta(minutes=20), "enqueued", 1)]
    assert len(rows.jobs()) == 1


async def test_skip_makes_no_job_of_missed_times(store: Store, rows: Rows) -> None:
    await declared(store, missed="skip")
    first = rows.due(late=timedelta(minutes=22))
    await store.schedules.fire_due()
    assert rows.fires() == [(first, "skipped", 5)]
    assert rows.jobs() == []
    at = rows.due(late=timedelta(seconds=60))
    await store.schedules.fire_due()
    assert rows.fires()[-1] == (at, "enqueued", 1), "a minute late is not missed"


async def test_all_makes_up_for_every_missed_time(store: Store, rows: Rows) -> None:
    await declared(store, missed="all", overlap="allow")
    first = rows.due(late=timedelta(minutes=17))
    await store.schedules.fire_due()
    times = [first + timedelta(minutes=number) for number in (0, 5, 10, 15)]
    assert rows.fires() == [(at, "enqueued", 1) for at in times]
    made = [job["correlation_id"] for job in rows.jobs()]
    assert made == [f"schedule:report@{at:%Y-%m-%dT%H:%M:%S}.000000Z" for at in times]


async def test_a_fire_is_skipped_while_the_job_of_the_fire_before_is_live(
    store: Store, rows: Rows, report: Schedule
) -> None:
    rows.due()
    await store.schedules.fire_due()
    (job,) = rows.jobs()
    at = rows.due()
    assert (await store.schedules.fire_due()).jobs == 0
    assert rows.fires()[-1] == (at, "skipped", 1)
    (stored,) = await store.schedules.list()
    assert stored.trouble == f"last fire skipped: job {job['id']} of the fire before still waits or runs"
    rows.finish_jobs()
    rows.due()
    assert (await store.schedules.fire_due()).jobs == 1


async def test_a_skipped_fire_does_not_forget_the_job_that_still_runs(
    store: Store, rows: Rows, report: Schedule
) -> None:
    for _ in range(3):
        rows.due()
        await store.schedules.fire_due()
    assert [result for _, result, _ in rows.fires()] == ["enqueued", "skipped", "skipped"]


async def test_allow_makes_jobs_beside_each_other(store: Store, rows: Rows) -> None:
    await declared(store, overlap="allow")
    rows.due()
    await store.schedules.fire_due()
    rows.due()
    await store.schedules.fire_due()
    assert len(rows.jobs()) == 2


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"job": {"type": "report", "payload": {}, "contract": "gone"}}', "E-UNKNOWN-CONTRACT: no contract 'gone'"),
        ('{"job": {"type": "report", "payload": {}, "max_attempts": 100000}}', "E-BAD-INPUT: max_attempts of contract"),
        ('{"job": {"type": "report", "payload": {}, "delay_ms": 300000000000}}', "E-BAD-INPUT: PostgreSQL refused"),
    ],
)
async def test_a_refused_job_is_a_failed_fire_and_stops_no_other(
    store: Store, rows: Rows, db: Harness, caplog: pytest.LogCaptureFixture, broken: str, reason: str
) -> None:
    await store.schedules.declare([schedule("bad"), schedule("good"), schedule()], application="shop", by="w1")
    if "delay_ms" in broken:
        db.sql("alter table tenure.job add check (due_at < '2036-01-01')")
    db.sql("update tenure.schedule set declaration = declaration || %s::jsonb where name = 'bad'", broken)
    rows.due()
    with caplog.at_level(logging.WARNING, "tenure.upkeep"):
        assert (await store.schedules.fire_due()).jobs == 2
    assert [result for _, result, _ in rows.fires("good")] == ["enqueued"]
    assert [result for _, result, _ in rows.fires("bad")] == ["failed"]
    found = await store.schedules.find("bad")
    assert found.trouble is not None
    assert found.trouble.startswith(f"last fire failed: {reason}")
    (said,) = [record.getMessage() for record in caplog.records if record.name == "tenure.upkeep"]
    assert said.startswith("schedule shop/bad: no job for its fire time")
    assert (await store.schedules.fire_due()).jobs == 0, "it waits for its next time"


async def test_a_schedule_whose_job_waits_for_a_callers_transaction_holds_up_no_other(
    store: Store, rows: Rows, db: Harness, dsn: str
) -> None:
    unique = Unique("waiting")
    await store.schedules.declare(
        [schedule("stuck", NewJob("report", unique=unique)), schedule("good"), schedule()], application="shop", by="w1"
    )
    async with await psycopg.AsyncConnection.connect(dsn) as caller:
        transaction = CallersTransaction(store._engine.registry, 1_000_000, wake=False)
        await transaction.run_async(caller, transaction.enqueue([NewJob("report", unique=unique)]), "enqueue_in")
        rows.due()
        done = await store.schedules.fire_due()
        assert done.jobs == 2
        assert [trouble.split(":")[0] for trouble in done.troubles] == [f"schedule {rows.one('stuck')['id']}"]
        await caller.rollback()
    assert (await store.schedules.fire_due()).jobs == 1, "the next look tries it again"


async def test_a_schedule_that_cannot_be_decided_stops_no_other(store: Store, rows: Rows, db: Harness) -> None:
    await store.schedules.declare([schedule("bad"), schedule("good"), schedule()], application="shop", by="w1")
    db.sql("update tenure.schedule set declaration = declaration || '{\"cron\": \"@daily\", \"tz\": \"Mars/Base\"}' "
           "where name = 'bad'")  # fmt: skip
    rows.due()
    done = await store.schedules.fire_due()
    assert done.jobs == 2
    (trouble,) = done.troubles
    assert "Mars/Base" in trouble
    assert rows.fires("bad") == []


async def test_a_job_beyond_the_id_ranges_is_made(store: Store, rows: Rows, db: Harness, report: Schedule) -> None:
    db.sql("select setval('tenure.job_id_seq', (select max(high) from tenure.range))")
    rows.due()
    assert (await store.schedules.fire_due()).jobs == 1
    assert len(rows.fires()) == 1


async def test_a_paused_schedule_does_not_fire_and_a_resumed_one_does_not_make_up(
    store: Store, rows: Rows, report: Schedule
) -> None:
    paused = await store.schedules.pause("report", actor="ann", reason="migration")
    assert (paused.state, paused.paused_by, paused.pause_reason) == ("paused", "ann", "migration")
    again = await store.schedules.pause("report", actor="bob")
    assert (again.paused_by, again.paused_at) == ("ann", paused.paused_at)
    rows.due()
    assert (await store.schedules.fire_due()).jobs == 0
    resumed, changed = await store.schedules.resume("report")
    assert changed
    assert resumed.next_at is not None
    assert resumed.next_at > resumed.now
    assert (await store.schedules.fire_due()).jobs == 0
    assert (await store.schedules.resume("report"))[1] is False


async def test_run_now_makes_a_job_at_once_also_while_paused(store: Store, rows: Rows, report: Schedule) -> None:
    await store.schedules.pause("report", actor="ann")
    before = rows.one()
    fire = await store.schedules.run_now("report", application="shop", actor="ann")
    (job,) = rows.jobs()
    assert (fire.job_id, fire.by_hand, fire.reason) == (job["id"], True, "run by ann")
    assert fire.fire_at.microsecond
    assert rows.one()["next_at"] == before["next_at"]
    with pytest.raises(ScheduleConflict, match=f"job {job['id']} of schedule shop/report still waits or runs"):
        await store.schedules.run_now("report", application="shop", actor="ann")
    with pytest.raises(ScheduleNotFound):
        await store.schedules.run_now("report", application="other", actor="ann")
    with pytest.raises(ScheduleNotFound):
        await store.schedules.run_now("report", application="shop", actor="ann", tenant="acme")


async def test_a_run_by_hand_counts_for_the_overlap_of_the_next_fire(
    store: Store, rows: Rows, report: Schedule
) -> None:
    await store.schedules.run_now("report", application="shop", actor="ann")
    at = rows.due()
    await store.schedules.fire_due()
    assert (at, "skipped", 1) in rows.fires()


async def test_a_run_by_hand_that_is_refused_records_nothing(store: Store, rows: Rows, db: Harness) -> None:
    await declared(store)
    db.sql("""update tenure.schedule set declaration = jsonb_set(declaration, '{job,contract}', '"gone"')""")
    with pytest.raises(BadInput, match="nothing was made"):
        await store.schedules.run_now("report", application="shop", actor="ann")
    assert rows.fires() == []


async def test_a_withdrawn_schedule_is_not_run_by_hand(store: Store, rows: Rows, report: Schedule) -> None:
    rows.due()
    await store.schedules.withdraw("shop")
    with pytest.raises(ScheduleConflict, match="no live worker's code declares it"):
        await store.schedules.run_now("report", application="shop", actor="ann")


async def test_old_fires_leave_and_the_last_of_each_schedule_stays(store: Store, rows: Rows, db: Harness) -> None:
    await declared(store, overlap="allow")
    times = []
    for _ in range(5):
        times.append(rows.due())
        await store.schedules.fire_due()
    assert await store.history.forget_fires(3_600) == 0
    rows.clock.set(times[-1] + timedelta(days=31))
    assert await store.history.forget_fires() == 4
    assert rows.fires() == [(times[-1], "enqueued", 1)]
