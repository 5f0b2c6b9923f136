"""Many processes fire, pause and declare at once, and die in between: each fire time has its job exactly once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import ScheduleConflict
from tenure.postgres.store import Store
from tenure.schedules.declaration import Schedule
from tests.clock import StoppedClock
from tests.faults.steps import Point, Work, killed_everywhere, stepping
from tests.harness import Harness
from tests.schedules.conftest import Rows, schedule

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]
_WAITING = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
async def crowd(clock: StoppedClock) -> AsyncIterator[list[Store]]:
    """A hundred connections."""
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(Store.open(clock.dsn, connections=1)) for _ in range(100)]


async def test_a_hundred_connections_fire_each_time_once(crowd: list[Store], rows: Rows) -> None:
    declared = [schedule(f"s{number}", overlap="allow") for number in range(3)]
    await crowd[0].schedules.declare(declared, application="shop", by="w")
    for _ in range(5):
        rows.due("s0")
        done = await asyncio.gather(*(store.schedules.fire_due() for store in crowd))
        assert sum(report.jobs for report in done) == len(declared)
        assert [report.troubles for report in done] == [[]] * len(crowd)
    fires = [fire for one in declared for fire in rows.fires(one.name)]
    assert len(fires) == 15
    assert {result for _, result, _ in fires} == {"enqueued"}
    assert set(Counter(job["correlation_id"] for job in rows.jobs()).values()) == {1}
    assert len(rows.jobs()) == 15


async def test_a_hundred_connections_make_up_for_missed_times_once(crowd: list[Store], rows: Rows) -> None:
    await crowd[0].schedules.declare([schedule(missed="all", overlap="allow")], application="shop", by="w")
    rows.due(late=timedelta(minutes=100))
    done = await asyncio.gather(*(store.schedules.fire_due() for store in crowd))
    assert sum(report.jobs for report in done) == 21
    assert len(rows.jobs()) == len(rows.fires()) == 21


async def test_of_a_hundred_runs_by_hand_one_is_made_while_overlap_is_skip(crowd: list[Store], rows: Rows) -> None:
    await crowd[0].schedules.declare([schedule()], application="shop", by="w")
    tried = await asyncio.gather(
        *(store.schedules.run_now("report", application="shop", actor="ann") for store in crowd), return_exceptions=True
    )
    assert len(rows.jobs()) == len(rows.fires()) == 1
    assert sum(isinstance(one, ScheduleConflict) for one in tried) == 99


async def test_a_hundred_workers_declare_one_schedule(crowd: list[Store], rows: Rows) -> None:
    written = await asyncio.gather(
        *(store.schedules.declare([schedule()], application="shop", by="w") for store in crowd)
    )
    assert sum(map(len, written)) == 1
    assert rows.db.value("select count(*) from tenure.schedule") == 1


def make_due(db: Harness) -> None:
    """A daily schedule that is due, as if nothing had happened to it before."""
    db.sql("delete from tenure.schedule_fire")
    db.sql("delete from tenure.job")
    db.sql(
        "update tenure.schedule set fire_at = today, next_at = today, paused_at = null, paused_by = null, "
        "withdrawn_at = null, last_job_id = null from (select date_trunc('day', now(), 'UTC')) as day (today)"
    )


async def _with_store(dsn: str, call: Callable[[Store], Any]) -> Any:
    async with Store.open(dsn, connections=1) as store:
        return await call(store)


def with_store(dsn: str, call: Callable[[Store], Any]) -> Any:
    """What a call on a store of its own returns."""
    return asyncio.run(_with_store(dsn, call))


def declare(dsn: str, *schedules: Schedule) -> None:
    with_store(dsn, lambda store: store.schedules.declare(schedules, application="shop", by="w"))


async def fire(store: Store, point: Point) -> None:
    await store.schedules.fire_due()


DAILY = schedule(cron="0 0 * * *", overlap="allow")


def test_a_crash_leaves_no_half_fire(db: Harness) -> None:
    declare(db.dsn, DAILY)

    def scene() -> tuple[None, Work]:
        make_due(db)
        return None, fire

    seen = set()
    for _, reached in killed_everywhere(db, scene, lambda _, __: None):
        jobs = db.value("select count(*) from tenure.job")
        assert db.value("select count(*) from tenure.schedule_fire where job_id is not null") == jobs
        is_committed = reached[-1] in ("answer", "find_due_schedules") and "record_fires" in reached
        assert jobs == int(is_committed), reached
        again = with_store(db.dsn, lambda store: store.schedules.fire_due())
        assert again.jobs == 1 - jobs, reached
        assert db.value("select count(*) from tenure.job") == 1
        seen.update(reached)
    assert seen >= {"find_due_schedules", "begin", "lock_due_schedule", "read_fire_state", "record_fires", "commit"}


def beside(db: Harness, stop_at: int, change: Callable[[Store], Any]) -> tuple[list[str], bool]:
    """Fire, and make a change while the firing process stands at a point; the points, and whether the change waited."""
    make_due(db)
    thread = threading.Thread(target=lambda: with_store(db.dsn, change))
    reached: list[str] = []
    waited = False
    with stepping(db.dsn, fire) as points:
        for name in points:
            reached.append(name)
            if len(reached) == stop_at:
                thread.start()
                give_up = time.monotonic() + 60
                while thread.is_alive() and not (waited := bool(db.sql(_WAITING))):
                    assert time.monotonic() < give_up
                    time.sleep(0.005)
    thread.join(60)
    assert not thread.is_alive()
    return reached, waited


@pytest.mark.parametrize("stop_at", range(1, 10))
def test_a_pause_comes_before_or_after_a_fire(db: Harness, stop_at: int) -> None:
    declare(db.dsn, DAILY)
    reached, waited = beside(db, stop_at, lambda store: store.schedules.pause("report", actor="ann"))
    locked = "lock_due_schedule" in reached[: stop_at - 1]
    assert waited == locked, "a pause waits for the fire that holds the lock"
    fired = db.value("select count(*) from tenure.job")
    assert fired == int(locked)
    assert db.value("select count(*) from tenure.schedule_fire") == fired
    make_still_due = (
        "update tenure.schedule set fire_at = fire_at - interval '1 day', next_at = next_at - interval '2 days'"
    )
    db.sql(make_still_due)
    assert with_store(db.dsn, lambda store: store.schedules.fire_due()).jobs == 0


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5, 7, 9])
def test_a_changed_declaration_comes_before_or_after_a_fire(db: Harness, stop_at: int) -> None:
    declare(db.dsn, DAILY)
    other = schedule(cron="30 0 * * *", overlap="allow", tz="Asia/Tokyo")
    reached, _ = beside(db, stop_at, lambda store: store.schedules.declare([other], application="shop", by="w2"))
    locked = "lock_due_schedule" in reached[: stop_at - 1]
    assert db.value("select count(*) from tenure.job") == int(locked)
    row = db.one("select fingerprint, fire_at > now() as later, fire_at from tenure.schedule")
    assert (row["fingerprint"], row["later"]) == (other.fingerprint, True)
    assert (row["fire_at"].astimezone().utctimetuple().tm_hour, row["fire_at"].minute) == (15, 30)


def test_a_deleted_schedule_is_not_fired(db: Harness) -> None:
    with_store(db.dsn, lambda store: store.schedules.put(DAILY, application="shop", by="ann"))
    reached, waited = beside(db, 4, lambda store: store.schedules.remove("report"))
    assert reached[3] == "lock_due_schedule"
    assert not waited
    assert db.value("select count(*) from tenure.job") == 0


async def test_what_the_last_holder_of_the_lock_committed_counts_for_the_overlap(
    crowd: list[Store], rows: Rows
) -> None:
    declared = [schedule(f"s{number}", seconds=1) for number in range(20)]
    await crowd[0].schedules.declare([*declared], application="shop", by="w")
    for _ in range(3):
        rows.due("s0")
        await asyncio.gather(*(store.schedules.fire_due() for store in crowd[:30]))
    assert len(rows.jobs()) == len(declared), "each schedule has one live job"
