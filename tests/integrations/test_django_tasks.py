"""The backend of Django's tasks framework, used as the framework's documents say."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django_tasks.base import TaskResult, TaskResultStatus
from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued, task_finished, task_started

from tenure.errors import BadInput
from tests.harness import Harness
from tests.integrations.site import work

pytestmark = pytest.mark.usefixtures("project")

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


def to_the_end(db: Harness, *results: TaskResult[Any]) -> None:
    """Run jobs until these have ended, with the times of retries moved to now."""
    for result in results:
        result.refresh()
    while any(not result.is_finished for result in results):
        db.due(*(int(result.id) for result in results))
        work()
        for result in results:
            result.refresh()


def rolled_back(task: Any, *, savepoint: bool = True) -> None:
    """Enqueue in a block that fails."""
    block = transaction.atomic(savepoint=savepoint)
    block.__enter__()
    task.enqueue(2)
    block.__exit__(ValueError, ValueError(), None)


@pytest.mark.parametrize("name", ["add", "add_async"])
def test_a_task_is_enqueued_run_and_its_result_is_read(name: str, db: Harness) -> None:
    from tests.integrations import tasks

    task = getattr(tasks, name)
    result = task.enqueue(2, b=3)
    assert (result.status, result.args, result.kwargs, result.attempts) == (READY, [2], {"b": 3}, 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    work(name="worker-1")
    result.refresh()
    assert (result.status, result.return_value, result.worker_ids, result.errors) == (SUCCESSFUL, 5, ["worker-1"], [])
    row = db.row(int(result.id))
    assert (row["type"], row["state"]) == (f"tests.integrations.tasks.{name}", "succeeded")
    again = task.get_result(result.id)
    assert again == result
    assert again.started_at == again.last_attempted_at
    assert again.enqueued_at <= again.started_at <= again.finished_at == row["finished_at"]


def test_a_job_exists_when_its_transaction_commits_and_not_when_it_is_rolled_back(db: Harness) -> None:
    from tests.integrations.tasks import add

    with transaction.atomic():
        kept = add.enqueue(1)
        rolled_back(add)
        assert db.value("select count(*) from tenure.job") == 0
        assert add.get_result(kept.id).status == READY  # in its own transaction it is there already
    rolled_back(add)
    assert [row["id"] for row in db.sql("select id from tenure.job")] == [int(kept.id)]
    add.enqueue(4)  # outside of a transaction
    assert db.value("select count(*) from tenure.job") == 2


def test_what_cannot_be_enqueued_is_refused_and_leaves_the_transaction_usable(db: Harness) -> None:
    from tests.integrations.tasks import add

    with transaction.atomic():
        with pytest.raises(BadInput):
            add.enqueue(math.nan)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            add.enqueue(object())  # type: ignore[arg-type]
        add.enqueue(1)
        rolled_back(add, savepoint=False)
        with pytest.raises(transaction.TransactionManagementError):
            add.enqueue(2)
    assert db.value("select count(*) from tenure.job") == 0  # the inner block broke all of it


@pytest.mark.parametrize("name", ["attempt", "attempt_async"])
def test_a_failing_task_is_retried_and_fails_at_its_limit_with_every_error(name: str, db: Harness) -> None:
    from tests.integrations import tasks

    result = getattr(tasks, name).enqueue(9)
    work()
    result.refresh()
    assert (result.status, len(result.errors)) in ((READY, 1), (READY, 2), (FAILED, 3))
    to_the_end(db, result)
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)
    assert [error.exception_class for error in result.errors] == [tasks.Flaky] * 3
    for number, error in enumerate(result.errors, 1):
        assert error.exception_class_path == "tests.integrations.tasks.Flaky"
        assert error.traceback.startswith("Traceback (most recent call last):\n")
        assert f"attempt {number}" in error.traceback
        assert "src/tenure/" not in error.traceback  # it begins at the task
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_later_attempt_knows_its_number_and_the_errors_before_it(db: Harness) -> None:
    from tests.integrations.tasks import attempt, attempt_async

    one, other = attempt.enqueue(2), attempt_async.enqueue(1)
    to_the_end(db, one, other)
    assert one.return_value == [3, one.id, ["tests.integrations.tasks.Flaky"] * 2]
    assert other.attempts == 2


def test_a_result_that_is_no_json_fails_the_task(db: Harness) -> None:
    from tests.integrations.tasks import unstorable

    result = unstorable.enqueue()
    to_the_end(db, result)
    assert result.status == FAILED
    assert [error.exception_class.__name__ for error in result.errors] == ["PermanentError"]


def test_a_cancelled_job_has_failed(db: Harness) -> None:
    from tenure.integrations.django import app
    from tests.integrations.tasks import add

    result = add.enqueue(1)

    async def cancel() -> None:
        async with app() as own:
            await own.cancel(int(result.id))

    asyncio.run(cancel())
    result.refresh()
    assert (result.status, result.errors, result.attempts) == (FAILED, [], 0)


def test_priorities_order_the_runs_and_equal_ones_run_in_the_order_of_their_enqueue() -> None:
    from tests.integrations.tasks import add, ran

    for n, priority in enumerate([-100, 0, 100, 1, -1, 0]):
        add.using(priority=priority).enqueue(n)
    work(concurrency=1)
    assert ran == [2, 3, 1, 5, 4, 0]


def test_ten_priorities_of_tenure_keep_the_order_of_the_frameworks() -> None:
    from tenure.integrations.django.result import to_priority

    found = [to_priority(priority) for priority in range(100, -101, -1)]
    assert found == sorted(found)
    assert (found[0], to_priority(0), found[-1]) == (0, 5, 9)
    assert len(set(found)) == 10
    assert to_priority(1) < to_priority(0) < to_priority(-1)


def test_run_after_delays_the_run(db: Harness) -> None:
    from tests.integrations.tasks import add

    later = datetime.now(UTC) + timedelta(hours=1)
    result = add.using(run_after=later).enqueue(1)
    work()
    result.refresh()
    assert result.status == READY
    assert db.row(int(result.id))["due_at"] == later
    db.due(int(result.id))
    work()
    result.refresh()
    assert result.return_value == 2


def test_the_workers_queues_are_those_of_the_settings_in_their_order_then_those_of_the_tasks(db: Harness) -> None:
    from tenure.integrations.django import app
    from tests.integrations.tasks import add, plain, ran

    assert app().worker().queues == ("urgent", "default", "plain")
    one, two = add.enqueue(1), add.using(queue_name="urgent").enqueue(2)
    with transaction.atomic():
        own = plain.enqueue_in(connection, 3)
    work(concurrency=1)
    assert ran == [2, 1]
    assert [add.get_result(each.id).status for each in (one, two)] == [SUCCESSFUL] * 2
    assert db.row(own.id)["state"] == "succeeded"


@pytest.mark.parametrize("result_id", ["0", "7", "-1", "x", "²", "9" * 30, ""])
def test_an_unknown_result_is_the_frameworks_error(result_id: str) -> None:
    from tests.integrations.tasks import add

    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result_id)


def test_a_result_of_another_task_is_told_apart() -> None:
    from tests.integrations.tasks import add, add_async, plain

    with pytest.raises(TaskResultMismatch):
        add_async.get_result(add.enqueue(1).id)
    with transaction.atomic():
        own = plain.enqueue_in(connection, 3)
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(str(own.id))


def test_another_backend_on_the_same_database_has_its_own_options(db: Harness) -> None:
    from tests.integrations.tasks import attempt

    result = attempt.using(backend="once").enqueue(9)
    work()
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)


def test_signals_are_sent_at_enqueue_start_and_end_and_not_for_an_attempt_that_is_retried(db: Harness) -> None:
    from tests.integrations.tasks import add_async, attempt, plain, unstorable

    sent: list[Any] = []

    def note(signal: Any, task_result: Any, **_: Any) -> None:
        names = {id(task_enqueued): "enqueued", id(task_started): "started", id(task_finished): "finished"}
        ended = task_result.finished_at is not None
        value = task_result.return_value if task_result.status == SUCCESSFUL else None
        sent.append((names[id(signal)], task_result.id, task_result.status, task_result.attempts, ended, value))

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(note)
    try:
        one, two, three, four = add_async.enqueue(1), attempt.enqueue(1), attempt.enqueue(9), unstorable.enqueue()
        with transaction.atomic():
            plain.enqueue_in(connection, 1)
        to_the_end(db, one, two, three, four)
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(note)
    of = {each.id: [(name, *rest) for name, job, *rest in sent if job == each.id] for each in (one, two, three, four)}
    begun = ("enqueued", READY, 0, False, None)
    assert of[one.id] == [begun, ("started", RUNNING, 1, False, None), ("finished", SUCCESSFUL, 1, True, 2)]
    assert [each[:3] for each in of[two.id]] == [
        begun[:3], ("started", RUNNING, 1), ("started", RUNNING, 2), ("finished", SUCCESSFUL, 2),
    ]  # fmt: skip
    assert of[three.id][-1] == ("finished", FAILED, 3, True, None)
    assert of[four.id][-1] == ("finished", FAILED, 1, True, None)  # its function returned, and its job failed
    assert len(sent) == sum(map(len, of.values()))


def test_connections_are_closed_after_a_run(db: Harness) -> None:
    from tests.integrations.tasks import attempt_async, session

    result, other = session.enqueue(), attempt_async.enqueue(1)
    to_the_end(db, result, other)
    connection.close()
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    limit = time.monotonic() + 30
    while sessions := db.sql(f"select pid, backend_type, state, query {others} and backend_type = 'client backend'"):
        assert time.monotonic() < limit, sessions


def test_coroutines_enqueue_and_read(dsn: str) -> None:
    from tests.integrations.tasks import add

    async def use() -> tuple[str, str]:
        result = await add.aenqueue(1)
        found = await add.aget_result(result.id)
        await found.arefresh()
        return result.id, found.id

    before, after = asyncio.run(use())
    assert before == after
    with psycopg.connect(dsn) as own:
        assert own.execute("select count(*) from tenure.job").fetchone() == (1,)
