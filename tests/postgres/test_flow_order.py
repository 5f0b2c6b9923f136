"""Order by dependencies: whatever is asked for, and in whatever order, a node runs when its parents have ended."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import Refused, WaitingForParents
from tenure.jobs.flow import NewFlow, NewNode
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Job
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_nodes import node, states
from tests.harness import Harness


async def run_by_id(store: Store, contract: str, job_id: int, name: str) -> bool:
    """Claim the job of a node by its id, as a message asks for it, and end it well; False: it waits for its parents."""
    (answer,) = await store.claim_by_id([job_id], worker="w", contract=contract)
    if isinstance(answer, WaitingForParents):
        assert answer.node == name
        return False
    assert isinstance(answer, Job), answer
    await store.start(answer.held)
    await store.succeed(answer.held, name)
    return True


def ran_in_order(db: Harness, nodes: Sequence[NewNode], jobs: Mapping[str, int]) -> None:
    """Assert by the log that each job was claimed once, after the last log row of each of its parents."""
    rows = db.sql(
        "select job_id, min(ts) as first, max(ts) as last, count(*) filter (where trigger = 'claim') as claims "
        "from tenure.event where job_id = any (%s) group by job_id",
        list(jobs.values()),
    )
    logs = {row["job_id"]: row for row in rows}
    for one in nodes:
        assert logs[jobs[one.name]]["claims"] == 1
        for parent in one.parents():
            assert logs[jobs[parent]]["last"] < logs[jobs[one.name]]["first"], f"{one.name} before {parent}"


@pytest.mark.req("S1-77")
@pytest.mark.parametrize("contract", BUILT_IN)
@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
async def test_a_chain_runs_in_its_order_whatever_is_asked_for_first(
    store: Store, db: Harness, contract: str, order: tuple[str, ...]
) -> None:
    nodes = [node(name, *after, contract=contract) for name, after in (("c", "b"), ("b", "a"), ("a", ""))]
    made = await store.flows.create(NewFlow("chain", nodes))
    ran: list[str] = []
    while left := [name for name in order if name not in ran]:
        ran += [name for name in left if await run_by_id(store, contract, made.jobs[name], name)]
    assert ran == ["a", "b", "c"]
    ran_in_order(db, nodes, made.jobs)
    assert (await store.flows.read(made.id)).state == "succeeded"


@pytest.mark.req("S1-77")
@pytest.mark.parametrize("last", ["b", "c"])
async def test_the_join_of_a_diamond_waits_for_both(store: Store, db: Harness, last: str) -> None:
    contract = "dispatcher"
    nodes = [node("d", "b", "c", contract=contract), node("c", "a", contract=contract),
             node("b", "a", contract=contract), node("a", contract=contract)]  # fmt: skip
    made = await store.flows.create(NewFlow("diamond", nodes))
    first = "c" if last == "b" else "b"
    for name, refused in (("a", "bcd"), (first, "d"), (last, "d"), ("d", "")):
        for other in refused:
            assert not await run_by_id(store, contract, made.jobs[other], other)
        assert await run_by_id(store, contract, made.jobs[name], name)
    ran_in_order(db, nodes, made.jobs)
    assert await states(store, made) == dict.fromkeys("abcd", "succeeded")


@pytest.mark.parametrize(
    ("seed", "size"), [(1, 12), (2, 30), *(pytest.param(n, 80, marks=pytest.mark.prove) for n in range(3, 23))]
)
async def test_any_graph_runs_in_its_order_however_its_messages_arrive(
    store: Store, db: Harness, seed: int, size: int
) -> None:
    chance = random.Random(seed)
    nodes = [
        node(f"n{n}", *(f"n{parent}" for parent in chance.sample(range(n), min(n, chance.randint(0, 4)))),
             contract="dispatcher")
        for n in range(size)
    ]  # fmt: skip
    made = await store.flows.create(NewFlow("any", chance.sample(nodes, size)))
    names = {job_id: name for name, job_id in made.jobs.items()}
    left = list(names)
    while left:
        for job_id in chance.sample(left, len(left)):
            if await run_by_id(store, "dispatcher", job_id, names[job_id]):
                left.remove(job_id)
    ran_in_order(db, nodes, made.jobs)
    assert (await audit(store)).violations == []


async def test_a_thousand_members_run_once_each_in_any_order(store: Store, db: Harness) -> None:
    contract = "dispatcher"
    nodes = [
        node("list", contract=contract),
        node("work", contract=contract, inputs={"n": "list"}, each="n"),
        node("sum", contract=contract, inputs={"ns": "work"}),
    ]
    made = await store.flows.create(NewFlow("wide", nodes))
    (listing,) = await store.claim_by_id([made.jobs["list"]], worker="w", contract=contract)
    assert isinstance(listing, Job)
    await store.succeed(listing.held, list(range(1_000)))
    members = [one.id for one in await store.flows.nodes(made.id) if one.part_of is not None]
    random.Random(1_000).shuffle(members)
    for first in range(0, 1_000, 90):
        assert not await run_by_id(store, contract, made.jobs["sum"], "sum")
        claimed = await store.claim_by_id(members[first : first + 90], worker="w", contract=contract)
        jobs = [job for job in claimed if isinstance(job, Job)]
        assert len(jobs) == len(claimed)
        answers = await store.report("succeed", [HolderCall(job.held, result=job.payload["n"]) for job in jobs])
        assert not [answer for answer in answers if isinstance(answer, Refused)]
    (last,) = await store.claim_by_id([made.jobs["sum"]], worker="w", contract=contract)
    assert isinstance(last, Job)
    assert last.payload == {"ns": list(range(1_000))}
    await store.succeed(last.held)
    assert db.value("select count(*) from tenure.job_done where claims = 1") == 1_002
    assert (await audit(store)).violations == []
