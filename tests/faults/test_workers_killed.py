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
from tests.faults.fleet import LONG_LEASES, Fleet, ended_well, lost, one_at_work, over, seen_by_witnesses, witness
from tests.harness import Harness
from tests.races.sessions import CONTRACTS

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_TASKS = [program.on_the_loop, program.in_a_thread, program.unlucky_at_first, program.with_an_effect]


def mixed(jobs: int, of_reliability: float, chance: random.Random) -> Iterator[Call[object]]:
    """Jobs of all kinds under all contracts; the share of `reliability` is given, its leases are the longest."""
    others = [contract for contract in CONTRACTS if contract != "reliability"]
    for _ in range(jobs):
        contract = "reliability" if chance.random() < of_reliability else chance.choice(others)
        yield chance.choice(_TASKS).options(contract=contract).call(round(chance.uniform(0.05, 0.6), 3))


def counted_as_logged(db: Harness) -> None:
    """The counts of hops, folded or not, are those of the log."""
    by = "contract, trigger, from_state, to_state"
    logged = db.sql(f"select {by}, count(*)::bigint as number from tenure.event where hop group by {by}")
    counted = db.sql(
        f"select {by}, sum(number)::bigint as number from tenure.move_count where unit = 'ever' and from_state <> '' "
        f"and to_state <> '' and trigger not like 'refused%%' and trigger <> 'renew' group by {by}"
    )
    assert {tuple(row.values()) for row in counted} == {tuple(row.values()) for row in logged}
    assert len(logged) > 20


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
    # Leases that run out by themselves, or leases for which no machine is too slow.
    leases = {name: "5000" for name in LONG_LEASES if name.endswith("LEASE_MS")} if waits else LONG_LEASES
    if waits:
        leases["TENURE_RELIABILITY_LEASE_MS"] = "30000"
    cut = "select count(*) from public.run where ended_at is null"
    turns = 0
    with Fleet(dsn, tmp_path, "--concurrency", "6", **leases) as fleet:
        for _ in range(3):
            fleet.begin()
        # A kill may come between two handlers: go on until enough were cut off.
        while turns < kills or (db.value(cut) < kills // 2 and turns < 4 * kills):
            turns += 1
            ids += await app.enqueue_many(mixed(jobs // kills, 1 / 6 if waits else 1 / 20, chance))
            name = await one_at_work(db, fleet, chance)
            await asyncio.sleep(chance.uniform(0, 0.3))
            fleet.kill(name)
            fleet.begin()
            if not waits:
                fleet.bury(db)
        took = await over(db, 300 if waits else 90, lambda: None if waits else fleet.bury(db))
        said = fleet.stop_all()
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    counted_as_logged(db)
    cut_off = db.value(cut)
    print(
        f"{len(ids)} jobs, {fleet.did['killed']} workers killed, {cut_off} handlers cut off, {lost(triggers)} leases "
        f"ran out, {said['refused'] + said['lost']} late results refused; all over {took:.1f} s after the last kill"
    )
    assert cut_off >= kills // 2, "the kills hit hardly any handler"
    assert lost(triggers) >= cut_off
    assert triggers["succeed"] >= 0.9 * len(ids)
