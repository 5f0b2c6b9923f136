"""A handler that blocks its worker's event loop: its neighbours are done by another worker, and it blocks no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import APP, Fleet, verified
from tests.harness import Harness
from tests.http.processes import begun, dispatching
from tests.worker.processes import QUICK, end
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

#: The log keeps the claims of jobs that were handed back a moment later.
_CLAIMED_BY = "select count(*) from tenure.event where trigger = 'claim' and actor = %s"
_DONE = "select count(*) from tenure.job_done where state = 'succeeded'"


@pytest.mark.parametrize("contract", ["standard", pytest.param("reliability", marks=pytest.mark.prove)])
async def test_neighbours_of_a_blocked_loop_are_done_by_another_worker_which_is_not_blocked_in_its_turn(
    app: App, dsn: str, db: Harness, tmp_path: Path, contract: str
) -> None:
    blocking = program.block.options(contract=contract, priority=0, timeout=2, max_attempts=2).call("gate").job
    waiting = [program.unseen.options(contract=contract).call(0.0) for _ in range(9)]
    environment: dict[str, str] = {}
    if contract == "standard":  # jobs of one claim begin in their order
        blocker = await app._enqueue(blocking)
    else:  # any of them may be told first that it has started: the others are held until it blocks
        environment = {"TENURE_RELIABILITY_LEASE_MS": "30000", "TENURE_TEST_HOLD": "unseen"}
    neighbours = await app.enqueue_many(waiting)
    # A listener that has just connected lets every contract be asked, each for a share of the ten slots.
    with Fleet(dsn, tmp_path, "--concurrency", "10", "--no-wakeups", **environment) as fleet:
        blocked = fleet.begin()
        if contract != "standard":
            await until(lambda: db.value(_CLAIMED_BY, blocked) == 9, 60)
            blocker = await app._enqueue(blocking)
        await until(lambda: db.value(_CLAIMED_BY, blocked) == 10, 60)
        other = fleet.begin()
        await until(lambda: db.value(_DONE) == 9, 120)
        await until(lambda: f"by job {blocker.id} of block" in fleet.said(blocked), 60)
        assert "time.sleep(0.05)  # noqa" in fleet.said(blocked), "the stack of the blocking code"
        await until(lambda: db.row(blocker.id)["role"] == "done", 120)
        late = await app._enqueue(program.unseen.options(contract=contract).call(0.0).job)
        await until(lambda: db.row(late.id)["role"] == "done", 60)
        assert {row["lease_owner"] for row in db.sql("select lease_owner from tenure.job")} <= {other}
        fleet.open("gate")  # the late end of the first attempt is refused
        fleet.stop_all()
    row = db.row(blocker.id)
    assert row["last_error"]["code"] == "TIMEOUT", "the second attempt was in a process that could be killed"
    assert row["claims"] == 2
    claimed = "select distinct actor from tenure.event where job_id = any(%s) and trigger = 'claim' and claims = 2"
    assert [one["actor"] for one in db.sql(claimed, neighbours)] == [other]
    await verified(db, 11)


#: Half of it the loop is silent before that is noted. A lease that is lost costs an attempt, which nobody sees run.
_LEASES = {**QUICK, "TENURE_STANDARD_LEASE_MS": "10000"}


@contextmanager
def working(dsn: str, tmp_path: Path, way: str) -> Iterator[int]:
    """A worker beside the database or behind a dispatcher, and its process."""
    if way == "beside":
        with Fleet(dsn, tmp_path, **_LEASES) as fleet:
            yield fleet.workers[fleet.begin()].pid
    else:
        with dispatching(dsn, "--log-level", "warning", **_LEASES) as (_, url):
            far = begun("worker", APP, "--dispatcher", url, "--poll", "0.05")
            try:
                yield far.pid
            finally:
                end(far)


@pytest.mark.parametrize("way", ["beside", "remote"])
async def test_job_that_blocked_a_loop_once_runs_in_a_process_of_its_own_from_then_on(
    app: App, dsn: str, db: Harness, tmp_path: Path, way: str
) -> None:
    ticket = await app._enqueue(program.block_and_fail.options(max_attempts=3).call(str(tmp_path)).job)
    with working(dsn, tmp_path, way) as worker:
        await until(lambda: db.row(ticket.id)["blocked_at"] is not None, 60)
        (tmp_path / "go").touch()
        await until(lambda: db.row(ticket.id)["role"] == "done", 60)
    pids = [int((tmp_path / f"attempt-{n}").read_text()) for n in (1, 2, 3)]
    assert pids[0] == worker
    assert worker not in pids[1:]
    assert db.row(ticket.id)["last_error"]["message"] == "again"
