"""A thousand handlers of one worker need three leases each: none of them is taken for dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import Fleet, ended_well, lost, over
from tests.harness import Harness

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

_THREE_LEASES = 6.0


@pytest.mark.parametrize("handlers", [100, pytest.param(1_000, marks=pytest.mark.prove)])
async def test_handlers_that_need_three_leases_each_end_without_one_false_reap(
    app: App, dsn: str, db: Harness, tmp_path: Path, handlers: int
) -> None:
    tasks = (program.unseen, program.unseen_in_a_thread)
    ids = await app.enqueue_many(tasks[n % 2].call(_THREE_LEASES) for n in range(handlers))
    with Fleet(dsn, tmp_path, "--concurrency", str(handlers)) as fleet:
        fleet.begin()
        took = await over(db, 120)
        told = fleet.stop_all()
    triggers = await ended_well(db, ids)
    print(f"{handlers} handlers of {_THREE_LEASES:g} s at once in one worker: all over after {took:.1f} s, none reaped")
    assert told == {"claimed": handlers, "succeeded": handlers}
    assert lost(triggers) == 0
    assert took < 4 * _THREE_LEASES, "they did not run at once"
