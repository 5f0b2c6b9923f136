"""However a handler ends, its failure is recorded as its own: type, text and stack, and never as a lost worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tenure.app import App
from tenure.task import Task
from tests.harness import Harness
from tests.worker import odd
from tests.worker.working import until, working


async def ended(app: App, db: Harness, task: Task[..., Any], arguments: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of jobs of this task, one for each argument, when all have ended."""
    app.tasks[task.name] = task
    made = [(await app._enqueue(task.call(argument).job)).id for argument in arguments]
    async with working(app, queues=["default"]):
        await until(lambda: db.value("select count(*) from tenure.job") == 0)
    return [dict(db.row(job_id)) for job_id in made]


@pytest.mark.parametrize(
    "task",
    [odd.on_the_loop, odd.at_a_stage, odd.in_a_thread, odd.in_a_process],
    ids=["loop", "stage", "thread", "process"],
)
async def test_an_error_that_is_hard_to_report_is_recorded_with_its_type(
    app: App, db: Harness, task: Task[..., Any]
) -> None:
    rows = await ended(app, db, task, odd.ENDS)
    for (how, (_, kind, text)), row in zip(odd.ENDS.items(), rows, strict=True):
        error = row["last_error"]
        assert (row["state"], error["type"]) == ("dead", kind), how
        assert text in error["message"], how
        assert len(error["message"]) <= 8_000, how
        assert "odd.py" in error["stack"], f"{how}: it says where it was raised"
        if task is odd.at_a_stage and how != "unreadable":  # a note on that one cannot be made
            assert error["stage"] == "fetch", how


@pytest.mark.parametrize("task", [odd.cancel_oneself, odd.cancel_oneself_in_a_process], ids=["loop", "process"])
@pytest.mark.parametrize(
    ("then", "kind", "text"),
    [
        ("wait", "CancelledError", "CancelledError"),
        ("raise", "ValueError", "after the cancel"),
        ("wait later", "ValueError", "after the cancel"),
    ],
    ids=["waits", "raises", "is cancelled later"],
)
async def test_a_handler_that_cancels_its_own_task_has_failed_by_itself(
    app: App, db: Harness, task: Task[..., Any], then: str, kind: str, text: str
) -> None:
    (row,) = await ended(app, db, task, [then])
    assert (row["state"], row["last_error"]["type"], row["last_error"]["message"]) == ("dead", kind, text)


@pytest.mark.parametrize("task", [odd.cancel_oneself, odd.cancel_oneself_in_a_process], ids=["loop", "process"])
async def test_a_result_counts_although_its_handler_has_cancelled_its_own_task(
    app: App, db: Harness, task: Task[..., Any]
) -> None:
    (row,) = await ended(app, db, task, ["return"])
    assert (row["state"], row["result"]) == ("succeeded", "done")
