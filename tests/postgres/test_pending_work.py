"""What upkeep asks every second: which contracts have work, from the small indexes alone."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.statement import Statement, run_sync
from tenure.postgres.store import Store
from tenure.postgres.upkeep_work import UpkeepWork
from tests.harness import Harness
from tests.postgres.test_plans import Planner, full, planner, scans
from tests.upkeep.test_upkeep import at_the_commit_point, expired, waiting

__all__ = ["full", "planner"]


def asked(planner: Planner) -> Statement:
    """The question, for every contract that is registered."""
    watch = UpkeepWork(Keeping(planner.registry))  # type: ignore[arg-type]
    run_sync(planner.engine, watch._pending_work())  # what is registered is read once
    (found,) = [next(watch._pending_work())]
    assert isinstance(found, Statement)
    return found


class Keeping:
    """As much of an engine as the question needs."""

    def __init__(self, registry: Any) -> None:
        self.registry = registry


@pytest.mark.pristine
def test_the_question_walks_the_small_sets(planner: Planner, full: Harness) -> None:
    for plan in planner.plans(asked(planner)):
        assert "Seq Scan on job" not in plan
        assert len(scans(plan)) == 2, plan
        assert all(using.split()[-1] in ("job_held", "job_waiting") for using in scans(plan)), plan
        assert "Sort" not in plan


async def test_the_answer_names_the_contracts_that_have_something_to_do(store: Store, db: Harness) -> None:
    before = db.value("select clock_timestamp()")
    quiet = await store.watch.find_pending()
    assert (quiet.settle, quiet.reap, quiet.promote) == (frozenset(),) * 3
    assert before < quiet.at < db.value("select clock_timestamp()")
    for contract in ("standard", "reliability"):
        await expired(store, db, contract)
    await waiting(store, db)
    await at_the_commit_point(store, db)
    found = await store.watch.find_pending()
    assert found.reap == {"standard", "reliability"}
    assert (list(found.settle), list(found.promote)) == (["gate_b2"], ["dispatcher"])


async def test_a_holder_that_missed_its_beats_is_pressing(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", contract="reliability"))
    (job,) = await store.claim("reliability", worker="w")
    await store.start(job.held)
    await store.heartbeat(job.held)
    assert (await store.watch.find_pending()).reap == frozenset()
    db.sql("update tenure.job set last_heartbeat_at = now() - interval '31 seconds'")
    assert (await store.watch.find_pending()).reap == {"reliability"}
    assert len(await store.reap("reliability")) == 1


async def test_the_shortest_lease_in_force_is_told(store: Store) -> None:
    assert (await store.watch.find_pending()).lease_sec == 30.0
    await store.enqueue(NewJob("t"))
    await store.claim(worker="w", lease_ms=20_500)
    assert (await store.watch.find_pending()).lease_sec == 20.5
