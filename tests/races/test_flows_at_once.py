"""Two parents that end at the same moment, each in any way: their child is started, once.

A thousand rounds for each pair of ways in `./dev prove`, and more until it was a race. In `./dev test` twelve for each
way beside itself and beside a success.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from tenure.errors import Refused
from tenure.jobs.flow import NewFlow, NewNode
from tenure.jobs.job import Job, NewJob
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_ends import WAYS, Parent, Way
from tests.harness import Harness
from tests.holder_calls import calls
from tests.http.conftest import serving
from tests.races.duels import Call, Ring, Round, logs_are_sound
from tests.races.sessions import Session, now

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]  # 1,000 rounds of a slow pair on a busy machine

#: Pairs of ways with their rounds.
PAIRS = [
    *((pair, 12) for pair in [*((way, way) for way in WAYS), *(("success", way) for way in WAYS if way != "success")]),
    *(pytest.param(pair, 1000, marks=pytest.mark.prove) for pair in itertools.combinations_with_replacement(WAYS, 2)),
]
_BATCH = 50  # pairs of parents in a flow


@dataclass
class Pair(Round):
    """A round for two parents of one child."""

    parents: tuple[Parent, Parent] = field(default=None)  # type: ignore[assignment]


def leases(preparer: Session, contract: str, ids: list[int]) -> dict[int, Job]:
    """Claim and start these jobs, with leases that last."""
    answers = now(preparer.store.claim_by_id(ids, worker="w", contract=contract))
    jobs = {job.id: job for job in answers if isinstance(job, Job)}
    assert len(jobs) == len(ids)
    now(preparer.store.report("start", calls([job.held for job in jobs.values()])))
    preparer.sql("update tenure.job set lease_expires_at = lease_expires_at + interval '1 hour', "
                 "last_heartbeat_at = last_heartbeat_at + interval '1 hour' where id = any (%s)", ids)  # fmt: skip
    return jobs


def pairs(ring: Ring, ways: tuple[Way, Way], dispatcher: httpx2.Client, dsn: str) -> Iterator[Pair]:
    """Parents that are about to end in these ways, and their child."""
    batch = min(_BATCH, ring.rounds)
    for begun in itertools.count(step=batch):
        if begun >= ring.rounds and (ring.was_a_race() or begun >= 20 * ring.rounds):
            return
        nodes: list[NewNode] = []
        for n in range(batch):
            nodes += [way.node_of(f"{n}.{side}") for side, way in enumerate(ways)]
            nodes.append(NewNode(f"{n}", NewJob("t", {}), after=[f"{n}.0", f"{n}.1"]))
        made = now(ring.preparer.store.flows.create(NewFlow("pairs", nodes, "continue")))
        held: dict[int, Job] = {}
        for contract in {way.contract for way in ways if way.is_held}:
            held |= leases(ring.preparer, contract, [
                made.jobs[f"{n}.{side}"] for n in range(batch) for side, way in enumerate(ways)
                if way.is_held and way.contract == contract
            ])  # fmt: skip
        for n in range(batch):
            ids = [made.jobs[f"{n}.{side}"] for side in (0, 1)]
            first, second = (Parent(one, held[one].held if one in held else None, dispatcher, dsn) for one in ids)
            yield Pair(made.jobs[f"{n}"], "", parents=(first, second))


def ends(way: Way, side: int) -> Call:
    """The call of one side."""

    async def call(store: Store, pair: Round) -> Any:
        assert isinstance(pair, Pair)
        return await way.call(store, pair.parents[side])

    return call


#: Which job ended last, by the log.
_LAST = "select job_id from tenure.event where job_id = any (%s) order by ts desc, seq limit 1"


def first_of(db: Harness, pair: Pair, told: tuple[Any, Any]) -> int:
    """The side that was first. One round of upkeep may end both parents: then the side that made it."""
    if set(told) == {True, False}:
        return told.index(True)
    ids = [parent.job_id for parent in pair.parents]
    return 1 - ids.index(db.value(_LAST, ids))


@pytest.fixture
def dispatcher(dsn: str) -> Iterator[httpx2.Client]:
    """A client of a dispatcher, for all rounds: to make one takes longer than a round without."""
    with serving(dsn) as address, httpx2.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    ("names", "rounds"), PAIRS, ids=lambda one: " and ".join(one) if isinstance(one, tuple) else None
)
def test_a_child_is_started_once_when_its_parents_end_together(
    dsn: str, dispatcher: httpx2.Client, names: tuple[str, str], rounds: int, caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    ways = WAYS[names[0]], WAYS[names[1]]
    children: list[int] = []
    with Ring(dsn, rounds) as ring, caplog.at_level(logging.WARNING):
        for pair in pairs(ring, ways, dispatcher, dsn):
            for way, parent in zip(ways, pair.parents, strict=True):
                now(way.prepare(ring.preparer.store, ring.db, parent))
            told = ring.both(pair, ends(ways[0], 0), ends(ways[1], 1))
            assert not any(isinstance(answer, Refused) for answer in told)
            ring.count(first_of(ring.db, pair, told))
            started_once(ring.db, pair, ways)
            children.append(pair.job_id)
        record_property("duel", f"first {ring.wins[0]} : {ring.wins[1]}, overlapping {ring.overlapped}")
        assert ring.was_a_race(), f"first {ring.wins}, {ring.overlapped} of {sum(ring.wins)} rounds overlapped"
        assert len(children) >= rounds
        logs_are_sound(ring.db, [row["job_id"] for row in ring.db.sql("select distinct job_id from tenure.event")])
        assert ring.db.value("select count(*) from tenure.job where id = any (%s)", children) == len(children)
        assert "wait until upkeep advances them" not in caplog.text
    asyncio.run(is_sound(dsn))


def started_once(db: Harness, pair: Pair, ways: tuple[Way, Way]) -> None:
    """Assert that the parents' ends are taken into account, and that the child has one job, which nobody claimed."""
    ids = [*(parent.job_id for parent in pair.parents), pair.job_id]
    found = {
        row["id"]: row["state"] for row in db.sql("select id, state from tenure.flow_node where id = any (%s)", ids)
    }
    assert [found[one] for one in ids] == [*(way.node for way in ways), "started"]
    jobs = db.sql("select id, claims, seq from tenure.job where flow_node = %s", pair.job_id)
    assert jobs == [{"id": pair.job_id, "claims": 0, "seq": 0}]
    assert db.value("select count(*) from tenure.flow_end") == 0


async def is_sound(dsn: str) -> None:
    """Assert that the audit finds nothing."""
    async with Store.open(dsn, connections=1) as store:
        assert (await audit(store)).violations == []
