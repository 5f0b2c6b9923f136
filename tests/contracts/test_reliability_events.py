"""Document 002, the log: in the order of the transitions, never changed, indexed, and complete under load."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import uuid4

import psycopg
import pytest

from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.contracts.reliability import (
    INVALID,
    PERMANENT,
    RELIABILITY,
    TRANSIENT,
    assigned,
    events,
    make,
    running,
    stores,
)
from tests.harness import Harness
from tests.holder_calls import calls
from tests.races.sessions import Arena, Session


@pytest.mark.req("S2-19")
@pytest.mark.parametrize("waits", [True, False], ids=["waiting for the row", "after the other's commit"])
def test_order_is_right_when_the_earlier_transaction_moves_the_job_later(db: Harness, dsn: str, waits: bool) -> None:
    key = uuid4()
    with Session(dsn, "early") as early, Session(dsn, "late") as late:
        arena = Arena(dsn, db, first=late, second=early)
        job_id, _ = arena.made("reliability")
        early.begin()
        began = early.sql("select now() as at, txid_current() as txid")[0]
        late.begin()
        assert late.sql("select txid_current() as txid")[0]["txid"] > began["txid"]
        assert isinstance(late.claim_by_id("reliability", job_id, key), Job)
        held = Held(job_id, 1, key, "reliability", RELIABILITY.version)
        if waits:
            start = arena.behind(lambda: early.finish("start", held))
            late.end("commit")
            assert isinstance(start.result(), Moved)
        else:
            late.end("commit")
            assert isinstance(early.finish("start", held), Moved)
        early.end("commit")
    told = events(db, job_id)
    assert [event["type"] for event in told] == ["job_claimed", "job_started"]
    assert began["at"] < told[0]["ts"] < told[1]["ts"]
    by_seq = [event["ts"] for event in db.log(job_id)]
    assert by_seq == [event["ts"] for event in told]
    db.log_is_sound(job_id)


@pytest.mark.req("S2-22")
async def test_the_log_takes_no_update_and_no_delete_but_may_forget_a_payload(store: Store, db: Harness) -> None:
    job_id = await make(store)
    await store.fail((await running(store)).held, TRANSIENT)
    before = db.log(job_id)
    for table in ("tenure.event", "tenure.event_0"):
        for change in ("ts = now()", "to_state = 'succeeded'", "actor = 'me'", "reason = 'x'", "seq = seq + 10",
                       "facts = '{}'", "facts = null, actor = 'me'"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the log only grows"):
                db.sql(f"update {table} set {change} where job_id = %s", job_id)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the log only grows"):
            db.sql(f"delete from {table} where job_id = %s", job_id)
    for change in (
        "update tenure_reliability.job_events set actor = 'me'",
        "delete from tenure_reliability.job_events",
    ):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            db.sql(change)
    assert db.log(job_id) == before
    db.sql("update tenure.event set facts = null where job_id = %s", job_id)
    after = db.log(job_id)
    assert [event["facts"] for event in after] == [None] * 3
    assert [{**event, "facts": None} for event in before] == after


NINE = {"id", "job_id", "type", "ts", "actor", "correlation_id", "cause", "payload", "version"}


async def every_type(store: Store, db: Harness) -> list[int]:
    """Jobs whose events have all nine types of the document, and job_requeued; their ids."""
    succeeded = await make(store)
    job = await running(store)
    await store.heartbeat(job.held)
    db.wear(job.id)
    assert (await store.heartbeat(job.held)).renewed
    await store.succeed(job.held)
    retried = await make(store)
    await store.fail((await running(store)).held, TRANSIENT)
    db.due(retried)
    await store.fail((await running(store)).held, PERMANENT)
    cancelled = await make(store)
    await store.cancel((await assigned(store)).id, mode="hard", actor="ada")
    dead = await make(store)
    await store.fail((await running(store)).held, INVALID)
    undone = await make(store)
    job = await running(store)
    await store.effect(job.held, "charge", compensable=True)
    assert (await store.fail(job.held, PERMANENT)).compensate == ("charge",)
    await store.compensated(job.held)
    undone_by_the_next = await make(store)
    job = await running(store)
    await store.effect(job.held, "charge", compensable=True)
    await store.fail(job.held, PERMANENT)
    db.expire(job.id)
    job = await running(store, "w2")
    await store.compensated(job.held)
    return [succeeded, retried, cancelled, dead, undone, undone_by_the_next]


@pytest.mark.req("S2-46")
async def test_every_event_of_every_type_has_nine_fields_and_a_cause_among_the_jobs_earlier_events(
    store: Store, db: Harness
) -> None:
    ids = await every_type(store, db)
    assert db.value("select count(*) from tenure.event where trigger = 'compensating'") == 2  # log rows, and no events
    told = {job_id: events(db, job_id) for job_id in ids}
    rows = [event for each in told.values() for event in each]
    assert {event["type"] for event in rows} == {event.name for event in RELIABILITY.events}
    assert len({event["type"] for event in rows}) == 10
    assert len({event["id"] for event in rows}) == len(rows)
    for each in told.values():
        seen: dict[str, datetime] = {}
        for event in each:
            assert set(event) >= NINE
            assert [name for name in NINE - {"cause"} if event[name] is None] == [], event
            assert (event["cause"] is None) == (not seen), f"only a job's first event has no cause: {event}"
            assert event["cause"] is None or event["cause"] in seen, (
                f"its cause is no earlier event of the job: {event}"
            )
            assert event["cause"] is None or seen[event["cause"]] < event["ts"]
            seen[event["id"]] = event["ts"]
    # What ended the job is caused by what was undone, and that by what came before it: no log row that is no event.
    *_, started, compensated, failed = told[ids[4]]
    assert (compensated["type"], compensated["cause"]) == ("job_compensated", started["id"])
    assert (failed["type"], failed["cause"]) == ("job_failed", compensated["id"])


async def test_the_cause_of_an_event_is_the_event_before_it_whatever_log_rows_lie_between(
    store: Store, db: Harness
) -> None:
    """A changed queue and the beginning of a compensation are log rows, and no events."""
    job_id = await make(store)
    for queue in ("a", "b", "default"):
        await store.change_queue([job_id], queue, actor="ada")
    await store.fail((await running(store)).held, TRANSIENT)
    db.due(job_id)
    for queue in ("a", "default"):
        await store.change_queue([job_id], queue, actor="ada")
    (job,) = await store.claim_by_id([job_id], worker="w1", contract="reliability")
    assert isinstance(job, Job)
    await store.start(job.held)
    await store.effect(job.held, "charge", compensable=True)
    await store.fail(job.held, PERMANENT)
    db.sql("update tenure.job set lease_expires_at = clock_timestamp() + interval '5 seconds' where id = %s", job_id)
    assert (await store.heartbeat(job.held)).renewed
    await store.compensated(job.held)
    told = events(db, job_id)
    assert [event["type"] for event in told] == [
        "job_claimed", "job_started", "job_requeued", "job_claimed", "job_started", "job_heartbeat",
        "job_lease_renewed", "job_compensated", "job_failed",
    ]  # fmt: skip
    assert [event["cause"] for event in told] == [None, *(event["id"] for event in told[:-1])]
    assert len(db.log(job_id)) == len(told) + 6
    db.log_is_sound(job_id)


@pytest.mark.req("S2-47")
def test_the_log_is_indexed_by_job_type_and_correlation(db: Harness) -> None:
    leading = {
        tuple(row["columns"])
        for row in db.sql(
            "select array(select attname::text from unnest(indkey) with ordinality as k (number, n) "
            "join pg_attribute on attrelid = indrelid and attnum = number order by n) as columns "
            "from pg_index where indrelid = 'tenure.event'::regclass and indisvalid"
        )
    }
    assert {("job_id", "ts"), ("type", "ts"), ("correlation_id",)} <= leading


@pytest.mark.req("S2-61")
async def test_a_thousand_jobs_of_eight_claimers_make_exactly_three_thousand_events(dsn: str, db: Harness) -> None:
    db.spy()
    all_claimed = asyncio.Barrier(8)

    async def work(store: Store, name: str) -> int:
        """Claim, start and succeed until nothing is left; nobody goes on before each has its first jobs."""
        count, waited = 0, False
        while jobs := await store.claim("reliability", worker=name, limit=20):
            if not waited:
                await all_claimed.wait()
                waited = True
            await store.report("start", calls([job.held for job in jobs]))
            await store.report("succeed", calls([job.held for job in jobs]))
            count += len(jobs)
        return count

    async with stores(dsn, 8) as eight:
        await eight[0].enqueue_many([NewJob("load", contract="reliability") for _ in range(1000)])
        done = await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(eight)))
    assert sum(done) == 1000
    assert min(done) >= 20
    counted = db.sql(
        "select type, count(*) as events, count(distinct job_id) as jobs from tenure_reliability.job_events group by 1"
    )
    assert {row["type"]: (row["events"], row["jobs"]) for row in counted} == {
        "job_claimed": (1000, 1000), "job_started": (1000, 1000), "job_succeeded": (1000, 1000),
    }  # fmt: skip
    seen = db.sql("select new, count(*) as hops from public.spy group by new")
    assert {row["new"]: row["hops"] for row in seen} == {"assigned": 1000, "running": 1000, "succeeded": 1000}
