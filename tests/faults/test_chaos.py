"""Ten minutes of chaos, or a short slice of it: no job moves backwards inside an attempt, and nothing else breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import HELD
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.faults.chaos import chaos
from tests.faults.clock import FAKETIME
from tests.faults.fleet import over, seen_by_witnesses, verified, witness
from tests.harness import Harness

pytestmark = [pytest.mark.serial, pytest.mark.timeout(1_500)]

#: Where an attempt has come to. An attempt that ended without ending its job leaves it in a state of rank 3, once each.
_LEASED, _ACTIVE, _ATTEMPT_OVER, _DONE = range(1, 5)

#: Transitions as the database's own log tells them, and as the test's trigger saw them (only first and last states
#: of a path that is one change of the row).
_SOURCES = {
    "log": "select job_id, seq as n, contract, claims, from_state, to_state from tenure.event where hop",
    "spy": "select spy.id, n, contract, spy.claims, old, new from public.spy join every using (id)",
}

#: Hops that do not lead on inside their attempt (a claim begins the next one).
_BACKWARD = """
with every as (select id, contract from tenure.job union all select id, contract from tenure.job_done),
hop (job_id, n, contract, claims, from_state, to_state) as ({source}),
ranked as (
    select hop.*, rank, lag(rank) over attempt as before,
           array_agg(to_state) over (attempt rows between unbounded preceding and 1 preceding) as passed
    from hop join unnest(%s::text[], %s::text[], %s::int[]) as ranks (contract, state, rank)
        on ranks.contract = hop.contract and state = to_state
    window attempt as (partition by job_id, claims order by n)
)
select * from ranked where rank < before or to_state = any (passed) or rank = before and rank <> {over}
"""
#: Document 002: only the end of an attempt leads back to queued, and no request does.
_WAYS_BACK = """
select job_id, seq, trigger, actor, from_state from tenure.event
where hop and contract = 'reliability' and to_state = 'queued'
  and not (trigger = 'expire' or trigger = 'retry' and from_state = 'running')
"""
_UNLIKE = """
with every as (select id, contract from tenure.job union all select id, contract from tenure.job_done)
select * from (select id, n, old, new, spy.claims, row_number() over (partition by id order by n) as k
               from public.spy join every using (id) where contract = 'reliability') as spy
full join (select *, row_number() over (partition by job_id order by seq) as k
           from tenure.event where hop and contract = 'reliability') as event
    on event.job_id = spy.id and event.k = spy.k
where (old, new, spy.claims) is distinct from (from_state, to_state, event.claims)
"""
_LOGGED_BACKWARDS = """
insert into tenure.event (
    job_id, seq, ts, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
select job_id, seq + 1, ts + interval '1 s', claims, counter, max_attempts, contract, 'expire', %s, %s, actor
from tenure.event where job_id = %s order by seq desc limit 1
"""
#: What shows that faults hit something.
_COUNTED = {
    "handlers cut off": "public.run where ended_at is null",
    "handlers with a wrong clock": "public.run where abs(extract(epoch from worker_clock - began_at)) > 60",
    "leases lost": "tenure.event where trigger in ('expire', 'expire_at_cap', 'reclaim')",
    "calls refused as stale": "tenure.refusal where kind = 'stale'",
}


def ranks() -> tuple[list[str], list[str], list[int]]:
    """The rank of each state of each contract, as three columns."""
    found = []
    for contract in BUILT_IN.values():
        for state, roles in contract.states.items():
            rank = _DONE if set(roles) == {"done"} else _ATTEMPT_OVER
            if set(roles) <= HELD:
                rank = _ACTIVE if "active" in roles else _LEASED
            found.append((contract.name, state, rank))
    names, states, numbers = zip(*found, strict=True)
    return list(names), list(states), list(numbers)


def nothing_moved_backwards(db: Harness) -> None:
    """Assert, from the log and from what the spy saw, that every attempt only ever went on."""
    for name, source in _SOURCES.items():
        query = _BACKWARD.format(source=source, over=_ATTEMPT_OVER)
        assert db.sql(query, *ranks()) == [], f"a job moved backwards, says the {name}"
    assert db.sql(_WAYS_BACK) == [], "a job went back to queued inside an attempt"
    assert db.sql(_UNLIKE) == [], "log and spy tell of different transitions"


@pytest.mark.req("S2-59")
@pytest.mark.parametrize(
    ("seconds", "least", "jobs", "waits"),
    [(0, 1, 60, False), pytest.param(600, 20, 500, True, marks=pytest.mark.prove)],
)
async def test_no_job_moves_backwards_under_chaos(
    app: App, store: Store, db: Harness, tmp_path: Path, seconds: int, least: int, jobs: int, waits: bool
) -> None:
    witness(db)
    db.spy()
    with chaos(app, store, db, tmp_path, seed=259, workers=4 if waits else 2, waits=waits) as made:
        await made.run(seconds, least, jobs)
        took = await over(db, 300, lambda: None if waits else made.fleet.bury(db))
        made.fleet.stop_all()
    rows = db.sql("select id, contract, state from tenure.job_done order by id")
    assert [row["id"] for row in rows] == sorted(made.ids), "a job is lost, or there is one that nobody made"
    nothing_moved_backwards(db)
    seen_by_witnesses(db)
    await verified(db, len(rows))
    succeeded = sum(row["state"] in BUILT_IN[row["contract"]].successes() for row in rows)
    counts = {name: db.value(f"select count(*) from {what}") for name, what in _COUNTED.items()}
    print(
        f"{len(rows)} jobs, {succeeded} succeeded; {dict(made.did)}; {made.network.resets} connections reset; "
        f"{counts}; all over {took:.1f} s after the last fault"
    )
    faults = {"kill", "freeze", "reset_connections", "end_backends", "ask_for_the_way_back"}
    assert {name for name in faults if made.did[name] < least} == set(), "a kind of fault hit nothing"
    assert made.network.resets >= least
    assert counts["calls refused as stale"] >= least
    assert counts["leases lost"] >= 2 * least
    assert counts["handlers with a wrong clock"] > 0 or FAKETIME is None
    assert succeeded >= 0.7 * len(rows)


async def test_a_hop_backwards_is_found_in_the_log_and_by_the_spy(store: Store, db: Harness) -> None:
    """What the test above finds nothing with finds what a broken engine would do."""
    db.spy()
    for contract, backwards in (("reliability", "assigned"), ("phase27", "running"), ("dispatcher", "Running")):
        await store.enqueue(NewJob("t", contract=contract))
        (job,) = await store.claim(contract, worker="w")
        await store.start(job.held)
        nothing_moved_backwards(db)
        before = db.row(job.id)["state"]
        with db.connection.transaction(force_rollback=True):
            db.sql("update tenure.job set state = %s where id = %s", backwards, job.id)
            with pytest.raises(AssertionError, match="moved backwards, says the spy"):
                nothing_moved_backwards(db)
        with db.connection.transaction(force_rollback=True):
            db.sql(_LOGGED_BACKWARDS, before, backwards, job.id)
            with pytest.raises(AssertionError, match="moved backwards, says the log"):
                nothing_moved_backwards(db)


async def test_a_job_that_its_holder_hands_back_was_not_taken_from_it(store: Store, db: Harness) -> None:
    witness(db)
    await store.enqueue(NewJob("t", contract="simple"))
    (job,) = await store.claim("simple", worker="w")
    await store.hand_back(job.held)  # without a path of its own it goes the way of an expired lease
    seen_by_witnesses(db)
