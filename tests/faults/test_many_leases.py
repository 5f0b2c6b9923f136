"""A thousand handlers of one worker need three leases each: none of them is taken for dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import LONG_LEASES, Fleet, at_work, ended_well, lost, over, witness
from tests.harness import Harness
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


@pytest.mark.parametrize("handlers", [100, pytest.param(1_000, marks=pytest.mark.prove)])
async def test_handlers_that_need_three_leases_each_end_without_one_false_reap(
    app: App, dsn: str, db: Harness, tmp_path: Path, handlers: int
) -> None:
    witness(db)
    tasks = (program.gated, program.gated_in_a_thread)
    ids = await app.enqueue_many(tasks[n % 2].call("gate") for n in range(handlers))
    with Fleet(dsn, tmp_path, "--concurrency", str(handlers), **LONG_LEASES) as fleet:
        fleet.begin()
        await until(lambda: at_work(db) == handlers, 100)  # all of them at once
        await fleet.age(db, 3)
        fleet.open("gate")
        took = await over(db, 120)
        told = fleet.stop_all()
    triggers = await ended_well(db, ids)
    print(f"{handlers} handlers at once in one worker for three leases: all over {took:.1f} s later, none reaped")
    assert told == {"claimed": handlers, "succeeded": handlers}
    assert lost(triggers) == 0
