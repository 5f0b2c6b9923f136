"""Two who reach for one job at the same moment: one wins, the other is told so, and the log tells of one hop.

Sixty rounds each in `./dev test`, a thousand in `./dev prove`, and more until each side has won a twentieth of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Failure, Job
from tenure.jobs.outcome import Moved, Noted, Outcome
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.store import Store
from tests.races.duels import FATAL, Ring, Round, beat, has_won, upkeep_of
from tests.races.sessions import TRANSIENT, now

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

SLICE, WHOLE = 60, pytest.param(1000, marks=pytest.mark.prove)
SIZES = pytest.mark.parametrize("rounds", [SLICE, WHOLE])


@pytest.fixture
def ring(dsn: str, rounds: int, record_property: Callable[[str, object], None]) -> Iterator[Ring]:
    """A database of this test's own, with two callers in it."""
    with Ring(dsn, rounds) as opened:
        yield opened
        record_property("duel", f"won {opened.wins[0]} : {opened.wins[1]}, overlapping {opened.overlapped}")


async def complete(store: Store, fight: Round) -> Moved:
    """The holder reports success."""
    return await store.succeed(fight.lease, {"n": fight.job_id})


async def cancel_hard(store: Store, fight: Round) -> Moved | Noted:
    """An operator ends the job."""
    return await store.cancel(fight.job_id, mode="hard", reason="enough", actor="ada")


def steps_to_run(contract: str) -> list[str]:
    """The triggers that bring a new job into its handler's hands."""
    return ["claim"] + ["start"] * (BUILT_IN[contract].path("start") is not None)


def results(ring: Ring) -> set[int]:
    """The jobs that have a result: their own id, as every success here reports."""
    rows = ring.db.sql("select id, (result ->> 'n')::bigint as n from tenure.job_done where result is not null")
    assert all(row["id"] == row["n"] for row in rows)
    return {row["id"] for row in rows}


@SIZES
@pytest.mark.parametrize("contract", ["standard", "dispatcher", "reliability"])
def test_complete_against_hard_cancel_ends_the_job_once(ring: Ring, contract: str) -> None:
    succeeded = set()
    for fight in ring.held(contract):
        met = ring.meet(fight, complete, cancel_hard)
        assert isinstance(met.got, Moved)
        if met.winner == 0:
            succeeded.add(fight.job_id)
            assert type(met.told) is InvalidTransition
            assert met.told.state == met.got.state
        else:
            assert type(met.told) is StaleLease
        ring.ends(fight.job_id, contract, *steps_to_run(contract), ("succeed", "cancel")[met.winner])
    ring.judge()
    assert results(ring) == succeeded


@SIZES
@pytest.mark.parametrize("contract", ["standard", "simple"])
def test_success_wins_over_a_soft_cancel_whoever_comes_first(ring: Ring, contract: str) -> None:
    async def cancel_softly(store: Store, fight: Round) -> Moved | Noted:
        return await store.cancel(fight.job_id, actor="ada")

    asked = set()
    for fight in ring.held(contract):
        done, told = ring.both(fight, complete, cancel_softly)
        assert isinstance(done, Moved)
        assert done.trigger == "succeed"
        if isinstance(told, Noted):
            assert told.cancel_requested
            asked.add(fight.job_id)
        else:
            assert type(told) is InvalidTransition
        ring.count(1 if isinstance(told, Noted) else 0)
        ring.ends(fight.job_id, contract, *steps_to_run(contract), "succeed")
    ring.judge()
    found = ring.db.sql("select id from tenure.job_done where cancel_requested_at is not null")
    assert {row["id"] for row in found} == asked
    facts = ring.db.sql("select job_id from tenure.event where trigger = 'cancel_requested'")
    assert [row["job_id"] for row in facts] == (sorted(asked) if contract == "standard" else [])


