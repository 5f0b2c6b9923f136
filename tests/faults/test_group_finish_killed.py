"""Workers killed with SIGKILL while they tell of hundreds of successes at once: nothing is lost, nothing ends twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import LONG_LEASES, Fleet, ended_well, lost, over
from tests.harness import Harness
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_CONCURRENCY = 200
_DONE = "select count(*) from tenure.job_done"
#: The jobs that a worker holds: dead, each group that its kill cut off among them.
_HELD = "select count(*) from tenure.job where role = 'active' and lease_owner = %s"
#: A group is finished by one statement, so all its jobs have the same transaction.
_LARGEST_GROUP = """
select coalesce(max(jobs), 0)
from (select count(*) as jobs from tenure.job_done group by xmin::text) as one
"""
_TWICE = "select job_id from tenure.event where trigger = 'succeed' group by job_id having count(*) > 1"


def is_grouped(db: Harness) -> bool:
    """Whether many jobs were finished by one statement."""
    return bool(db.value(_LARGEST_GROUP) >= 50)


@pytest.mark.parametrize(("kills", "jobs"), [(3, 1_500), pytest.param(40, 4_000, marks=pytest.mark.prove)])
async def test_workers_killed_while_they_finish_groups_lose_no_job_and_end_none_twice(
    app: App, dsn: str, db: Harness, tmp_path: Path, kills: int, jobs: int
) -> None:
    chance = random.Random(kills)
    ids: list[int] = []
    cut_off: list[int] = []
    with Fleet(dsn, tmp_path, "--concurrency", str(_CONCURRENCY), **LONG_LEASES) as fleet:
        for _ in range(2):
            fleet.begin()
        await fleet.at_work()
        # A kill may come between two groups: go on until one was cut off.
        while len(cut_off) < kills or (not (any(cut_off) and is_grouped(db)) and len(cut_off) < 4 * kills):
            before = db.value(_DONE)
            ids += await app.enqueue_many(program.at_once.call(n) for n in range(jobs))
            await until(lambda before=before: db.value(_DONE) > before, 60)  # type: ignore[misc]
            await asyncio.sleep(chance.uniform(0, 0.02))
            victim = chance.choice(list(fleet.workers))
            fleet.kill(victim)
            cut_off.append(db.value(_HELD, victim))
            fleet.begin()
        took = await over(db, 90, lambda: fleet.bury(db))
        fleet.stop_all()
    triggers = await ended_well(db, ids)
    assert db.sql(_TWICE) == []
    assert triggers["succeed"] == len(ids), "a job whose handler cannot fail did not succeed"
    largest = db.value(_LARGEST_GROUP)
    print(
        f"{len(ids)} jobs, {fleet.did['killed']} workers killed with {cut_off} jobs held, groups of up to {largest}, "
        f"{lost(triggers)} leases ran out; all over {took:.1f} s after the last kill"
    )
    assert is_grouped(db), "there were no groups to speak of"
    assert lost(triggers) > 0, "no kill cut a group off"
