"""Document 004, dead letters: the record always comes before failed, whatever crashes in between, and there is one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tenure.errors import InvalidTransition, Refused
from tenure.jobs.job import Held
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.contracts.gate_b2 import (
    DEAD,
    PERMANENT,
    fail,
    gaps_filled,
    items,
    left_pending,
    make,
    records,
    shown,
    take,
    transitions,
)
from tests.harness import Harness, at_once
from tests.holder_calls import calls
from tests.races.sessions import Session

pytestmark = pytest.mark.core

#: dlq_items waits at its INSERT while the test holds the lock.
_SLOW_PAPER = """
create function public.slow_paper() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(4); return new; end $$;
create trigger slow_paper before insert on tenure.dead_letter for each row execute function public.slow_paper()
"""
#: A session of this database waits for that lock; those of other tests have locks of their own.
_WAITS_FOR_PAPER = (
    "select 1 from pg_locks where locktype = 'advisory' and objid = 4 and not granted "
    "and database = (select oid from pg_database where datname = current_database())"
)

_FAILING_PROCESS = """
import asyncio, sys
from uuid import UUID
from tenure.jobs.job import Failure, Held
from tenure.postgres.store import Store

async def main(dsn, job_id, claims, token, version):
    async with Store.open(dsn, connections=1) as store:
        held = Held(int(job_id), int(claims), UUID(token), "gate_b2", version)
        await store.fail(held, Failure("it broke", retryable=False))

asyncio.run(main(*sys.argv[1:]))
"""

#: What the job's row said whenever something was written into dlq_items.
_WITNESS = """
create table public.witness (id bigint, state text, letters int, at timestamptz default clock_timestamp());
create function public.witness() returns trigger language plpgsql as $$
begin
    insert into public.witness (id, state, letters)
    select new.job_id, (select state from tenure.job where id = new.job_id),
           (select count(*) from tenure.dead_letter where job_id = new.job_id);
    return new;
