"""The name of an application stands before the names of its tasks, wherever they are stored or looked up."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import testing
from tenure.app import App
from tenure.errors import BadInput
from tests.harness import Harness
from tests.worker.working import quick


async def test_a_named_app_enqueues_finds_and_runs_its_tasks_under_its_name(dsn: str, db: Harness) -> None:
    async with quick(dsn, name="billing") as app:

        @app.task(max_attempts=7)
        async def send(n: int) -> int:
            return 2 * n

        @app.task(name="other")
        def plain(n: int) -> int:
            return n

        assert (app.name, send.name, sorted(app.tasks)) == (
            "billing",
            "billing.send",
            ["billing.other", "billing.send"],
        )
        ticket = await send.enqueue(4)
        await app.enqueue_many([plain.call(1)])
        await testing.assert_enqueued(app, send, 4)
        assert [job.type for job in await testing.enqueued(app, send)] == ["billing.send"]
        assert db.row(ticket.id)["max_attempts"] == 7
        assert db.value("select type from tenure.job_type") == "billing.send"
        counts = await testing.drain(app)
        assert counts["succeeded"] == 2
        assert await app.result(ticket) == 8


def test_an_app_without_a_name_stores_bare_names() -> None:
    app = App("postgresql://nowhere")

    @app.task
    async def send() -> None: ...

    assert (app.name, send.name) == (None, "send")


@pytest.mark.parametrize("name", ["", " ", "a.b", "a b", "a\n", 5, "x" * 101])
def test_a_name_that_cannot_stand_before_a_dot_is_refused(name: Any) -> None:
    with pytest.raises(BadInput):
        App("postgresql://nowhere", name=name)


def test_a_name_that_makes_a_type_too_long_is_refused() -> None:
    app = App("postgresql://nowhere", name="x" * 100)
    with pytest.raises(BadInput):
        app.task(name="y" * 100)(lambda: None)
