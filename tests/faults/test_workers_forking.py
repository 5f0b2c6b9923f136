"""A handler that forks: what its children are sent does not reach the worker, and no child goes on as a worker."""

from __future__ import annotations

import signal

import pytest

from tenure.app import App
from tests.faults import forking
from tests.harness import Harness
from tests.worker.processes import says, steady_worker
from tests.worker.working import until

pytestmark = pytest.mark.timeout(300)

_APP = "tests.faults.forking:app"


async def test_pool_that_a_handler_terminates_does_not_stop_its_worker(app: App, dsn: str, db: Harness) -> None:
    tasks = (forking.pool_on_the_loop, forking.pool_in_a_thread, forking.pool_in_a_process)
    ids = await app.enqueue_many(task.call(3) for task in tasks)
    # One after the other: in any program, a pool that is forked while another thread makes one may deadlock.
    with steady_worker(dsn, "--concurrency", "1", app=_APP) as process:
        await says(process, "works on")
        await until(lambda: db.value("select count(*) from tenure.job") == 0 or process.poll() is not None, 110)
        assert process.poll() is None, "the worker has stopped"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    rows = db.sql("select result, claims from tenure.job_done where id = any(%s) order by id", ids)
    assert [(row["result"], row["claims"]) for row in rows] == [(5, 1)] * 3


async def test_child_that_a_handler_forks_and_lets_go_on_ends_and_settles_nothing(
    app: App, dsn: str, db: Harness
) -> None:
    ids = await app.enqueue_many([forking.fork_on_the_loop.call(), forking.fork_in_a_thread.call()])
    with steady_worker(dsn, app=_APP) as process:
        await until(lambda: db.value("select count(*) from tenure.job_done") == len(ids))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    rows = db.sql("select result, claims from tenure.job_done")
    assert [(row["result"], row["claims"]) for row in rows] == [("the child ended with 1", 1)] * len(ids)


async def test_worker_process_that_ends_without_being_told_is_started_again(app: App, dsn: str, db: Harness) -> None:
    await app._enqueue(forking.end_the_process.options(max_attempts=1).call().job)
    with steady_worker(dsn, "--processes", "1", "--concurrency", "1", app=_APP) as single:
        assert single.wait(60) == 0  # one process is its own
    db.sql("update tenure.job set queue = 'spent'")
    await app._enqueue(forking.end_the_process.options(max_attempts=1).call().job)
    with steady_worker(dsn, "--processes", "2", "--concurrency", "1", app=_APP) as parent:
        await says(parent, "ended with 0")
        ticket = await app._enqueue(forking.fork_on_the_loop.call().job)
        assert await app.result(ticket, timeout=60) == "the child ended with 1"
        await until(lambda: len(_children(parent.pid)) == 2)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 0


def _children(pid: int) -> list[str]:
    """The processes that a process has begun."""
    with open(f"/proc/{pid}/task/{pid}/children") as told:
        return told.read().split()
