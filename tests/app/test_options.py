"""Options of tasks, workers and applications: a misspelt name is refused with what to write; a task's own delay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tenure
from tenure import testing
from tenure.app import App
from tenure.errors import BadInput
from tenure.integrations.fastapi import lifespan
from tests.harness import Harness
from tests.worker.working import until, working


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn)


def a_task(app: Any, **options: Any) -> Any:
    """A task with these options."""

    @app.task(**options)  # type: ignore[untyped-decorator]
    async def work(n: int) -> int:
        return n

    return work


#: A call with a wrong option, and what it is told.
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "App": (lambda app: App(contract_="x"), "App has no option 'contract_'. Next: did you mean contract?"),  # type: ignore[call-arg]
    "task": (lambda app: app.task(queu="x"), "@app.task has no option 'queu'. Next: did you mean queue?"),
    "of one job": (
        lambda app: app.task(key="x"),
        "@app.task has no option 'key'. Next: give it to the enqueue: task.options(…).enqueue(…)",
    ),
    "options": (
        lambda app: a_task(app).options(dely=1),
        "task.options has no option 'dely'. Next: did you mean delay?",
    ),
    "every, cron": (
        lambda app: app.every(cron="* * * * *"),
        "@app.every has no option 'cron'. Next: give it without its name: @app.every(cron, …)",
    ),
    "every": (lambda app: app.every(minute=5), "@app.every has no option 'minute'. Next: did you mean minutes?"),
    "schedule": (
        lambda app: app.schedule("x", a_task(app).call(1), hour=1),
        "app.schedule has no option 'hour'. Next: did you mean hours?",
    ),
    "worker": (
        lambda app: app.worker(concurency=4),
        "app.worker has no option 'concurency'. Next: did you mean concurrency?",
    ),
    "run_worker": (
        lambda app: app.run_worker(until_ilde=True),
        "app.run_worker has no option 'until_ilde'. Next: did you mean until_idle?",
    ),
    "lifespan": (
        lambda app: lifespan(app, concurency=4),
        "lifespan has no option 'concurency'. Next: did you mean concurrency?",
    ),
    "nothing like it": (
        lambda app: app.every(x=5),
        "@app.every has no option 'x'. Next: the options are args, kwargs,",
    ),
}


@pytest.mark.parametrize("call", WRONG)
def test_an_option_that_does_not_exist_is_refused_with_what_to_write(app: App, call: str) -> None:
    make, said = WRONG[call]
    with pytest.raises(BadInput) as refused:
        make(app)
    assert str(refused.value).startswith(said)


async def test_a_span_that_does_not_exist_is_refused_with_what_to_write(app: App) -> None:
    with pytest.raises(BadInput, match=r"testing\.advance has no option 'hour'\. Next: did you mean hours"):
        await testing.advance(app, hour=1)


def test_the_module_of_an_app_is_the_one_that_makes_it(dsn: str) -> None:
    class Own(App):
        def __init__(self) -> None:
            super().__init__(dsn)

    assert App(dsn).application == Own().application == __name__


def due_in(db: Harness) -> list[float]:
    """After how many seconds each job was due, in the order of their ids."""
    rows = db.sql("select extract(epoch from due_at - created_at) as s from tenure.job order by id")
    return [round(float(row["s"])) for row in rows]


async def test_each_job_of_a_task_with_a_delay_waits(app: App, db: Harness) -> None:
    work = a_task(app, delay=timedelta(minutes=1))
    at = datetime.now(UTC) + timedelta(hours=2)
    async with app:
        first = await work.enqueue(1)
        await work.options(priority=0).enqueue(2)
        await work.options(delay=5).enqueue(3)
        await work.options(delay=0).enqueue(4)
        late = await work.options(run_at=at).enqueue(5)
        await work.options(run_at=at).options(delay=7).enqueue(6)
        assert due_in(db)[:4] + due_in(db)[5:] == [60, 60, 5, 0, 7]
        assert db.row(late.id)["due_at"] == at
        async with working(app):
            await until(lambda: db.value("select count(*) from tenure.job_done") == 1)  # the one without a delay
            db.due(first.id)
            assert await app.result(first, timeout=60) == 1
    with pytest.raises(BadInput, match="either run_at or delay_ms"):
        await work.options(run_at=at, delay=1).enqueue(7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay": "soon"}, "delay must be a timedelta or a number of seconds"),
        ({"delay": -1}, "delay"),
        ({"delay": 60, "expires": 30}, "would expire before it is due"),
    ],
)
def test_a_delay_that_cannot_be_kept_is_refused_at_the_declaration(app: App, options: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        a_task(app, **options)
    assert app.tasks == {}
    assert tenure.App is App
