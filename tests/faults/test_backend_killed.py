"""A backend is killed in the middle of a statement: the call happened whole or not at all, and nobody is told a lie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tenure.errors import ConnectionLost, Refused
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.faults.kills import ENDS, Pauses, again, halted, ids_of, kill_at_the_gate, killed_after, prepared
from tests.holder_calls import calls
from tests.races.sessions import TRANSIENT, Arena

pytestmark = pytest.mark.timeout(600)

#: Where each statement is stopped: every table it writes, before a row and after the last one.
_MOVES = ["before update on job", "before insert on event", "after insert on event"]
_FINISHES = ["before delete on job", "before insert on job_done", "before insert on event", "after insert on event"]
_LETTER = "before insert on dead_letter"
POINTS: dict[tuple[str, str], list[str]] = {
    ("enqueue", "standard"): ["before insert on job", "after insert on job"],
    ("enqueue_keyed", "standard"): ["before insert on key", "before insert on job", "after insert on job"],
    ("claim", "standard"): ["before insert on claim", *_MOVES],
    ("claim", "phase27"): _MOVES,
    ("claim", "reliability"): _MOVES,
    ("claim_by_id", "standard"): ["before insert on claim", *_MOVES],
    ("claim_by_id", "dispatcher"): _MOVES,
    ("start", "reliability"): _MOVES,
    ("succeed", "standard"): _FINISHES,
    ("succeed", "reliability"): _FINISHES,
    ("retry", "standard"): _MOVES,
    ("retry", "simple"): _MOVES,
    ("retry", "dispatcher"): _MOVES,
    ("exhaust", "standard"): [*_FINISHES, _LETTER],
    ("exhaust", "simple"): _FINISHES,
    ("exhaust", "gate_b2"): _MOVES,
    ("reap", "standard"): _MOVES,
    ("reap_at_cap", "standard"): [*_FINISHES, _LETTER],
    ("promote", "dispatcher"): _MOVES,
    ("settle", "gate_b2"): [*_FINISHES, _LETTER],
}


def cut_points() -> Iterator[Any]:
    """Every point under the first contract of a verb; under its others one, and the rest in the long run."""
    seen: set[str] = set()
    for (verb, contract), points in POINTS.items():
        for point in points:
            long = verb in seen and point != "before insert on event"
            name = "-".join([verb, contract, *point.split()])
            yield pytest.param(verb, contract, point, id=name, marks=[pytest.mark.prove] if long else [])
        seen.add(verb)


@pytest.mark.parametrize(
    ("verb", "contract", "point"),
    list(cut_points()),
)
async def test_statement_killed_half_way_never_happened_and_its_repeat_happens_once(
    arena: Arena, victim: Store, verb: str, contract: str, point: str
) -> None:
    scene = prepared(arena, verb, contract)
    before = scene.print(arena.db)
    with halted(arena, point):
        call = asyncio.create_task(scene.call(victim))
        await kill_at_the_gate(arena.db)
        with pytest.raises(ConnectionLost):
            await call
    assert scene.print(arena.db) == before, "half of the statement stayed"
    assert not scene.happened(arena.db)

    await again(scene.call, victim)
    assert scene.happened(arena.db)
    if verb != "enqueue":  # without a key, a second call is a second job
        after = scene.print(arena.db)
        await again(scene.call, victim)
        assert scene.print(arena.db) == after


@pytest.mark.parametrize("point", [*_FINISHES[:2], _LETTER])
async def test_gate_b2_killed_in_its_second_transaction_has_answered_and_upkeep_goes_on(
    arena: Arena, victim: Store, point: str
) -> None:
    scene = prepared(arena, "exhaust", "gate_b2")
    assert scene.id is not None
    with halted(arena, point):
        call = asyncio.create_task(scene.call(victim))
        await kill_at_the_gate(arena.db)
        answer = await call
    assert isinstance(answer, Moved)
    assert answer.state == "dlq_pending"
    row = arena.db.row(scene.id)
    assert (row["state"], row["lease_token"]) == ("dlq_pending", None)
    assert not scene.happened(arena.db)

    repeated = await again(scene.call, victim)
    assert isinstance(repeated, Refused)
    await again(victim.settle, "gate_b2")
    assert scene.happened(arena.db)
    assert arena.db.hops(scene.id)[-2:] == ["dlq_pending->dlq_recorded", "dlq_recorded->failed"]


SIZES = pytest.mark.parametrize("kills", [25, pytest.param(100, marks=pytest.mark.prove)])


@pytest.mark.serial
@SIZES
async def test_backend_killed_at_a_random_moment_loses_nothing_that_was_answered(
    arena: Arena, victim: Store, kills: int
) -> None:
    chance = random.Random(kills)
    pauses = Pauses(chance)
    cut_off = turns = 0
    while turns < kills or cut_off < kills // 10:
        turns += 1
        assert turns < 20 * kills, "the kills came too late to show anything"
        scene = prepared(arena, *chance.choice(list(ENDS)))
        told = await killed_after(arena.db, victim, pauses.next(), scene.call(victim))
        pauses.learn(cut_off=isinstance(told, ConnectionLost))
        if isinstance(told, ConnectionLost):
            cut_off += 1
            scene.happened(arena.db)
        else:
            assert not isinstance(told, Refused)
            at_commit_point = isinstance(told, Moved) and told.role == "settling"
            assert scene.happened(arena.db) or at_commit_point, f"{scene} was answered {told} and is lost"
        if scene.verb != "enqueue":
            await again(scene.call, victim)
            await again(victim.settle, scene.contract)
            assert scene.happened(arena.db)


_CLAIMS_AGREE = """
select task_id from tenure_phase27.tasks as task
where queue = %s and status in ('queued', 'running')
  and ((status = 'running') <> (locked_by is not null)
       or (status = 'running') <> (lock_expires_at is not null)
       or (status = 'running') <> exists (
           select from tenure_phase27.task_events as event
           where event.task_id = task.task_id and kind = 'task.running' and payload ->> 'attempt' = task.attempt::text))
