"""Sixty-four claimers, released together, on one job and on a thousand: each job has one winner."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tenure.jobs.job import NewJob
from tests.races.claimers import Claimers, claim_all, claim_keyed, claim_once, claim_one, work_or_die
from tests.races.sessions import Arena

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

req = pytest.mark.req

#: The engine's word for a claim as the view of `reliability` shows it.
_CLAIMED = "select count(*) from tenure_reliability.job_events where job_id = %s and type = 'job_claimed'"


@pytest.fixture(scope="module")
def claimers(file_dsn: str) -> Iterator[Claimers]:
    """The warm set of this file."""
    with Claimers(file_dsn) as warm:
        yield warm


def many(arena: Arena, contract: str, count: int) -> str:
    """A queue of its own with this many jobs."""
    queue = f"queue-{uuid4().hex[:8]}"
    arena.second.enqueue(*[NewJob("t", contract=contract, queue=queue)] * count)
    return queue


def one_winner(arena: Arena, claimers: Claimers, contract: str) -> int:
    """Let 64 claim from a queue of one job; its id."""
    job_id, queue = arena.made(contract)
    won = claimers.run(64, claim_once, contract, queue)
    assert sorted(won) == [[]] * 63 + [[job_id]]
    assert [event["trigger"] for event in arena.db.log(job_id)] == ["claim"]
    row = arena.db.row(job_id)
    assert (row["claims"], row["role"]) == (1, "leased" if contract == "reliability" else "active")
    return job_id


def each_once(arena: Arena, claimers: Claimers, contract: str, count: int) -> str:
    """Let 64 empty a queue, one job a claim; its name."""
    queue = many(arena, contract, count)
    won = Counter(job_id for ids in claimers.run(64, claim_all, contract, queue) for job_id in ids)
    assert set(won.values()) == {1}
    assert won.total() == count
    seen = arena.db.one(
        "select count(*) as jobs, sum(claims) as claims, sum(seq) as events, count(distinct lease_token) as leases "
        "from tenure.job where queue = %s",
        queue,
    )
    assert {**seen} == {"jobs": count, "claims": count, "events": count, "leases": count}
    logged = arena.db.value("select count(*) from tenure.event join tenure.job on id = job_id where queue = %s", queue)
    assert logged == count
    return queue


@pytest.mark.parametrize("contract", ["standard", "reliability", "dispatcher", "gate_b2"])
def test_one_job_has_one_winner_among_64_claimers(arena: Arena, claimers: Claimers, contract: str) -> None:
    one_winner(arena, claimers, contract)


@req("S3-33")
def test_simple_task_is_dequeued_by_one_of_64(arena: Arena, claimers: Claimers) -> None:
    job_id = one_winner(arena, claimers, "simple")
    task = arena.db.one("select status, attempts from tenure_simple.tasks where id = %s", job_id)
    assert task == {"status": "RUNNING", "attempts": 1}


@req("S0-19")
def test_expired_lock_is_reclaimed_by_one_of_64(arena: Arena, claimers: Claimers) -> None:
    held, queue = arena.held("phase27")
    arena.db.expire(held.id)
    won = claimers.run(64, claim_once, "phase27", queue)
    assert sorted(won) == [[]] * 63 + [[held.id]]
    assert arena.db.value("select attempt from tenure_phase27.tasks where task_id = %s", held.id) == 2
    events = arena.db.sql("select kind from tenure_phase27.task_events where task_id = %s order by id", held.id)
    assert [event["kind"] for event in events] == ["task.running", "task.running"]
    arena.db.log_is_sound(held.id)


@pytest.mark.parametrize("contract", [pytest.param("phase27", marks=req("S0-18")), "standard", "reliability"])
def test_live_lease_is_taken_by_none_of_32(arena: Arena, claimers: Claimers, contract: str) -> None:
    held, queue = arena.held(contract)
    before = arena.db.fingerprint(held.id)
    assert claimers.run(32, claim_once, contract, queue) == [[]] * 32
    assert set(claimers.run(32, claim_one, contract, held.id)) == {"InvalidTransition"}
    assert arena.db.fingerprint(held.id) == before


@pytest.mark.parametrize(
    ("contract", "count"),
    [("standard", 200), pytest.param("standard", 1000, marks=pytest.mark.prove)],
)
def test_each_job_is_claimed_once_by_64_looping_claimers(
    arena: Arena, claimers: Claimers, contract: str, count: int
) -> None:
    each_once(arena, claimers, contract, count)


@req("S0-30")
def test_thousand_phase27_tasks_are_claimed_once_each_by_64_loops(arena: Arena, claimers: Claimers) -> None:
    queue = each_once(arena, claimers, "phase27", 1000)
    assert arena.db.value("select sum(attempt) from tenure_phase27.tasks where queue = %s", queue) == 1000


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("contract", ["standard", pytest.param("reliability", marks=req("S2-54"))])
def test_eight_repeats_of_one_claim_win_one_batch(arena: Arena, claimers: Claimers, contract: str, limit: int) -> None:
    queue, key = many(arena, contract, 100), uuid4()
    answers = claimers.run(8, claim_keyed, contract, queue, limit, key)
    assert all(answer == answers[0] for answer in answers), answers
    ids = [held.id for held in answers[0]]
    assert len(ids) == limit
    taken = arena.db.sql("select id from tenure.job where queue = %s and claims > 0 order by id", queue)
    assert [row["id"] for row in taken] == sorted(ids)
    assert all(len(arena.db.log(job_id)) == 1 for job_id in ids)
    if contract == "reliability":
        arena.db.expire(*ids)
        assert claimers.run(8, claim_keyed, contract, queue, limit, key) == ["StaleLease"] * 8
    arena.db.log_is_sound(*ids)


@pytest.mark.parametrize("contract", ["standard", "reliability", pytest.param("dispatcher", marks=req("S1-31"))])
def test_named_job_is_won_by_one_of_64_and_the_others_are_told_why(
    arena: Arena, claimers: Claimers, contract: str
) -> None:
    job_id, _ = arena.made(contract)
    told = Counter(claimers.run(64, claim_one, contract, job_id))
    owner = arena.db.row(job_id)["lease_owner"]
    assert told == {f"won by {owner}": 1, "InvalidTransition": 63}
    assert len(arena.db.log(job_id)) == 1
    arena.db.log_is_sound(job_id)


#: Every lease of the test lasts 300 ms, and each taking and giving up of one is written down.
_LEASES = """
create table public.lease_history (
    n bigint generated always as identity, id bigint, token uuid, ends timestamptz, at timestamptz);
