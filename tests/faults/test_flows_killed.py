"""A flow whose workers and database are killed again and again: it ends, and every node has run to its end once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.embedded import Cluster
from tenure.jobs.flow import Flow, FlowMade, NewFlow, NewNode
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.conftest import OwnCluster
from tests.faults.fleet import LONG_LEASES, Fleet
from tests.faults.kills import again
from tests.faults.test_server_killed import kill, up_again
from tests.harness import Harness
from tests.worker.working import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(1800)]

_CONTRACTS = ("standard", "dispatcher", "simple")
_KINDS = ("worker", "immediate", "worker", "postmaster", "both")

#: The jobs of a flow with what their logs tell; `early`: claimed before the log of a parent had ended.
_LOGS = """
with log as (
    select job_id, min(ts) as first, max(ts) as last, max(claims) as claims,
           count(*) filter (where trigger = 'claim') as claimed,
           count(*) filter (where trigger = 'succeed') as succeeded,
           count(*) filter (where trigger in ('expire', 'reclaim')) as lost
    from tenure.event group by job_id
)
select node.name, log.claimed, log.succeeded, log.lost,
       exists (select from tenure.flow_node as parent join log as before on before.job_id = parent.job_id
               where parent.id = any (node.parents) and before.last >= log.first) as early
from tenure.flow_node as node left join log on log.job_id = node.job_id
where node."each" is null
"""


@pytest.fixture
def cluster(own_cluster: OwnCluster) -> Iterator[Cluster]:
    """A server of this test's own."""
    with own_cluster(max_connections="50", shared_buffers="64MB") as own:
        migrate(own.dsn)
        yield own


def any_flow(chance: random.Random, nodes: int, members: int) -> NewFlow:
    """Nodes after up to three others, diamonds among them; in between, a mapped node and the sum of its results."""

    def job(seconds: float, n: int) -> NewJob:
        return NewJob("asleep", {"seconds": seconds, "n": n}, chance.choice(_CONTRACTS), max_attempts=20)

    made = []
    for n in range(nodes):
        near = chance.sample(range(max(0, n - 12), n), min(n, chance.randint(1, 3)))
        made.append(NewNode(f"n{n}", job(round(chance.uniform(0, 0.05), 3), n), after=[f"n{one}" for one in near]))
    made += [
        NewNode("list", NewJob("listing", {"count": members}, max_attempts=20), after=[f"n{nodes // 3}"]),
        NewNode("map", NewJob("asleep", {"seconds": 0.01}, max_attempts=20), inputs={"n": "list"}, each="n"),
        NewNode("sum", NewJob("adding", {}, max_attempts=20), inputs={"seconds": "map"}),
        NewNode("undo", NewJob("listing", {"count": 0}), cleanup=True),
    ]
    return NewFlow("killed", chance.sample(made, len(made)))


async def ended_jobs(cluster: Cluster, fleet: Fleet, wanted: int) -> None:
    """Wait until this many jobs have ended."""
    give_up = time.monotonic() + 120
    with Harness(cluster.dsn) as db:
        while (ended := db.value("select count(*) from tenure.job_done")) < wanted:
            assert time.monotonic() < give_up, f"{ended} of {wanted}; {db.sql('select * from tenure.job limit 3')}"
            fleet.bury(db)
            await asyncio.sleep(0.02)


async def strike(cluster: Cluster, fleet: Fleet, kind: str, chance: random.Random) -> None:
    """Kill a worker, the server, or both at once, and start what was killed again."""
    if kind in ("worker", "both"):
        with Harness(cluster.dsn) as db:
            held = db.sql("select distinct lease_owner from tenure.job where lease_owner is not null")
        holders = {row["lease_owner"] for row in held} & fleet.workers.keys()
        fleet.kill(chance.choice(sorted(holders or fleet.workers)))
        fleet.begin()
    if kind != "worker":
        await asyncio.to_thread(kill, cluster, "immediate" if kind == "immediate" else "postmaster")
        await asyncio.to_thread(up_again, cluster)
        fleet.did["servers"] += 1


@pytest.mark.parametrize(
    ("kills", "nodes", "members"), [(5, 30, 20), pytest.param(60, 1_000, 1_000, marks=pytest.mark.prove)]
)
async def test_a_flow_ends_with_every_node_run_to_its_end_once_whatever_is_killed(
    cluster: Cluster, tmp_path: Path, kills: int, nodes: int, members: int
) -> None:
    chance = random.Random(kills)
    jobs = nodes + members + 2
    with Fleet(cluster.dsn, tmp_path, "--concurrency", "4", **LONG_LEASES) as fleet:
        async with Store.open(cluster.dsn, connections=1) as store:
            flow = any_flow(chance, nodes, members)
            made: FlowMade = await store.flows.create(flow)
            for _ in range(2):
                fleet.begin()
            for n in range(kills):
                await ended_jobs(cluster, fleet, (n + 1) * jobs // (kills + 2))
                await asyncio.sleep(chance.uniform(0, 0.1))
                await strike(cluster, fleet, _KINDS[n % len(_KINDS)], chance)
            await ended_jobs(cluster, fleet, jobs)
            with Harness(cluster.dsn) as db:
                await until(lambda: db.value("select count(*) from tenure.flow where ended_at is null") == 0, 60)
            await fleet.at_work()
            fleet.stop_all()
            ended = await again(store.flows.read, made.id)
            assert isinstance(ended, Flow)
            report = await audit(store)
    assert (ended.state, ended.open, ended.failed, ended.nodes) == ("succeeded", 0, 0, nodes + members + 4)
    assert (report.violations, report.flows, report.jobs) == ([], 1, jobs)
    with Harness(cluster.dsn) as db:
        assert db.value("select count(*) from tenure.flow_end") == db.value("select count(*) from tenure.job") == 0
        logs = {row["name"]: row for row in db.sql(_LOGS)}
        total = db.value("select result::integer from tenure.job_done where type = 'adding'")
    assert logs.pop("undo")["claimed"] is None
    assert len(logs) == jobs
    assert {(row["succeeded"], row["early"]) for row in logs.values()} == {(1, False)}
    assert total == sum(range(members))
    lost = sum(row["lost"] for row in logs.values())
    assert lost > 0, "the kills hit no handler"
    print(f"{jobs} jobs of a flow; {dict(fleet.did)}; {lost} leases ran out")