@SIZES
@pytest.mark.parametrize(
    ("contract", "failure"),
    [("standard", TRANSIENT), ("standard", FATAL), ("simple", TRANSIENT), ("gate_b2", FATAL)],
    ids=["standard-retry", "standard-fatal", "simple-retry", "gate_b2-fatal"],
)
def test_succeed_against_fail_believes_one_of_them(ring: Ring, contract: str, failure: Failure) -> None:
    async def fail(store: Store, fight: Round) -> Moved:
        return await store.fail(fight.lease, failure)

    trigger = "retry" if failure is TRANSIENT else "fatal"
    settled = ["settle"] if contract == "gate_b2" else []
    succeeded = set()
    for fight in ring.held(contract):
        met = ring.meet(fight, complete, fail)
        assert isinstance(met.got, Moved)
        if met.winner == 0:
            succeeded.add(fight.job_id)
            # Its own lease ended the job: not a stranger's late call, but one that comes too late.
            assert type(met.told) is InvalidTransition
            ring.ends(fight.job_id, contract, *steps_to_run(contract), "succeed")
        else:
            ended_by_its_holder = met.got.role in ("settling", "done")
            assert type(met.told) is (InvalidTransition if ended_by_its_holder else StaleLease)
            ways = [*steps_to_run(contract), trigger, *settled]
            ring.ends(fight.job_id, contract, *ways, letters=int(trigger == "fatal"))
    if settled:  # where the late success had the row for a moment, the record was left to upkeep
        ring.preparer.upkeep("settle", contract)
    ring.judge()
    assert results(ring) == succeeded


def runs_out(ring: Ring, fight: Round, column: str, allowed_ms: int) -> datetime:
    """Let the job's time run out in some milliseconds, by this column; the moment after which it is over."""
    left_ms = 4 + 1000 * ring.head_start()  # upkeep goes round until then, so that a later start would not hinder it
    moment = ring.db.value(
        f"update tenure.job set {column} = clock_timestamp() + (%s - %s) * interval '1 ms' "
        f"where id = %s returning {column} + %s * interval '1 ms'",
        left_ms, allowed_ms, fight.job_id, allowed_ms,
    )  # fmt: skip
    assert isinstance(moment, datetime)
    return moment


@SIZES
@pytest.mark.parametrize("contract", ["standard", "reliability"])
def test_reap_against_complete_at_the_moment_of_expiry(ring: Ring, contract: str) -> None:
    forfeits = BUILT_IN[contract].lease.after_expiry == "forfeited"
    succeeded = set()
    for fight in ring.held(contract):
        expiry = runs_out(ring, fight, "lease_expires_at", 0)
        met = ring.meet(fight, complete, upkeep_of("reap", contract))
        if met.winner == 0:
            succeeded.add(fight.job_id)
            # Law 10 and X-13: where expiry forfeits, no success is believed after it; elsewhere until it is taken.
            assert met.got.at <= expiry or not forfeits
        else:
            assert type(met.told) is StaleLease
            (reaped,) = met.got
            assert reaped.at > expiry, "a lease was taken that was not over"
        ring.ends(fight.job_id, contract, *steps_to_run(contract), ("succeed", "expire")[met.winner])
    ring.judge()
    assert results(ring) == succeeded


@SIZES
@pytest.mark.parametrize(
    ("contract", "ends_by"), [("standard", "expiry"), ("reliability", "expiry"), ("reliability", "missed beats")]
)
def test_heartbeat_against_reap_keeps_the_job_or_loses_it(ring: Ring, contract: str, ends_by: str) -> None:
    lease = BUILT_IN[contract].lease
    orphaned_ms = lease.heartbeat.default_ms * lease.heartbeat.missed if lease.heartbeat else 0
    column, allowed_ms = ("lease_expires_at", 0) if ends_by == "expiry" else ("last_heartbeat_at", orphaned_ms)
    for fight in ring.held(contract):
        moment = runs_out(ring, fight, column, allowed_ms)
        met = ring.meet(fight, beat, upkeep_of("reap", contract))
        if met.winner == 0:
            row = ring.db.row(fight.job_id)
            assert (row["lease_token"], row["claims"]) == (fight.lease.token, 1)
            assert row["lease_expires_at"] == met.got.lease_expires_at > moment
            assert row["last_heartbeat_at"] <= moment or lease.after_expiry != "forfeited"
            # It is truly kept: its holder can end it.
            assert isinstance(ring.preparer.finish("succeed", fight.lease), Moved)
        else:
            assert type(met.told) is StaleLease
            (reaped,) = met.got
            assert reaped.at > moment, "a job was taken whose holder was in time"
        ring.ends(fight.job_id, contract, *steps_to_run(contract), ("succeed", "expire")[met.winner])
    ring.judge()