end $$;
create trigger witness before insert on tenure.dead_letter for each row execute function public.witness()
"""


def failing_process(dsn: str, held: Held) -> subprocess.Popen[bytes]:
    """A worker process that reports a final failure of this job."""
    proof = [str(held.id), str(held.claims), str(held.token), held.version]
    return subprocess.Popen([sys.executable, "-c", _FAILING_PROCESS, dsn, *proof], stderr=subprocess.DEVNULL)


async def until(db: Harness, query: str, *values: Any) -> None:
    """Wait for a query to give a row."""
    give_up = time.monotonic() + 60
    while not db.sql(query, *values):
        assert time.monotonic() < give_up, f"never true: {query}"
        await asyncio.sleep(0.005)


@pytest.mark.req("S4-14")
async def test_a_job_that_a_killed_process_left_in_dlq_pending_is_driven_on_to_failed(
    store: Store, db: Harness, dsn: str
) -> None:
    job_id = await make(store)
    held = await take(store, db, job_id)
    db.sql(_SLOW_PAPER)
    db.sql("select pg_advisory_lock(4)")
    process = failing_process(dsn, held)
    try:
        await until(db, _WAITS_FOR_PAPER)
        # The first transaction is done: everybody sees dlq_pending, its lease is gone, and no item exists yet.
        assert (shown(db, job_id)["status"], items(db, job_id)) == ("dlq_pending", [])
        assert (db.row(job_id)["lease_token"], db.row(job_id)["lease_owner"]) == (None, None)
        assert await store.settle("gate_b2") == []  # its process is at it
    finally:
        process.kill()
        process.wait()
    db.sql("select pg_advisory_unlock(4)")
    await until(db, "select 1 from tenure.job where id = %s for update skip locked", job_id)
    assert (shown(db, job_id)["status"], items(db, job_id)) == ("dlq_pending", [])
    (outcome,) = await store.settle("gate_b2")
    assert isinstance(outcome, Moved)
    assert (outcome.from_state, outcome.state) == ("dlq_pending", "failed")
    assert (shown(db, job_id)["status"], len(items(db, job_id))) == ("failed", 1)
    assert transitions(db, job_id) == ["queued->running", *DEAD]
    assert await store.settle("gate_b2") == []
    db.log_is_sound(job_id)


@pytest.mark.req("S4-27")
async def test_the_item_is_written_while_the_job_is_dlq_pending_and_before_it_is_recorded(
    store: Store, db: Harness
) -> None:
    db.spy()
    db.sql(_WITNESS)
    fatal, exhausted, left = [await make(store, priority=n) for n in range(3)]
    await fail(store, db, fatal, 1, PERMANENT)
    await fail(store, db, exhausted, 4)
    await left_pending(store, db, left)
    await store.settle("gate_b2")
    for job_id in (fatal, exhausted, left):
        (seen,) = db.sql("select * from public.witness where id = %s", job_id)
        assert (seen["state"], seen["letters"]) == ("dlq_pending", 0)
        (item,) = items(db, job_id)
        times = {record["status_transition"]: record["ts"] for record in records(db, job_id)}
        assert times[DEAD[0]] <= item["created_at"] <= seen["at"] <= times[DEAD[1]] < times[DEAD[2]]
        gaps_filled(db, job_id)


@pytest.mark.req("S4-28")
async def test_a_job_stays_dlq_pending_while_its_item_cannot_be_written(store: Store, db: Harness) -> None:
    job_id = await make(store)
    db.sql(
        "create sequence public.tries; create function public.thrice() returns trigger language plpgsql as "
        "$$ begin if nextval('public.tries') <= 3 then raise 'no paper'; end if; return new; end $$; "
        "create trigger thrice before insert on tenure.dead_letter for each row execute function public.thrice()"
    )
    (answer,) = await fail(store, db, job_id, 1, PERMANENT)
    assert (answer.state, answer.role, answer.will_retry) == ("dlq_pending", "settling", False)
    for _ in range(2):
        before = db.fingerprint(job_id)
        (refusal,) = await store.settle("gate_b2")
        assert isinstance(refusal, Refused)
        assert (refusal.job_id, refusal.reason_code) == (job_id, "NOT_SETTLED")
        assert "no paper" in str(refusal)
        assert db.fingerprint(job_id) == before
        assert (shown(db, job_id)["status"], items(db, job_id)) == ("dlq_pending", [])
    await store.settle("gate_b2")
    assert (shown(db, job_id)["status"], len(items(db, job_id))) == ("failed", 1)
    assert transitions(db, job_id) == ["queued->running", *DEAD]
    assert db.value("select last_value from public.tries") == 4


@pytest.mark.req("S4-29")
async def test_two_settlers_at_once_write_one_item_for_each_job(store: Store, db: Harness, dsn: str) -> None:
    ids = [await make(store) for _ in range(12)]
    await left_pending(store, db, *ids)
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(dsn, f"upkeep-{n}")) for n in range(4)]
        outcomes = [each for found in at_once(4, lambda n: sessions[n].upkeep("settle", "gate_b2")) for each in found]
    assert sorted(each.job_id or 0 for each in outcomes if isinstance(each, Moved)) == ids
    for job_id in ids:
        assert (shown(db, job_id)["status"], len(items(db, job_id))) == ("failed", 1)
        assert transitions(db, job_id) == ["queued->running", *DEAD]
    # And the table itself takes no second one.
    with pytest.raises(psycopg.errors.UniqueViolation):
        write_item(db, ids[0])


def write_item(db: Harness, job_id: int) -> None:
    """Write an item for a job, as another writer would."""
    db.sql(
        "insert into tenure.dead_letter (job_id, contract, tenant_id, type, reason_code, last_error, counter, claims, "
        "correlation_id, trace_id, failed_at) "
        "values (%s, 'gate_b2', 'default', 'settle', 'x', '{}', 0, 1, 'c', 't', now())",
        job_id,
    )


async def test_an_item_that_was_written_before_is_not_written_again(store: Store, db: Harness) -> None:
    job_id = await make(store)
    await left_pending(store, db, job_id)
    write_item(db, job_id)
    before = items(db, job_id)
    await store.settle("gate_b2")
    assert shown(db, job_id)["status"] == "failed"
    assert items(db, job_id) == before


@pytest.mark.req("S4-30")
async def test_an_item_says_whose_it_is_what_went_wrong_and_that_it_is_open(store: Store, db: Harness) -> None:
    job_id = await make(store, tenant_id="acme", payload={"n": 1}, trace_id="t-1", correlation_id="order-7")
    await fail(store, db, job_id, 3)
    await fail(store, db, job_id, 1, PERMANENT)
    (item,) = items(db, job_id)
    assert set(item) == {
        "dlq_id", "tenant_id", "job_id", "error_class", "error_code", "payload_json", "context_json", "status",
        "first_failed_at", "created_at", "updated_at",
    }  # fmt: skip
    assert all(value is not None for value in item.values())
    assert (item["tenant_id"], item["job_id"], item["status"]) == ("acme", job_id, "open")
    assert (item["error_class"], item["error_code"]) == ("BusinessError", "NO_ACCOUNT")
    assert item["payload_json"] == {"n": 1}
    context = item["context_json"]
    assert (context["trace_id"], context["correlation_id"], context["counter"]) == ("t-1", "order-7", 3)
    assert context["error"]["message"] == "no such account"
    with pytest.raises(psycopg.errors.CheckViolation):
        db.sql("update tenure.dead_letter set status = 'lost' where job_id = %s", job_id)


async def test_nobody_can_claim_finish_or_reap_a_job_between_the_two_transactions(store: Store, db: Harness) -> None:
    job_id = await make(store)
    (held,) = await left_pending(store, db, job_id)
    before = db.fingerprint(job_id)
    assert await store.claim("gate_b2", worker="w2") == []
    assert await store.reap("gate_b2") == []
    (claimed,) = await store.claim_by_id([job_id], worker="w2", contract="gate_b2")
    assert isinstance(claimed, InvalidTransition)
    assert (claimed.reason_code, claimed.state) == ("WF_STATE_TRANSITION_INVALID", "dlq_pending")
    late = [
        *await store.report("succeed", calls([held])),
        *await store.report("fail", calls([held], failures=[PERMANENT])),
    ]
    assert [getattr(each, "reason_code", None) for each in late] == ["WF_STATE_TRANSITION_INVALID"] * 2
    assert db.fingerprint(job_id) == before
