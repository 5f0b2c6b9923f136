"""Queues: a paused one is claimed from by nobody while everything else goes on; and what stands in each is counted."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, Refused
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres import queues as queues_module
from tenure.postgres.claim import Claimer
from tenure.postgres.connect import engine_dsn
from tenure.postgres.engine import ask
from tenure.postgres.live_workers import MANY_QUEUES
from tenure.postgres.queues import MANY_JOBS, Queue
from tenure.postgres.registry import Registry
from tenure.postgres.statement import run_sync, statement
from tenure.postgres.store import Store
from tests.clock import StoppedClock
from tests.contracts.gate_b2 import left_pending
from tests.harness import Harness, at_once
from tests.postgres.listening import bare_ear
from tests.postgres.test_plans import Planner

pytestmark = pytest.mark.core

AGAIN = Failure("again", type="TransientError", retryable=True)


async def named(store: Store, name: str) -> Queue:
    """One queue of the list."""
    (found,) = [queue for queue in await store.queues.list() if queue.name == name]
    return found


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(store: Store, dsn: str, contract: str) -> None:
    await store.enqueue_many([NewJob("t", contract=contract, queue=queue) for queue in ("a", "b", "c")])
    await store.queues.pause("b", actor="ada", reason="the mail server is down")
    async with Store.open(dsn) as other:
        assert await other.claim(contract, ["b"], worker="w", limit=10) == []
        won = await other.claim(contract, ["c", "b", "a"], worker="w", limit=10)
        assert [job.queue for job in won] == ["c", "a"], "the others are claimed in the order asked"
        assert await store.queues.resume("b", actor="bob") is True
        (job,) = await other.claim(contract, ["c", "b", "a"], worker="w", limit=10)
        assert job.queue == "b"


async def test_what_dead_workers_left_in_a_paused_queue_is_not_reclaimed_either(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", contract="phase27", queue="b"))
    (job,) = await store.claim("phase27", ["b"], worker="dead")
    db.expire(job.id)
    await store.queues.pause("b", actor="ada")
    before = db.fingerprint(job.id)
    assert await store.claim("phase27", ["b"], worker="w") == []
    assert db.fingerprint(job.id) == before
    await store.queues.resume("b", actor="ada")
    assert [again.claims for again in await store.claim("phase27", ["b"], worker="w")] == [2]


async def test_a_claim_of_a_paused_queue_spends_no_key(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", queue="b"))
    await store.queues.pause("b", actor="ada")
    key = "4b3f6b0e-0d5e-4f0a-9a55-2f7a3f1f0a01"
    assert await store.claim(queues=["b"], worker="w", claim_key=key) == []
    assert db.value("select count(*) from tenure.claim") == 0
    await store.queues.resume("b", actor="ada")
    assert len(await store.claim(queues=["b"], worker="w", claim_key=key)) == 1


async def test_who_names_a_job_gets_it_from_a_paused_queue_too(store: Store) -> None:
    made = [(await store.enqueue(NewJob("t", queue="b"))).job_id for _ in range(2)]
    await store.queues.pause("b", actor="ada")
    (job,) = await store.claim_by_id(made[:1], worker="w")
    assert isinstance(job, Job)
    taken = await store.transition(made[1], "running", actor="ada")
    assert isinstance(taken, Job)


async def test_a_worker_gets_no_job_of_a_paused_queue_by_its_id_and_keeps_the_one_that_it_has(
    store: Store, db: Harness
) -> None:
    held, waits, lost = [(await store.enqueue(NewJob("t", contract="phase27", queue="b"))).job_id for _ in range(3)]
    mine, another, gone = (Claimer("w", 1, uuid4()) for _ in range(3))
    claim = partial(store.claim_ids_for_many, "phase27", heeds_pause=True)
    assert all(isinstance(one, Job) for one in await claim([held, lost], [mine, gone]))
    db.expire(lost)
    await store.queues.pause("b", actor="ada")
    before = db.fingerprint(held, waits, lost)
    won, *refused = await claim([held, waits, lost, held], [mine, another, another, another])
    assert isinstance(won, Job)
    codes = [one.reason_code for one in refused if isinstance(one, Refused)]
    assert codes == ["QUEUE_PAUSED", "QUEUE_PAUSED", "INVALID_TRANSITION"]
    assert db.fingerprint(held, waits, lost) == before
    await store.queues.resume("b", actor="ada")
    assert all(isinstance(one, Job) for one in await claim([waits, lost], [another, another]))


async def test_held_jobs_of_a_paused_queue_go_on_and_upkeep_too(store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("t", queue="b")] * 4)
    ends, fails, beats, lost = await store.claim(queues=["b"], worker="w", limit=4)
    await store.enqueue(NewJob("t", contract="dispatcher", queue="b"))
    (waits,) = await store.claim("dispatcher", ["b"], worker="w")
    await store.fail(waits.held, AGAIN)
    pending = (await store.enqueue(NewJob("t", contract="gate_b2"))).job_id
    await left_pending(store, db, pending)
    for queue in ("b", "default"):
        await store.queues.pause(queue, actor="ada")
    assert (await store.succeed(ends.held)).role == "done"
    assert (await store.fail(fails.held, AGAIN)).will_retry
    assert (await store.heartbeat(beats.held)).job_id == beats.id
    db.expire(lost.id)
    db.due(waits.id)
    for verb in (store.reap("standard"), store.promote("dispatcher"), store.settle("gate_b2")):
        assert [type(outcome) for outcome in await verb] == [Moved]
    assert (await store.enqueue(NewJob("t", queue="b"))).made


async def test_a_repeated_pause_is_harmless_and_keeps_who_came_first(store: Store, db: Harness) -> None:
    first, new = await store.queues.pause("mail", actor="ada", reason="down")
    assert (first.by, first.reason, new) == ("ada", "down", True)
    assert await store.queues.pause("mail", actor="bob", reason="other") == (first, False)
    assert (await named(store, "mail")).paused == first
    assert await store.queues.resume("mail", actor="bob") is True
    assert await store.queues.resume("mail", actor="bob") is False
    assert await store.queues.resume("never paused", actor="bob") is False
    row = db.one("select * from tenure.queue")
    assert (row["paused_at"], row["paused_by"], row["reason"], row["resumed_by"]) == (None, None, None, "bob")
    again, new = await store.queues.pause("mail", actor="eve")
    assert (again.by, again.reason, new) == ("eve", None, True)


async def test_of_many_who_pause_at_once_one_did_it(store: Store, db: Harness) -> None:
    def pause(n: int) -> tuple[str, bool]:
        with psycopg.connect(db.dsn, autocommit=True) as connection:
            ((_, by, _, new),) = run_sync(
                connection, ask("pause_queue", {"name": "mail", "actor": f"p{n}", "reason": None})
            )
            return by, new

    answers = at_once(6, pause)
    assert len({by for by, _ in answers}) == 1
    assert [new for _, new in answers].count(True) == 1


def test_of_two_who_pause_in_the_same_microsecond_one_did_it(clock: StoppedClock) -> None:
    values = {"name": "mail", "actor": "ada", "reason": None}
    with psycopg.connect(clock.dsn, autocommit=True) as connection:
        answers = [run_sync(connection, ask("pause_queue", values)) for _ in range(2)]
    assert [row[3] for ((*row,),) in answers] == [True, False]
    assert answers[0][0][:3] == answers[1][0][:3]


@pytest.mark.parametrize(
    ("name", "actor", "reason"), [("", "ada", None), ("q" * 101, "ada", None), ("q", " ", None), ("q", "ada", "")]
)
async def test_bad_names_are_refused_and_nothing_is_paused(
    store: Store, db: Harness, name: str, actor: str, reason: str | None
) -> None:
    with pytest.raises(BadInput):
        await store.queues.pause(name, actor=actor, reason=reason)
    assert db.value("select count(*) from tenure.queue") == 0


async def test_resuming_wakes_who_waits_for_that_queue(store: Store, dsn: str) -> None:
    await store.queues.pause("mail", actor="ada")
    async with bare_ear(dsn) as ear:
        await store.queues.resume("mail", actor="ada")
        assert await ear.come(store) == [":mail"]


async def test_each_queue_says_what_stands_in_it_over_all_contracts(store: Store, db: Harness) -> None:
    assert await store.queues.list() == []
    hour = datetime.now(UTC) + timedelta(hours=1)
    await store.enqueue_many([NewJob("t", queue="a", priority=n % 10) for n in range(7)])
    await store.enqueue_many([NewJob("t", queue="a", run_at=hour), NewJob("t", queue="a", contract="phase27")])
    await store.enqueue_many([NewJob("t", queue="b c", contract="dispatcher")] * 2)
    taken = await store.claim("dispatcher", ["b c"], worker="w", limit=2)
    await store.fail(taken[0].held, AGAIN)
    await store.queues.pause("empty", actor="ada")
    db.sql("update tenure.job set due_at = now() - interval '5 minutes' where queue = 'a' and priority = 3")
    a, b, empty = await store.queues.list()
    assert (a.name, a.ready, a.delayed, a.waiting, a.held, a.at_least) == ("a", 8, 1, 0, 0, ())
    assert a.oldest is not None
    assert 300 <= (a.now - a.oldest).total_seconds() < 600
    assert (b.name, b.ready, b.delayed, b.waiting, b.held, b.oldest) == ("b c", 0, 0, 1, 1, None)
    assert (empty.name, empty.ready + empty.delayed + empty.waiting + empty.held) == ("empty", 0)
    assert [queue.paused is not None for queue in (a, b, empty)] == [False, False, True]


_FULL = """
alter table tenure.job set (autovacuum_enabled = false);
insert into tenure.job (contract, version, state, role, max_attempts, type, due_at, queue, seq)
select case when n % 2 = 0 then 'standard' else 'dispatcher' end, '1',
       case when n % 2 = 0 then 'queued' else 'STATE' end, case when n % 2 = 0 then 'ready' else 'waiting' end, 3, 't',
       now() + interval '1 day' * case when n % 4 = 0 then 1 else -1 end, 'q' || n % 6, (n % 2)
