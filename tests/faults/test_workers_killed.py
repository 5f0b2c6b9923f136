"""Workers killed with SIGKILL at random under all six contracts: every job ends, none oftener than it may run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.app import App
from tenure.task import Call
from tests.faults import program
from tests.faults.fleet import Fleet, ended_well, lost, over, seen_by_witnesses, witness
from tests.harness import Harness
from tests.races.sessions import CONTRACTS
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_TASKS = [program.on_the_loop, program.in_a_thread, program.unlucky_at_first, program.with_an_effect]


def mixed(jobs: int, of_reliability: float, chance: random.Random) -> Iterator[Call[object]]:
    """Jobs of all kinds under all contracts; the share of `reliability` is given, its leases are the longest."""
    others = [contract for contract in CONTRACTS if contract != "reliability"]
    for _ in range(jobs):
        contract = "reliability" if chance.random() < of_reliability else chance.choice(others)
        yield chance.choice(_TASKS).options(contract=contract).call(round(chance.uniform(0.05, 0.6), 3))


def hurry(db: Harness, fleet: Fleet) -> None:
    """Let the long leases of `reliability` be over where their holder is dead."""
    expired = "update tenure.job set lease_expires_at = now() - interval '1 second' "
    db.sql(
        expired + "where contract = 'reliability' and lease_expires_at > now() and lease_owner <> all(%s)",
        list(fleet.workers),
    )


@pytest.mark.parametrize(
    ("kills", "jobs", "waits"),
    [(4, 150, False), pytest.param(60, 2_000, True, marks=pytest.mark.prove)],
)
async def test_every_job_ends_within_its_budget_however_often_its_workers_are_killed(
    app: App, dsn: str, db: Harness, tmp_path: Path, kills: int, jobs: int, waits: bool
) -> None:
    chance = random.Random(kills)
    witness(db)
    ids: list[int] = []
    calls = list(mixed(jobs, 1 / 6 if waits else 1 / 20, chance))
    with Fleet(dsn, tmp_path, "--concurrency", "6") as fleet:
        for _ in range(3):
            fleet.begin()
        ids += await app.enqueue_many(calls[: jobs // 4])
        await until(lambda: db.value("select count(*) > 0 from public.run"))
        for n in range(kills):
            ids += await app.enqueue_many(calls[len(ids) : jobs // 4 + (n + 1) * 3 * jobs // 4 // kills])
            await asyncio.sleep(chance.uniform(0.4, 1.5 if waits else 1.0))
            fleet.kill(chance.choice(list(fleet.workers)))
            fleet.begin()
        ids += await app.enqueue_many(calls[len(ids) :])
        took = await over(db, 120 if waits else 30, lambda: None if waits else hurry(db, fleet))
        said = fleet.stop_all()
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    cut_off = db.value("select count(*) from public.run where ended_at is null")
    print(
        f"{len(ids)} jobs, {fleet.did['killed']} workers killed, {cut_off} handlers cut off, {lost(triggers)} leases "
        f"ran out, {said['refused'] + said['lost']} late results refused; all over {took:.1f} s after the last kill"
    )
    assert cut_off >= kills // 2, "the kills hit hardly any handler"
    assert lost(triggers) >= cut_off
    assert triggers["succeed"] >= 0.9 * jobs