"""


@pytest.mark.serial
@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.prove, pytest.mark.req("S0-24")])])
async def test_claim_killed_at_random_leaves_columns_and_event_together_or_not_at_all(
    arena: Arena, victim: Store, kills: int
) -> None:
    chance, queue, batch = random.Random(24), f"queue-{uuid4().hex[:8]}", 40
    fresh = [NewJob("t", contract="phase27", queue=queue)] * batch
    pauses = Pauses(chance)
    cut_off = turns = 0
    while cut_off < kills:
        turns += 1
        assert turns < 20 * kills, "hardly any kill fell into a claim"
        arena.second.enqueue(*fresh)
        key = uuid4()
        claim = victim.claim("phase27", [queue], worker="w", limit=batch, claim_key=key)
        told = await killed_after(arena.db, victim, pauses.next(), claim)
        pauses.learn(cut_off=isinstance(told, ConnectionLost))
        cut_off += isinstance(told, ConnectionLost)
        assert arena.db.sql(_CLAIMS_AGREE, queue) == []

        won = await again(victim.claim, "phase27", [queue], worker="w", limit=batch, claim_key=key)
        assert isinstance(won, list)
        assert len(won) == batch
        assert arena.db.value("select count(*) from tenure.job where lease_token = %s", key) == batch
        outcomes = await again(victim.report, "succeed", calls([job.held for job in won]))
        assert isinstance(outcomes, list)
        assert all(isinstance(outcome, Moved) for outcome in outcomes)
        arena.db.log_is_sound(won[0].id, won[-1].id)


@pytest.mark.serial
@pytest.mark.parametrize("kills", [30, pytest.param(300, marks=[pytest.mark.prove, pytest.mark.req("S3-07")])])
async def test_fail_killed_at_random_strands_no_failed_task_that_has_budget_left(
    arena: Arena, victim: Store, kills: int
) -> None:
    chance, queue = random.Random(307), f"queue-{uuid4().hex[:8]}"
    stranded = "select id from tenure_simple.tasks where queue = %s and status = 'FAILED' and attempts < max_retries"
    ids = ids_of(arena.second.enqueue(*[NewJob("t", contract="simple", queue=queue, max_attempts=1000)] * 8))
    pauses = Pauses(chance)
    cut_off = turns = 0
    while cut_off < kills:
        turns += 1
        assert turns < 20 * kills, "hardly any kill fell into a fail"
        arena.db.due(*ids)
        held = [job.held for job in arena.second.claim("simple", queue, len(ids))]
        assert len(held) == len(ids)
        failures = [Failure(f"turn {turns}")] * len(held)
        told = await killed_after(
            arena.db, victim, pauses.next(), victim.report("fail", calls(held, failures=failures))
        )
        pauses.learn(cut_off=isinstance(told, ConnectionLost))
        if isinstance(told, ConnectionLost):
            cut_off += 1
        else:
            assert all(isinstance(outcome, Moved) for outcome in told)
        assert arena.db.sql(stranded, queue) == []

        await again(victim.report, "fail", calls(held, failures=failures))
        tasks = arena.db.sql(
            "select status, attempts, eta > updated_at as later from tenure_simple.tasks where queue = %s", queue
        )
        assert tasks == [{"status": "PENDING", "attempts": turns, "later": True}] * len(ids)
    assert all(arena.db.hops(job_id).count("RUNNING->FAILED") == turns for job_id in ids)
    arena.db.log_is_sound(*ids)


@pytest.mark.serial
async def test_exhausting_failure_killed_at_random_ends_once(arena: Arena, victim: Store) -> None:
    chance = random.Random(9)
    for _ in range(10):
        held, _ = arena.held("standard", max_attempts=1)
        await killed_after(
            arena.db, victim, chance.uniform(0, 0.004), victim.report("fail", calls([held], failures=[TRANSIENT]))
        )
        await again(victim.report, "fail", calls([held], failures=[TRANSIENT]))
        assert arena.db.hops(held.id) == ["queued->running", "running->dead"]
        assert arena.db.value("select count(*) from tenure.dead_letter where job_id = %s", held.id) == 1
        arena.db.log_is_sound(held.id)
