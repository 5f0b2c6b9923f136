"""Declarations: who owns a schedule, what a change does to its fire times, and when it is withdrawn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.errors import BadInput, ScheduleConflict, ScheduleNotFound, UnknownContract
from tenure.jobs.job import NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tenure.schedules.declaration import Schedule
from tests.schedules.conftest import Rows, schedule

OLD, NEW = schedule(), schedule(minutes=7)
MINUTE = timedelta(minutes=1)


async def declare(store: Store, *schedules: Schedule, application: str = "shop", starting: bool = True) -> list[str]:
    return await store.schedules.declare(schedules, application=application, by="w", starting=starting)


async def live(store: Store, name: str, *schedules: Schedule, application: str = "shop") -> LiveWorker:
    """A live worker whose code has these schedules."""
    worker = LiveWorker(
        name, ("q",), ("standard",), application=application,
        schedules={one.name: one.fingerprint for one in schedules},
    )  # fmt: skip
    await store.workers.enter([worker])
    return worker


def pass_time(rows: Rows, span: timedelta) -> None:
    rows.db.sql("update public.moment set at = at + %s", span)


async def test_an_unchanged_declaration_changes_no_fire_time(store: Store, rows: Rows, report: Schedule) -> None:
    before = rows.one()
    pass_time(rows, MINUTE)
    assert await declare(store, report) == []
    after = rows.one()
    assert (after["next_at"], after["updated_at"]) == (before["next_at"], before["updated_at"])
    assert after["declared_at"] > before["declared_at"]


async def test_a_restart_neither_drops_nor_repeats_a_fire_that_is_due(
    store: Store, rows: Rows, report: Schedule
) -> None:
    at = rows.due(late=MINUTE)
    await declare(store, report)
    assert (await store.schedules.fire_due()).jobs == 1
    await declare(store, report)
    assert (await store.schedules.fire_due()).jobs == 0
    assert rows.fires() == [(at, "enqueued", 1)]


@pytest.mark.parametrize("other", [{"minutes": 7}, {"cron": "*/7 * * * *"}, {"cron": "0 12 * * *", "tz": "Asia/Tokyo"}])
async def test_a_changed_time_takes_effect_and_does_not_refire_the_past(
    store: Store, rows: Rows, report: Schedule, other: dict[str, Any]
) -> None:
    rows.due(late=2 * MINUTE)
    assert await declare(store, changed := schedule(**other)) == ["report"]
    assert (await store.schedules.fire_due()).jobs == 0
    row = rows.one()
    now = rows.db.value("select at from public.moment")
    assert row["fire_at"] == changed.timing.upcoming(now, 1)[0]


async def test_changed_arguments_take_effect_and_the_fire_that_is_due_has_them(
    store: Store, rows: Rows, report: Schedule
) -> None:
    at = rows.due()
    await declare(store, schedule(job=NewJob("report", {"month": "June"}), jitter=100))
    await store.schedules.fire_due()
    if not rows.fires():
        rows.due()
        await store.schedules.fire_due()
    assert [fire[0] for fire in rows.fires()] == [at]
    assert [job["payload"] for job in rows.jobs()] == [{"month": "June"}]


async def test_a_schedule_that_no_live_worker_declares_is_withdrawn_and_keeps_its_history(
    store: Store, rows: Rows, report: Schedule
) -> None:
    rows.due()
    await store.schedules.fire_due()
    assert await store.schedules.withdraw("shop", {"report": ""}) == []
    assert await store.schedules.withdraw("shop") == ["report"]
    pass_time(rows, timedelta(hours=1))
    assert (await store.schedules.fire_due()).jobs == 0
    (found,) = await store.schedules.list()
    assert (found.state, len(rows.fires())) == ("withdrawn", 1)
    await declare(store, report)
    assert (await store.schedules.fire_due()).jobs == 0, "the time without it is not made up for"
    assert (await store.schedules.find("report")).state == "active"


async def test_a_schedule_stays_while_a_live_worker_declares_it_or_one_starts(
    store: Store, rows: Rows, report: Schedule
) -> None:
    assert await store.schedules.withdraw("shop") == [], "its worker is starting"
    pass_time(rows, MINUTE)
    worker = await live(store, "w", report)
    assert await store.schedules.withdraw("shop") == []
    await store.workers.leave(worker)
    await declare(store, report)
    assert await store.schedules.withdraw("shop") == [], "another one is starting"


async def test_other_applications_and_schedules_made_at_run_time_are_not_withdrawn(
    store: Store, rows: Rows, report: Schedule
) -> None:
    await declare(store, schedule("other"), application="billing")
    await store.schedules.put(schedule("made"), application="shop", by="ann")
    pass_time(rows, MINUTE)
    assert await store.schedules.withdraw("shop") == ["report"]


async def test_a_paused_schedule_stays_paused_across_releases(store: Store, rows: Rows, report: Schedule) -> None:
    await store.schedules.pause("report", actor="ann")
    await declare(store, NEW)
    pass_time(rows, MINUTE)
    await store.schedules.withdraw("shop")
    await declare(store, OLD)
    pass_time(rows, timedelta(hours=1))
    assert (await store.schedules.find("report")).state == "paused"
    assert (await store.schedules.fire_due()).jobs == 0


async def written_by(store: Store, rows: Rows, *releases: Schedule) -> Sequence[list[str]]:
    """Who writes, while workers of all these releases are live and say once a minute what they declare."""
    written = []
    for one in releases:
        pass_time(rows, MINUTE)
        for number, each in enumerate(releases):
            await live(store, f"w{number}", each)
        written.append(await declare(store, one, starting=False))
    return written


async def test_an_older_release_does_not_undo_the_newer_ones_declaration(store: Store, rows: Rows) -> None:
    await live(store, "old", OLD)
    await declare(store, OLD)
    await declare(store, NEW)
    assert await declare(store, OLD) == [], "the newer worker has no row yet"
    await live(store, "new", NEW)
    assert await written_by(store, rows, OLD, NEW, OLD, NEW) == [[], [], [], []]
    assert await declare(store, OLD) == [], "a worker of the older release starts"
    assert rows.one()["fingerprint"] == NEW.fingerprint


async def test_an_older_releases_declaration_comes_back_when_the_newer_release_is_gone(
    store: Store, rows: Rows
) -> None:
    await declare(store, OLD)
    await declare(store, NEW)
    newer = await live(store, "new", NEW)
    await live(store, "old", OLD)
    pass_time(rows, MINUTE)
    await store.workers.see([newer])
    assert await declare(store, OLD, starting=False) == []
    await store.workers.leave(newer)
    assert await declare(store, OLD, starting=False) == ["report"]
    assert await declare(store, OLD, starting=False) == []


async def test_newer_zone_data_moves_the_next_fire_when_a_worker_starts(store: Store, rows: Rows) -> None:
    daily = schedule(cron="0 9 * * *", tz="Europe/Berlin")
    await declare(store, daily)
    right = rows.one()["next_at"]
    rows.db.sql("update tenure.schedule set fire_at = fire_at + '1 hour', next_at = next_at + '1 hour'")
    assert await declare(store, daily) == []
    assert rows.one()["next_at"] == right


async def test_a_schedule_made_at_run_time_is_created_changed_and_deleted(store: Store, rows: Rows) -> None:
    made = await store.schedules.put(OLD, application="shop", by="ann")
    assert (made.in_code, made.declared_by, made.state) == (False, "ann", "active")
    changed = await store.schedules.put(NEW, application="shop", by="bob")
    assert changed.schedule == NEW
    assert changed.id == made.id
    rows.due()
    await store.schedules.fire_due()
    assert await store.schedules.remove("report", application="shop")
    assert not await store.schedules.remove("report", application="shop")
    assert rows.db.value("select count(*) from tenure.schedule_fire") == 0


async def test_a_schedule_in_code_is_not_changed_or_deleted_at_run_time(store: Store, report: Schedule) -> None:
    with pytest.raises(ScheduleConflict, match="shop/report is declared in the code"):
        await store.schedules.put(NEW, application="shop", by="ann")
    with pytest.raises(ScheduleConflict, match="Next: remove it there"):
        await store.schedules.remove("report")
    assert (await store.schedules.put(NEW, application="billing", by="ann")).application == "billing"


async def test_code_takes_over_a_schedule_that_was_made_at_run_time(store: Store) -> None:
    await store.schedules.put(NEW, application="shop", by="ann")
    assert await declare(store, OLD) == ["report"]
    assert (await store.schedules.find("report")).in_code


async def test_another_tenants_schedule_is_neither_seen_nor_changed(store: Store) -> None:
    own = schedule(job=NewJob("report", tenant_id="acme"))
    await store.schedules.put(own, application="shop", by="ann", tenant="acme")
    assert await store.schedules.list(tenant="other") == []
    with pytest.raises(ScheduleConflict, match="belongs to another tenant"):
        await store.schedules.put(schedule(), application="shop", by="eve", tenant="other")
    with pytest.raises(ScheduleNotFound):
        await store.schedules.pause("report", actor="eve", tenant="other")
    with pytest.raises(ScheduleNotFound):
        await store.schedules.resume("report", tenant="other")
    assert not await store.schedules.remove("report", tenant="other")


async def test_a_name_of_two_applications_must_name_one(store: Store, report: Schedule) -> None:
    await declare(store, report, application="billing")
    with pytest.raises(BadInput, match="several applications have a schedule 'report': billing, shop"):
        await store.schedules.find("report")
    assert (await store.schedules.find("report", application="shop")).full_name == "shop/report"


async def test_what_could_not_be_enqueued_is_refused_when_it_is_declared(store: Store, rows: Rows) -> None:
    with pytest.raises(UnknownContract):
        await declare(store, schedule(job=NewJob("report", contract="gone")))
    with pytest.raises(BadInput, match="is declared twice"):
        await declare(store, OLD, NEW)
    with pytest.raises(BadInput, match="NUL"):
        await declare(store, schedule(job=NewJob("report", {"a": "\x00"})))
    assert await store.schedules.list() == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "a/b"}, "without / and outer blanks"),
        ({"name": " a"}, "without / and outer blanks"),
        ({"name": "x" * 101}, "at most 100"),
        ({"missed": "never"}, "missed is 'skip' or 'once' or 'all'"),
        ({"overlap": "wait"}, "overlap is 'skip' or 'allow'"),
        ({"missed": "all"}, 'Next: add overlap="allow"'),
        ({"job": NewJob("report", run_at=datetime(2031, 1, 1, tzinfo=UTC))}, "leave run_at out"),
        ({"job": NewJob("report", {"a": {1, 2}})}, "cannot be stored as JSON"),
    ],
)
def test_wrong_declarations_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        schedule(**wrong)  # type: ignore[arg-type]