@SIZES
@pytest.mark.parametrize("contract", ["standard", "gate_b2"])
def test_requeue_against_requeue_makes_one_job(ring: Ring, contract: str) -> None:
    async def by_ada(store: Store, fight: Round) -> int:
        return await store.letters.requeue(fight.paper, actor="ada")

    async def by_bob(store: Store, fight: Round) -> int:
        return await store.letters.requeue(fight.paper, actor="bob")

    made = {}
    for fight in ring.letters(contract):
        met = ring.meet(fight, by_ada, by_bob)
        made[fight.paper] = (met.got, ("ada", "bob")[met.winner])
        assert refused_as(met.told, "DLQ_REQUEUE_CONFLICT")
        ring.ends(fight.job_id, contract, *ways_to_a_letter(contract), letters=1)
    ring.judge()
    letters = ring.db.sql("select id, status, requeued_as, requeued_by from tenure.dead_letter")
    assert {row["id"]: (row["requeued_as"], row["requeued_by"]) for row in letters} == made
    assert {row["status"] for row in letters} == {"requeued"}
    jobs = ring.db.sql("select id, origin_letter, created_by, claims, seq from tenure.job")
    assert sorted((row["origin_letter"], (row["id"], row["created_by"])) for row in jobs) == sorted(made.items())
    assert {(row["claims"], row["seq"]) for row in jobs} == {(0, 0)}


def refused_as(told: object, code: str) -> bool:
    """Whether this is a refusal with this code."""
    return isinstance(told, Refused) and told.reason_code == code


def ways_to_a_letter(contract: str) -> list[str]:
    """The triggers of a job that failed for good."""
    return [*steps_to_run(contract), "fatal"] + ["settle"] * (contract == "gate_b2")


async def approve_as_bob(store: Store, fight: Round) -> DeadLetter:
    """A second person agrees."""
    return await store.letters.approve_discard(fight.paper, person="Bob")


def asked_to_discard(ring: Ring) -> Iterator[Round]:
    """A round for each of many letters of gate_b2 that Ada asked to throw away."""
    for fight in ring.letters("gate_b2"):
        now(ring.preparer.store.letters.request_discard(fight.paper, person="Ada", reason="a duplicate"))
        yield fight


@SIZES
def test_approve_against_approve_discards_by_one_of_the_two(ring: Ring) -> None:
    async def approve_as_cyd(store: Store, fight: Round) -> DeadLetter:
        return await store.letters.approve_discard(fight.paper, person="Cyd")

    approved = {}
    for fight in asked_to_discard(ring):
        met = ring.meet(fight, approve_as_bob, approve_as_cyd)
        approved[fight.paper] = ("discarded", "Ada", ("Bob", "Cyd")[met.winner])
        assert (met.got.status, met.got.discard_asked_by, met.got.discard_approved_by) == approved[fight.paper]
        assert refused_as(met.told, "DLQ_DISCARD_CONFLICT")
        ring.ends(fight.job_id, "gate_b2", *ways_to_a_letter("gate_b2"), letters=1)
    ring.judge()
    letters = ring.db.sql("select id, status, discard_asked_by, discard_approved_by from tenure.dead_letter")
    assert {
        row["id"]: (row["status"], row["discard_asked_by"], row["discard_approved_by"]) for row in letters
    } == approved


@SIZES
def test_approve_against_requeue_leaves_the_letter_one_end(ring: Ring) -> None:
    async def requeue(store: Store, fight: Round) -> int:
        return await store.letters.requeue(fight.paper, actor="cyd")

    ends = {}
    for fight in asked_to_discard(ring):
        met = ring.meet(fight, approve_as_bob, requeue)
        ends[fight.paper] = ("discarded", None, "Bob") if met.winner == 0 else ("requeued", met.got, None)
        assert refused_as(met.told, ("DLQ_REQUEUE_CONFLICT", "DLQ_DISCARD_CONFLICT")[met.winner])
        ring.ends(fight.job_id, "gate_b2", *ways_to_a_letter("gate_b2"), letters=1)
    ring.judge()
    letters = ring.db.sql("select id, status, requeued_as, discard_approved_by from tenure.dead_letter")
    assert {row["id"]: (row["status"], row["requeued_as"], row["discard_approved_by"]) for row in letters} == ends
    jobs = ring.db.sql("select id from tenure.job order by id")
    assert [row["id"] for row in jobs] == sorted(made for _, made, _ in ends.values() if made is not None)