create function public.short_leases() returns trigger language plpgsql as $$
begin
    if new.lease_token is distinct from old.lease_token then
        if new.lease_token is not null then new.lease_expires_at := clock_timestamp() + interval '300 ms'; end if;
        insert into public.lease_history (id, token, ends, at)
        values (new.id, new.lease_token, new.lease_expires_at, clock_timestamp());
    end if;
    return new;
end $$;
create trigger short_leases before update on tenure.job for each row execute function public.short_leases();
"""

#: A lease that was closed or taken although it was not over. (A holder that succeeds takes its row away: no update.)
_OVERLAPS = """
select * from (
    select id, at, token, lag(token) over w as held, lag(ends) over w as held_until
    from public.lease_history window w as (partition by id order by n)
) as taking
where held is not null and held_until >= at
"""


@req("S2-55")
def test_64_claimers_of_whom_a_fifth_is_killed_never_hold_a_job_twice(arena: Arena, claimers: Claimers) -> None:
    job_id = one_winner(arena, claimers, "reliability")
    assert arena.db.value(_CLAIMED, job_id) == 1
    each_once(arena, claimers, "reliability", 1000)

    queue = many(arena, "reliability", 300)
    arena.db.sql(_LEASES)
    chance = random.Random(64)
    mortal = {f"claimer-{n}" for n in chance.sample(range(64), 13)}
    try:
        with Claimers(arena.dsn) as workers:
            workers.run(64, claim_once, "reliability", "nothing-here")  # connected, and the registry read
            held = workers.run(64, work_or_die, "reliability", queue, mortal)
    finally:
        arena.db.sql("drop function public.short_leases() cascade")

    assert held.count(None) == 13, "a fifth of the claimers was to be killed while holding a job"
    assert arena.db.sql(_OVERLAPS) == []
    ended = arena.db.sql("select id, state from tenure.job_done where queue = %s", queue)
    assert len(ended) == 300
    assert {row["state"] for row in ended} <= {"succeeded", "dead_lettered"}
    expired = "select count(*) from tenure.event where trigger like 'expire%%' and job_id = any(%s)"
    assert arena.db.value(expired, [row["id"] for row in ended]) >= 13
    arena.db.log_is_sound(*(row["id"] for row in ended))
