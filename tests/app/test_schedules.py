"""`@app.every`, `app.schedule` and `app.schedules`: declared above a task, made at run time, and fired by a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import tenure
from tenure.errors import BadInput, ScheduleConflict, ScheduleNotFound
from tenure.postgres.store import Store
from tenure.schedules.timing import Timing
from tests.harness import Harness
from tests.http.conftest import serving
from tests.worker.working import until, working


@pytest.fixture
def app(dsn: str) -> tenure.App:
    return tenure.App(dsn, name="shop")


@pytest.fixture(params=["direct", "remote"])
async def anywhere(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[tenure.App]:
    """An application with a database, and one with a dispatcher."""
    if request.param == "direct":
        made = tenure.App(dsn, name="shop")
        yield made
        await made.close()
        return
    with serving(dsn) as url:
        made = tenure.App(dispatcher_url=url, name="shop")
        yield made
        await made.close()


def add_report(app: tenure.App, **given: Any) -> None:
    @app.task
    async def report(month: str) -> str:
        return month

    every: Any = app.every
    every(**({"days": 1, "args": ["May"]} | given))(report)


def due(db: Harness, name: str = "report") -> None:
    """Let the next fire time of a schedule be the last one of the past, which is not long ago for a day."""
    changed = db.sql(
        "update tenure.schedule set fire_at = date_trunc('day', now()), next_at = date_trunc('day', now()) "
        "where name = %s returning id",
        name,
    )
    assert changed


def fires(db: Harness) -> list[dict[str, Any]]:
    return db.sql("select result, job_id, by_hand from tenure.schedule_fire order by fire_at")


async def test_a_worker_declares_the_schedules_of_its_code_and_its_upkeep_fires_them(
    app: tenure.App, db: Harness
) -> None:
    add_report(app)
    async with app, working(app):
        await until(lambda: bool(db.sql("select 1 from tenure.schedule")))
        due(db)
        await until(lambda: bool(db.sql("select 1 from tenure.job_done")))
    row = db.one("select type, payload, result, correlation_id from tenure.job_done")
    assert (row["type"], row["payload"], row["result"]) == ("shop.report", {"month": "May"}, "May")
    assert row["correlation_id"].startswith("schedule:report@")
    assert [fire["result"] for fire in fires(db)] == ["enqueued"]


async def test_a_worker_behind_a_dispatcher_declares_its_schedules_and_runs_their_jobs(dsn: str, db: Harness) -> None:
    with serving(dsn) as url:
        app = tenure.App(dispatcher_url=url, name="shop")
        add_report(app)
        async with app, working(app), Store.open(dsn) as upkeep:
            await until(lambda: bool(db.sql("select 1 from tenure.schedule")))
            due(db)
            assert (await upkeep.schedules.fire_due()).jobs == 1
            await until(lambda: bool(db.sql("select 1 from tenure.job_done")))
            await until(lambda: bool(db.sql("select 1 from tenure.worker where schedules ? 'report'")))
    assert db.value("select payload from tenure.job_done") == {"month": "May"}


async def test_schedules_are_made_changed_and_deleted_at_run_time(anywhere: tenure.App, db: Harness) -> None:
    app = anywhere

    @app.task(queue="mail", max_attempts=3)
    async def send(to: str, *, subject: str = "hi") -> None: ...

    made = await app.schedule("send:ann", send.call("ann", subject="hello"), "0 9 * * 1-5", tz="Europe/Berlin")
    assert (made.full_name, made.state, made.in_code) == ("shop/send:ann", "active", False)
    assert made.schedule.job.payload == {"to": "ann", "subject": "hello"}
    assert (made.schedule.job.queue, made.schedule.job.max_attempts) == ("mail", 3)
    changed = await app.schedule("send:ann", send.call("ann"), minutes=5, jitter=30)
    assert changed.schedule.timing == Timing(None, 300, "UTC", 30.0)
    assert [one.name for one in await app.schedules.list()] == ["send:ann"]
    assert await app.schedules.next("send:ann", 3) == changed.upcoming(3)
    assert await app.unschedule("send:ann")
    assert not await app.unschedule("send:ann")
    with pytest.raises(ScheduleNotFound):
        await app.schedules.show("send:ann")


async def test_schedules_are_paused_resumed_and_run(anywhere: tenure.App, db: Harness) -> None:
    app = anywhere

    @app.task
    async def report() -> None: ...

    await app.schedule("report", report.call(), days=1)
    paused = await app.schedules.pause("report", reason="holiday")
    assert (paused.state, paused.pause_reason) == ("paused", "holiday")
    ticket = await app.schedules.run("report")
    assert (await app.job(ticket)).type == "shop.report"
    with pytest.raises(ScheduleConflict, match="still waits or runs"):
        await app.schedules.run("report")
    assert (await app.schedules.resume("report")).state == "active"
    (fire,) = await app.schedules.fires("report")
    assert (fire.job_id, fire.by_hand) == (ticket.id, True)


async def test_a_schedule_that_a_handler_makes_is_not_part_of_its_trace(app: tenure.App, db: Harness) -> None:
    @app.task
    async def plan() -> None:
        await app.schedule("plan", plan.call(), days=1)

    async with app, working(app):
        await app.result(await plan.options(correlation_id="order:1", trace_id="t").enqueue())
    assert db.value("select declaration -> 'job' from tenure.schedule") == {"type": "shop.plan", "payload": {}}


async def test_a_release_without_a_schedule_withdraws_it(app: tenure.App, dsn: str, db: Harness) -> None:
    add_report(app)
    async with app, working(app):
        await until(lambda: bool(db.sql("select 1 from tenure.worker where schedules ? 'report'")))
    db.sql("update tenure.schedule set declared_at = declared_at - interval '1 minute'")
    newer = tenure.App(dsn, name="shop")
    newer.task(lambda_free)
    async with newer, working(newer):
        await until(lambda: bool(db.sql("select 1 from tenure.schedule where withdrawn_at is not null")))


async def lambda_free() -> None:
    """A task."""


def test_a_task_has_several_schedules_of_different_names(app: tenure.App) -> None:
    @app.every("0 9 * * *", name="morning", kwargs={"month": "May"})
    @app.every("0 18 * * *", name="evening", args=("June",))
    @app.task
    async def report(month: str) -> None: ...

    payloads = {name: one.job.payload for name, one in app._schedules.items()}
    assert payloads == {"evening": {"month": "June"}, "morning": {"month": "May"}}
    assert app.tasks["shop.report"] is report


def test_the_order_of_the_decorators_is_fixed(app: tenure.App) -> None:
    with pytest.raises(BadInput, match=r"put @app\.every above @app\.task"):

        @app.task  # type: ignore[type-var]
        @app.every(minutes=5)
        async def report() -> None: ...

    assert app._schedules == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"args": []}, "month"),
        ({"args": "May"}, "args must be a list or tuple"),
        ({"kwargs": {"year": 2026}}, "year"),
        ({"days": None}, "needs either a cron expression"),
        ({"name": "a/b"}, "without /"),
        ({"missed": "all"}, "overlap"),
        ({"minute": 5}, "@app.every has no option 'minute'. Next: did you mean minutes?"),
    ],
)
def test_wrong_declarations_are_refused_at_import(app: tenure.App, given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        add_report(app, **given)
    assert app._schedules == {}


def test_a_second_schedule_of_a_name_and_a_task_of_another_app_are_refused(app: tenure.App, dsn: str) -> None:
    add_report(app)

    @app.task
    async def other() -> None: ...

    with pytest.raises(BadInput, match="schedule 'report' is already declared"):
        app.every(days=1, name="report")(other)
    with pytest.raises(BadInput, match="belongs to another App"):
        tenure.App(dsn).every(days=1)(other)


async def test_app_schedule_takes_a_call(app: tenure.App) -> None:
    with pytest.raises(BadInput, match=r"app.schedule takes task.call\(…\)"):
        await app.schedule("report", add_report, days=1)  # type: ignore[arg-type]
