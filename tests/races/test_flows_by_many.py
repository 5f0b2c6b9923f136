"""Workers, upkeep and operators on the same flows at once: no deadlock, no lost end, and the audit finds nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tenure.errors import FlowConflict, Refused
from tenure.jobs.flow import NewFlow, NewNode
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_ends import FATAL
from tests.harness import Harness

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]

CONTRACTS = ("standard", "dispatcher", "simple")
RETRIED = Failure("not yet", type="TransientError", retryable=True)


def any_flow(chance: random.Random, name: str) -> NewFlow:
    """A flow of about twenty nodes with random dependencies, policies, a mapped node and often a clean-up node."""
    nodes = [
        NewNode(
            f"n{n}", NewJob("t", {}, chance.choice(CONTRACTS), max_attempts=None),
            after=[f"n{parent}" for parent in chance.sample(range(n), min(n, chance.randint(0, 4)))],
            on_failure=chance.choice((None, "skip", "continue")),
        )
        for n in range(18)
    ]  # fmt: skip
    nodes.append(NewNode("map", NewJob("t"), inputs={"item": f"n{chance.randrange(9)}"}, each="item"))
    nodes.append(NewNode("sum", NewJob("t"), inputs={"items": "map"}))
    if chance.random() < 0.7:
        nodes.append(NewNode("undo", NewJob("t"), cleanup=True))
    return NewFlow(name, chance.sample(nodes, len(nodes)), chance.choice(("stop", "skip", "continue")))


async def work(store: Store, chance: random.Random, *, fails: float) -> int:
    """Claim some jobs and end them together, in any order; returns how many."""
    ended = 0
    for contract in chance.sample(CONTRACTS, len(CONTRACTS)):
        jobs = await store.claim(contract, worker=f"w{chance.random()}", limit=chance.randint(1, 12))
        await store.report("start", [HolderCall(job.held) for job in jobs])
        chance.shuffle(jobs)
        bad = [job for job in jobs if chance.random() < fails]
        failed = [HolderCall(job.held, failure=chance.choice((FATAL, RETRIED))) for job in bad]
        await store.report("fail", failed)
        await store.report("succeed", [HolderCall(job.held, result=[1, 2]) for job in jobs if job not in bad])
        ended += len(jobs)
    return ended


async def keep_up(store: Store, _: random.Random) -> None:
    """A round of upkeep; what waits for its next attempt is due at once."""
    await store.flows.advance()
    for contract in CONTRACTS:
        await store.reap(contract)
        await store.promote(contract)


async def operate(store: Store, chance: random.Random) -> None:
    """Cancel or resume a flow, or run a dead letter again."""
    flow = chance.choice(await store.flows.list(limit=100))
    try:
        what = chance.random()
        if what < 0.3:
            await store.flows.cancel(flow.id, mode=chance.choice(("soft", "hard")))
        elif what < 0.7:
            await store.flows.resume(flow.id)
        elif failed := [one for one in await store.flows.nodes(flow.id) if one.state == "failed" and one.job_id]:
            await store.requeue(chance.choice(failed).job_id or 0, actor="ada")
    except (FlowConflict, Refused):
        pass


@pytest.mark.parametrize(
    ("seed", "flows", "turns"), [(1, 4, 12), *(pytest.param(n, 20, 60, marks=pytest.mark.prove) for n in range(2, 12))]
)
async def test_flows_that_many_work_on_wait_in_no_circle_and_lose_no_end(
    dsn: str, db: Harness, seed: int, flows: int, turns: int
) -> None:
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(Store.open(dsn, connections=2)) for _ in range(6)]
        for n in range(flows):
            await stores[0].flows.create(any_flow(chance, f"flow {n}"))

        async def turn_by_turn(
            store: Store, act: Callable[[Store, random.Random], Awaitable[object]], own: int
        ) -> None:
            chance = random.Random(own)
            for _ in range(turns):
                await act(store, chance)
                db.sql("update tenure.job set due_at = now() where role in ('ready', 'waiting') and due_at > now()")

        def careless(store: Store, chance: random.Random) -> Awaitable[int]:
            return work(store, chance, fails=0.3)

        acts = (careless, careless, careless, keep_up, operate, operate)
        await asyncio.gather(
            *(turn_by_turn(store, act, seed * 100 + n) for n, (store, act) in enumerate(zip(stores, acts, strict=True)))
        )
        assert (await audit(stores[0])).violations == []
        while any(flow.state in ("running", "cancelling") for flow in await stores[0].flows.list(limit=100)):
            await asyncio.gather(*(work(store, chance, fails=0.0) for store in stores[:3]))
            await keep_up(stores[3], chance)
            db.sql("update tenure.job set due_at = now() where role in ('ready', 'waiting') and due_at > now()")
        report = await audit(stores[0])
    assert (report.violations, report.flows) == ([], flows)
    assert db.value("select count(*) from tenure.flow_end") == db.value("select count(*) from tenure.job") == 0
    assert db.value("select deadlocks from pg_stat_database where datname = current_database()") == 0