from generate_series(1, 200000) as n;
"""


@pytest.mark.pristine
async def test_a_full_table_is_counted_up_to_a_bound(
    store: Store, db: Harness, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 6 * MANY_JOBS  # so much for three queues, each twice, that the bound of a single one is reached
    monkeypatch.setattr(queues_module, "MOST_ROWS", most)
    state = next(s for s, roles in BUILT_IN["dispatcher"].states.items() if "waiting" in roles)
    db.sql(_FULL.replace("STATE", state))
    queues = {queue.name: queue for queue in await store.queues.list()}
    assert sorted(queues) == [f"q{n}" for n in range(6)]
    assert (queues["q0"].ready, queues["q0"].delayed) == (MANY_JOBS, MANY_JOBS)
    assert set(queues["q0"].at_least) == {"ready", "delayed", "waiting"}
    assert 0 < sum(queue.waiting for queue in queues.values()) <= MANY_JOBS + 1
    with psycopg.connect(engine_dsn(dsn), autocommit=True) as engine:
        asked = statement("list_queues", {"bound": MANY_JOBS, "rows": most, "queues": MANY_QUEUES})
        how = ("analyze", "costs off", "timing off", "summary off")
        plan = Planner(engine, Registry()).explain(asked, "force_generic_plan", *how)
    found = re.findall(r"Scan .*on job\b.* \(actual rows=([\d.]+) loops=(\d+)\)", plan)
    read = sum(float(rows) * int(loops) for rows, loops in found)
    # Three queues have ready jobs: each is counted up to the bound, those that are due and those that are not. All that
    # waits is counted once, and each lane is looked into for its oldest.
    assert MANY_JOBS < read < 8 * MANY_JOBS, plan
    assert "Rows Removed by Filter" not in plan


async def test_many_queues_are_counted_up_to_a_lower_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_module, "MOST_ROWS", 100)
    await store.enqueue_many([NewJob("t", queue=f"q{n % 3}") for n in range(60)])
    listed = await store.queues.list()
    assert [(queue.ready, queue.at_least) for queue in listed] == [(17, ("ready",))] * 3  # 100 for 3 queues, twice each
    monkeypatch.setattr(queues_module, "MOST_ROWS", 120)
    assert [(queue.ready, queue.at_least) for queue in await store.queues.list()] == [(20, ())] * 3