@SIZES
def test_promote_against_cancel_lets_one_of_them_end_the_waiting(ring: Ring) -> None:
    attempts = {}
    for fight in ring.held("dispatcher"):
        ring.preparer.finish("fail", fight.lease)
        ring.preparer.due(fight.job_id)
        told, promoted = ring.both(fight, cancel_hard, upkeep_of("promote", "dispatcher"))
        # A job that was promoted first is cancelled where it then is, so the cancel is never refused.
        assert isinstance(told, Moved)
        assert told.from_state == ("Queued" if promoted else "Failed")
        ring.count(1 if promoted else 0)
        attempts[fight.job_id] = 2 if promoted else 1
        ring.ends(fight.job_id, "dispatcher", "claim", "retry", *["promote"] * len(promoted), "cancel")
    ring.judge()
    tasks = ring.db.sql("select task_id, status, attempt from tenure_dispatcher.tasks")
    assert {row["task_id"]: row["attempt"] for row in tasks} == attempts
    assert {row["status"] for row in tasks} == {"Canceled"}


@pytest.mark.parametrize("rounds", [SLICE, pytest.param(1000, marks=[pytest.mark.prove, pytest.mark.req("S2-40")])])
@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("verb", ["claim", "claim_by_id"])
def test_claim_against_cancel_never_runs_a_cancelled_job(ring: Ring, verb: str, mode: str) -> None:
    async def cancel(store: Store, fight: Round) -> Moved | Noted:
        return await store.cancel(fight.job_id, mode=mode, reason="enough", actor="ada")

    async def claim(store: Store, fight: Round) -> list[Job]:
        if verb == "claim":
            return await store.claim("reliability", [fight.queue], worker="w1")
        (answer,) = await store.claim_by_id([fight.job_id], contract="reliability", worker="w1")
        if isinstance(answer, Refused):
            raise answer
        return [answer]

    for fight in ring.made("reliability"):
        claimed, told = ring.both(fight, claim, cancel)
        # A job that was claimed first is cancelled in its worker's hands before it starts, so no cancel is refused.
        assert isinstance(told, Moved)
        assert told.from_state in ("assigned", "queued")
        taken = told.from_state == "assigned"
        if has_won(claimed):
            assert taken
            (job,) = claimed
            assert job.id == fight.job_id
            assert type(ring.preparer.finish("start", job.held)) is StaleLease
        elif taken:  # and lost again before its claimer was answered
            assert type(claimed) is StaleLease
        else:
            assert claimed == [] if verb == "claim" else type(claimed) is InvalidTransition
        ring.count(0 if taken else 1)
        ring.ends(fight.job_id, "reliability", *["claim"] * taken, "cancel")
    ring.judge()
    events = ring.db.sql("select job_id, type from tenure_reliability.job_events")
    assert Counter(event["type"] for event in events) == Counter(
        {"job_claimed": ring.wins[0], "job_cancelled": ring.rounds}
    )
    assert len({event["job_id"] for event in events if event["type"] == "job_cancelled"}) == ring.rounds


#: A session that says so writes no dead letter, as if it had died before it could.
_DIES_EARLY = """
create function public.dies_early() returns trigger language plpgsql as $$
begin
    if current_setting('test.dies_early', true) = 'yes' then raise 'no dead letter from here'; end if;
    return new;
end $$;
create trigger dies_early before insert on tenure.dead_letter for each row execute function public.dies_early()
"""


@SIZES
def test_two_settlers_write_one_record(ring: Ring) -> None:
    ring.db.sql(_DIES_EARLY)
    ring.preparer.sql("set test.dies_early = 'yes'")

    async def settle(store: Store, _: Round) -> list[Outcome]:
        return await store.settle("gate_b2")

    for fight in ring.held("gate_b2"):
        left = ring.preparer.finish("fail", fight.lease, FATAL)
        assert isinstance(left, Moved)
        assert left.state == "dlq_pending"
        met = ring.meet(fight, settle, settle)
        (moved,) = met.got
        assert (moved.job_id, moved.from_state, moved.state) == (fight.job_id, "dlq_pending", "failed")
        assert met.told == []
        ring.ends(fight.job_id, "gate_b2", *ways_to_a_letter("gate_b2"), letters=1)
    ring.judge()
