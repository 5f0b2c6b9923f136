"""A job that takes its worker down with it: it ends in exactly its limit, and its neighbours live."""

from __future__ import annotations

import pytest

from tenure.app import App
from tests.faults.fleet import verified
from tests.harness import Harness
from tests.worker import processes, program
from tests.worker.processes import worker
from tests.worker.working import until

_LEFT = "select count(*) from tenure.job"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("neighbours", [60, pytest.param(500, marks=[pytest.mark.prove, pytest.mark.serial])])
async def test_poison_job_ends_in_exactly_its_limit_and_no_neighbour_is_dead(
    app: App, dsn: str, db: Harness, neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody loses a lease because the machine is slow: a dead worker's leases are moved.
    monkeypatch.setitem(processes.QUICK, "TENURE_STANDARD_LEASE_MS", "120000")
    poison = await app._enqueue(program.poison.options(max_attempts=3).call().job)
    await app.enqueue_many(program.neighbour.call(n) for n in range(neighbours))
    died = 0
    while db.value(_LEFT) and died < 5:
        with worker(dsn, "--concurrency", "10") as process:
            await until(lambda: process.poll() is not None or not db.value(_LEFT), 120)
            died += process.poll() is not None
        db.sql("update tenure.job set lease_expires_at = now() - interval '1 second' where lease_expires_at > now()")
    assert died == 1
    row = db.row(poison.id)
    assert (row["state"], row["claims"]) == ("dead", 3)
    assert db.value("select count(*) from tenure.job_done where state = 'succeeded'") == neighbours
    assert db.value("select max(claims) from tenure.job_done where id <> %s", poison.id) <= 2
    await verified(db, neighbours + 1)
    expired = db.value("select count(*) from tenure.event where trigger = 'expire' and job_id <> %s", poison.id)
    print(f"a poison job among {neighbours}: {died} worker died, {expired} leases of neighbours ran out")
