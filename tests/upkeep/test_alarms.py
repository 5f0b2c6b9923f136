"""Alarms: which conditions are found, that they fire once and clear, and mutes."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.errors import BadInput, TenureError
from tenure.jobs.alarm import ALARMS, Alarm, AlarmLimits
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.alarms import _falls_below
from tenure.postgres.store import Store
from tests.harness import Harness

NEVER = Failure("never", type="PermanentError", code="NEVER", retryable=False)


async def firing(store: Store, limits: AlarmLimits | None = None) -> dict[str, Alarm]:
    """The alarms that hold after a look, by kind."""
    await store.alarms.evaluate(limits, pause_s=0.0)
    return {one.kind: one for one in await store.alarms.list()}


async def test_waiting_jobs_without_workers_are_found_and_forgotten(store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("send", queue="mail"), NewJob("sned", queue="mail"), NewJob("t", queue="rest")])
    assert await firing(store) == {}
    db.sql("update tenure.job set due_at = now() - interval '6 min'")
    await store.workers.enter([LiveWorker("w1", ("mail",), ("standard",), ("send",))])
    found = await firing(store)
    assert set(found) == {"oldest-waiting", "no-worker", "type-unknown"}
    assert found["type-unknown"].subject == "standard mail sned"
    assert found["no-worker"].subject == "standard rest t"
    assert found["oldest-waiting"].severity == "P2"
    await store.queues.pause("rest", actor="ada")
    assert {one.subject for one in await store.alarms.list()} > {"rest"}
    await firing(store)
    assert "rest" not in {one.subject for one in await store.alarms.list()}, "a pause is a decision"
    db.sql("delete from tenure.job")
    assert await firing(store) == {}
    assert {one.kind for one in await store.alarms.list(history=True)} == {
        "oldest-waiting",
        "no-worker",
        "type-unknown",
    }


async def test_what_upkeep_and_the_server_leave_undone_is_found(store: Store, db: Harness, dsn: str) -> None:
    await store.enqueue(NewJob("t"))
    db.sql(
        "update tenure.job set seq = 1, role = 'active', state = 'running', lease_expires_at = now() - interval '2 min'"
    )
    db.sql("insert into tenure.published_queue (queue, url, fill_end) values ('mail', 'https://q', 0)")
    db.sql(
        "insert into tenure.outbox (job_id, contract, queue, publish_at, due_at) "
        "values (1, 'dispatcher', 'mail', now(), now() - interval '2 min')"
    )
    before = db.value("select setval('tenure.job_id_seq', 5242776)")
    assert before
    with psycopg.connect(make_conninfo(dsn, application_name="report")) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select 1")
        found = await firing(store, AlarmLimits(snapshot_s=0.0))
        assert found["xmin-pinned"].subject == str(idle.info.backend_pid)
    assert set(found) == {"reaper-behind", "outbox-behind", "ranges-running-out", "xmin-pinned"}
    assert found["ranges-running-out"].severity == "P1"


async def test_dead_letters_of_one_tenant_that_grow_are_found(store: Store, db: Harness) -> None:
    jobs = [NewJob("t", tenant_id=("ada", "ben")[n % 2]) for n in range(6)]
    await store.enqueue_many(jobs)
    for job in await store.claim(worker="w", limit=6):
        await store.fail(job.held, NEVER)
    assert await firing(store, AlarmLimits(dlq_entries=4)) == {}
    await store.enqueue(NewJob("t", tenant_id="ada"))
    (job,) = await store.claim(worker="w")
    await store.fail(job.held, NEVER)
    found = await firing(store, AlarmLimits(dlq_entries=4))
    assert set(found) == {"dead-letters-growing"}
    alarm = found["dead-letters-growing"]
    assert (alarm.tenant_id, alarm.value) == ("ada", 4)
    assert "4 of their dead letters are still open; clears at about " in alarm.summary
    assert alarm.next == "tenure dlq groups --contract standard --tenant ada"
    db.sql("update tenure.dead_letter set status = 'requeued'")
    alarm = (await firing(store, AlarmLimits(dlq_entries=4)))["dead-letters-growing"]
    assert ". 0 of their dead letters are still open; " in alarm.summary


@pytest.mark.parametrize(("threshold", "last"), [(1, 4), (3, 4), (4, 2), (8, 2), (9, 0), (10, 0)])
def test_an_alarm_about_entries_clears_when_the_minute_is_over_that_made_them_too_many(
    threshold: int, last: int
) -> None:
    minutes = [datetime(2026, 3, 1, 12, n) for n in range(5)]
    assert _falls_below(threshold, minutes, [2, 0, 5, 0, 3]) == minutes[last]


async def test_a_kind_that_cannot_be_read_keeps_its_alarms_and_stops_no_other(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t"))
    db.sql("update tenure.job set due_at = now() - interval '6 min'")
    assert set(await firing(store)) == {"oldest-waiting", "no-worker"}
    db.sql("alter view tenure.live_worker rename to hidden; delete from tenure.job")
    with pytest.raises(TenureError, match=r"conditions could not be read \(no-worker"):
        await firing(store)
    assert {one.kind for one in await store.alarms.list()} == {"no-worker"}
    db.sql("alter view tenure.hidden rename to live_worker")
    assert await firing(store) == {}


async def test_many_processes_at_once_fire_an_alarm_once(dsn: str, store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t"))
    db.sql("update tenure.job set due_at = now() - interval '6 min'")
    async with Store.open(dsn) as other:
        await asyncio.gather(*(one.alarms.evaluate(pause_s=0.0) for one in (store, other) * 5))
        assert db.value("select count(*) from tenure.alarm") == 2
        taken = await asyncio.gather(*(one.alarms.take("log", hold_s=60) for one in (store, other) * 5))
    sent = [one.id for notices in taken for one in notices]
    assert len(sent) == len(set(sent)) == 2


async def test_a_round_begins_only_some_seconds_after_the_last_one(store: Store, db: Harness) -> None:
    await store.alarms.evaluate()
    await store.alarms.test("ada")
    assert len(await store.alarms.list()) == 1
    await store.alarms.evaluate()
    assert len(await store.alarms.list()) == 1, "another process has just looked"
    db.sql("update tenure.alarm_round set at = at - interval '5 s'")
    assert await store.alarms.evaluate() == 1
    assert await store.alarms.list() == []


async def test_a_muted_alarm_is_sent_when_the_mute_is_over_and_it_still_holds(store: Store, db: Harness) -> None:
    await store.alarms.test("ada")
    muted = await store.alarms.mute("test", seconds=60, actor="ben", reason="a release")
    assert await store.alarms.take("log", hold_s=60) == []
    (alarm,) = await store.alarms.list()
    assert (alarm.muted_by, alarm.muted_until, alarm.mute_reason) == ("ben", muted.until, "a release")
    assert await store.alarms.unmute("test", actor="cyd", tenant="ada") == 0, "another one"
    assert await store.alarms.unmute("test", actor="cyd") == 1
    assert db.one("select muted_by, ended_by from tenure.alarm_mute") == {"muted_by": "ben", "ended_by": "cyd"}
    (notice,) = await store.alarms.take("log", hold_s=60)
    assert (notice.change, notice.alarm.subject) == ("fired", "ada")


async def test_a_mute_covers_what_it_names(store: Store, db: Harness) -> None:
    await store.alarms.test("ada")
    for given, covers in (
        ({"kind": None}, True), ({"kind": "no-worker"}, False), ({"kind": "test", "subject": "ada"}, True),
        ({"kind": "test", "subject": "ben"}, False), ({"kind": "test", "tenant": "ada"}, False),
    ):  # fmt: skip
        await store.alarms.mute(**{"kind": None, **given}, seconds=60, actor="ben")
        assert (await store.alarms.take("log", hold_s=0) == []) is covers, given
        db.sql("delete from tenure.alarm_mute; delete from tenure.alarm_notice")
    for wrong in ({"kind": "tset"}, {"seconds": 0}, {"actor": " "}):
        with pytest.raises(BadInput):
            await store.alarms.mute(**{"kind": "test", "seconds": 60, "actor": "ben", **wrong})  # type: ignore[arg-type]


async def test_old_alarms_are_deleted_with_their_notices(store: Store, db: Harness) -> None:
    await store.alarms.test("ada")
    await store.alarms.take("log", hold_s=60)
    await store.alarms.evaluate(pause_s=0.0)
    assert await store.alarms.forget() == 0
    db.sql("update tenure.alarm set cleared_at = cleared_at - interval '31 days'")
    assert await store.alarms.forget() == 1
    assert db.value("select count(*) from tenure.alarm_notice") == 0


def test_the_reference_lists_every_kind_as_the_catalogue_has_it() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "alarms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (P\d) \| ([^|]*) \|", page, re.MULTILINE)
    assert {kind: (severity, text) for kind, severity, text in rows} == dict(ALARMS)
