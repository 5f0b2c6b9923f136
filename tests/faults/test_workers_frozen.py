"""Workers that stand still: frozen past their leases, what they say late is refused; blocked, they hand back."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tenure.app import App
from tests.faults import program
from tests.faults.fleet import (
    LEASE_S,
    LONG_LEASES,
    Fleet,
    at_work,
    ended_well,
    lost,
    over,
    seen_by_witnesses,
    witness,
)
from tests.harness import Harness
from tests.races.sessions import CONTRACTS
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_RUNNING_AGAIN = "select count(*) from public.run where claims = 2 and job_id = any(%s)"
#: A worker runs at most this many jobs at once whose last worker was lost; it hands back those that wait for too long.
_ALONE_AT_ONCE = "8"
_STILL_AT_WORK = "select count(*) from public.run where pid = %s and ended_at is null"
_STALE_EFFECTS = "select count(*) from tenure.effect where claims = 1"


async def a_freeze(app: App, db: Harness, fleet: Fleet, each: int) -> tuple[list[int], Counter[str]]:
    """Freeze a worker in the middle of jobs under all contracts until another has them; what it says of that."""
    before, gate = at_work(db), f"gate-{fleet.did['frozen']}"
    frozen = fleet.begin()
    tasks = itertools.cycle([program.gated, program.gated_in_a_thread, program.gated_with_an_effect, program.gated])
    ids = await app.enqueue_many(next(tasks).options(contract=name).call(gate) for name in CONTRACTS * each)
    await until(lambda: at_work(db) - before == len(ids), 60)
    fleet.freeze(frozen)
    db.expire(*ids)
    others = [fleet.begin("--concurrency", _ALONE_AT_ONCE) for _ in range(each)]
    await until(lambda: db.value(_RUNNING_AGAIN, ids) == len(ids), 60)
    after = [db.hops(job_id) for job_id in ids]
    fleet.ahead(LEASE_S)  # by its own clock, too, its leases are over
    fleet.open(gate)
    fleet.thaw(frozen)
    await until(
        lambda: db.value(_STILL_AT_WORK, fleet.workers[frozen].pid) == 0, 60
    )  # its handlers came to their end, late
    told = fleet.stop(frozen)
    assert [db.hops(job_id) for job_id in ids] == after, "something stale was stored"
    assert db.value(_STALE_EFFECTS) == 0
    fleet.open(gate, attempt=2)
    await over(db, 60)
    for other in others:
        fleet.stop(other)
    assert {db.row(job_id)["result"]["attempt"] for job_id in ids} == {2}
    assert db.value(_STALE_EFFECTS) == 0
    assert told["claimed"] == len(ids)
    assert told["refused"] + told["lost"] == len(ids), told
    assert not told["succeeded"]
    return ids, told


@pytest.mark.parametrize(("rounds", "each"), [(1, 1), pytest.param(10, 4, marks=pytest.mark.prove)])
async def test_nothing_of_what_a_frozen_worker_says_late_is_stored(
    app: App, dsn: str, db: Harness, tmp_path: Path, rounds: int, each: int
) -> None:
    witness(db)
    ids: list[int] = []
    told: Counter[str] = Counter()
    with Fleet(dsn, tmp_path, "--concurrency", "30", **LONG_LEASES) as fleet:
        for _ in range(rounds):
            made, said = await a_freeze(app, db, fleet, each)
            ids += made
            told += said
    triggers = await ended_well(db, ids)
    seen_by_witnesses(db)
    print(
        f"frozen {rounds} times with {len(ids)} jobs: {lost(triggers)} leases ran out, "
        f"{told['refused']} late results refused, {told['lost']} handlers ended by their lost lease"
    )
    assert lost(triggers) == len(ids)


@pytest.mark.parametrize(
    "contracts",
    [
        ("standard", "phase27"),
        pytest.param(CONTRACTS, marks=pytest.mark.prove),
    ],
)
async def test_handler_that_blocks_the_loop_keeps_its_own_lease_and_its_neighbours_are_handed_back(
    app: App, dsn: str, db: Harness, tmp_path: Path, contracts: tuple[str, ...]
) -> None:
    witness(db)
    ids: list[int] = []
    blockers: list[int] = []
    with Fleet(dsn, tmp_path, "--concurrency", "8", **LONG_LEASES) as fleet:
        for contract in contracts:  # the blocker is claimed first, and its neighbours with it
            waiting = (program.on_the_loop, program.in_a_thread, program.unseen, program.with_an_effect)
            calls = [program.block.options(contract=contract, priority=0).call("gate")]
            calls += [task.options(contract=contract).call(0.1) for task in waiting]
            made = await app.enqueue_many(calls)
            blockers.append(made[0])
            ids += made
        for contract in contracts:
            fleet.begin("--contracts", contract)
        await until(lambda: db.value("select count(*) from tenure.job where claims = 1") == len(ids), 60)
        thief = fleet.begin()
        await fleet.at_work()
        fleet.ahead(0.6 * LEASE_S)
        # Where a job is started before its handler begins, its life has begun: only a loop that is blocked for as long
        # as half a lease, in real time, hands it back.
        left = "select count(*) from tenure.job where contract <> 'reliability' and id <> all(%s)"
        await until(lambda: db.value(left, blockers) == 0, 60)
        await fleet.age(db, 4)
        assert db.value("select count(*) from tenure.job where id = any(%s)", blockers) == len(blockers)
        fleet.open("gate")
        await over(db, 60)
        assert fleet.stop(thief)["claimed"] >= 4 * len([name for name in contracts if name != "reliability"])
        fleet.stop_all()
    await ended_well(db, ids)
    assert {db.row(job_id)["claims"] for job_id in blockers} == {1}, "a blocking handler keeps its lease"
