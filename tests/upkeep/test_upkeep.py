"""One round of upkeep does all that time asks for, says what it did, and no part of it stops another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tenure.contracts import BUILT_IN
from tenure.errors import CannotConnect, TenureError
from tenure.jobs.job import Failure, NewJob
from tenure.postgres import connect
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.proof import audit
from tenure.upkeep import KeepTimes, Report, once
from tests.contracts.gate_b2 import left_pending
from tests.harness import Harness
from tests.postgres.retiring import begun, leaving, lows

pytestmark = pytest.mark.core

BOOM = Failure("boom", type="TransientError", retryable=True)

#: What each contract makes of a lease that ran out at the first of one attempt.
AFTER_EXPIRY = {
    "phase27": "failed", "dispatcher": "Failed", "reliability": "dead_lettered", "simple": "FAILED",
    "gate_b2": "retrying", "standard": "dead",
}  # fmt: skip


async def expired(store: Store, db: Harness, contract: str) -> int:
    """A job whose holder died."""
    limit = None if contract == "gate_b2" else 1
    made = await store.enqueue(NewJob("t", contract=contract, queue="dying", max_attempts=limit))
    await store.claim(contract, ["dying"], worker="w")
    db.expire(made.job_id)
    return made.job_id


async def waiting(store: Store, db: Harness) -> int:
    """A dispatcher task whose retry is due."""
    made = await store.enqueue(NewJob("t", contract="dispatcher", queue="failing"))
    (job,) = await store.claim("dispatcher", ["failing"], worker="w")
    await store.fail(job.held, BOOM)
    db.due(made.job_id)
    return made.job_id


async def at_the_commit_point(store: Store, db: Harness) -> int:
    """A gate_b2 job whose dead letter a crash has kept from being written."""
    made = await store.enqueue(NewJob("t", contract="gate_b2"))
    await left_pending(store, db, made.job_id)
    return made.job_id


async def verbose(store: Store, db: Harness) -> int:
    """A reliability job with an old heartbeat in its log."""
    made = await store.enqueue(NewJob("t", contract="reliability", queue="beating"))
    (job,) = await store.claim("reliability", ["beating"], worker="w")
    await store.start(job.held)
    await store.heartbeat(job.held)
    with db.connection.transaction():
        db.sql("set local session_replication_role = replica")
        db.sql("update tenure.event set ts = ts - interval '8 days' where job_id = %s", made.job_id)
        for table in ("job", "job_done"):
            db.sql(f"update tenure.{table} set updated_at = updated_at - interval '8 days' where id = %s", made.job_id)
    return made.job_id


def old_keys(db: Harness, job_id: int) -> None:
    """An idempotency key whose time is up as soon as this job has left, and a claim key whose time is up."""
    db.sql("insert into tenure.key (tenant_id, key, verb, hash, job_id, created_at) "
           "values ('t', 'k', 'enqueue', 'h', %s, now() - interval '31 days')", job_id)  # fmt: skip
    db.sql("insert into tenure.claim (key, at) values (%s, now() - interval '2 hours')", uuid4())


async def neglected(store: Store, db: Harness) -> dict[str, int]:
    """A database in which every part of upkeep has something to do; the jobs by what they wait for."""
    await store.outbox.publish({"failing": "https://queue.example/1/failing"})
    jobs = {"left": await leaving(store, db)}
    jobs |= {contract: await expired(store, db, contract) for contract in BUILT_IN}
    jobs["waiting"] = await waiting(store, db)
    jobs["pending"] = await at_the_commit_point(store, db)
    jobs["verbose"] = await verbose(store, db)
    old_keys(db, jobs["left"])
    db.sql("delete from tenure.outbox")
    return jobs


def done(*reported: list[Report]) -> dict[tuple[str, str | None], int]:
    """What rounds did together, without what they did nothing to; every round vacuums, and counts the dead letters."""
    total: dict[tuple[str, str | None], int] = {}
    always = ("vacuum", "group letters")
    for report in (report for reports in reported for report in reports if report.part not in always):
        total[report.part, report.contract] = total.get((report.part, report.contract), 0) + report.did
    return {part: did for part, did in total.items() if did}


#: One of each.
EVERYTHING: dict[tuple[str, str | None], int] = {
    ("extend", None): 1, ("settle", "gate_b2"): 1, ("promote", "dispatcher"): 1, ("forget payloads", None): 1,
    ("forget keys", None): 1, ("forget claims", None): 1, ("retire", None): 1,
    **{("reap", contract): 1 for contract in BUILT_IN},
}  # fmt: skip

#: What a range that leaves takes with it.
LEAVING = {("retire", None): 1, ("forget keys", None): 1}


def without(*parts: tuple[str, str | None]) -> dict[tuple[str, str | None], int]:
    """Everything but these."""
    return {part: did for part, did in EVERYTHING.items() if part not in parts}


async def rounds(store: Store, db: Harness, keep: KeepTimes | None = None) -> list[list[Report]]:
    """One round; more only while transactions of other tests in the same cluster hold up a range that leaves."""
    made = [await once(store, keep)]
    give_up = time.monotonic() + 90
    while begun(db) and ("retire", None) not in troubles(made[-1]) and time.monotonic() < give_up:
        made.append(await once(store, keep))
        assert set(done(made[-1])) <= set(LEAVING)
    return made


def everything_is_done(db: Harness, jobs: dict[str, int]) -> None:
    """Assert what one round, or several, make of the neglected database."""
    assert {contract: db.row(jobs[contract])["state"] for contract in BUILT_IN} == AFTER_EXPIRY
    assert db.row(jobs["waiting"])["state"] == "Queued"
    assert [row["task_id"] for row in db.sql("select task_id from tenure_dispatcher.outbox")] == [jobs["waiting"]]
    assert db.row(jobs["pending"])["state"] == "failed"
    assert db.value("select count(*) from tenure_gate_b2.dlq_items where job_id = %s", jobs["pending"]) == 1
    assert db.value("select count(*) from tenure.event where not hop and facts is not null") == 0
    assert db.value("select count(*) from tenure.key") == 0
    assert lows(db) == [1, 2, 3, 4, 5]
    db.log_is_sound(*(job_id for what, job_id in jobs.items() if what != "left"))


async def test_one_round_does_everything_and_says_so(store: Store, db: Harness) -> None:
    jobs = await neglected(store, db)
    reported = await rounds(store, db)
    assert troubles(*reported) == {}
    assert done(*reported) == EVERYTHING
    assert [(report.part, report.contract) for report in reported[0]] == [
        ("extend", None),
        *((part, contract) for contract in await store.contracts() for part in ("settle", "reap", "promote")),
        ("fire", None), ("advance flows", None), ("route events", None), ("finish rollbacks", None),
        ("operate", None), ("group letters", None), ("cancel expired", None), ("fold counts", None),
        ("forget payloads", None), ("retire", None), ("forget flows", None), ("forget keys", None),
        ("forget unique", None), ("forget claims", None), ("forget wake-ups", None), ("unpublish", None),
        ("forget operations", None), ("forget fires", None), ("retire generations", None), ("forget rows", None),
        ("forget dataset events", None), ("forget counts", None), ("forget alarms", None), ("workers", None),
        ("release", None), ("vacuum", None),
    ]  # fmt: skip
    assert sorted(await store.contracts()) == sorted(BUILT_IN)
    assert reported[0][-1] == Report("vacuum", 1)
    everything_is_done(db, jobs)
    assert done(await once(store)) == {}, "there is nothing left to do"
    assert (await audit(store)).violations == []


async def test_a_round_in_an_empty_database_does_nothing(store: Store) -> None:
    reports = await once(store)
    assert done(reports) == {}
    assert [report for report in reports if report.trouble] == []


async def test_rounds_at_once_share_the_work(store: Store, db: Harness, dsn: str) -> None:
    jobs = await neglected(store, db)
    async with Store.open(dsn) as other:
        reported = await asyncio.gather(*(once(each) for each in (store, other, store, other)))
    assert troubles(*reported) == {}, "what another is at is no trouble"
    last = await rounds(store, db)  # what was skipped because another was at it
    assert done(*reported, *last) == EVERYTHING
    everything_is_done(db, jobs)


async def test_how_long_what_is_past_is_kept_can_be_said(store: Store, db: Harness) -> None:
    job_id = await leaving(store, db)
    await verbose(store, db)
    old_keys(db, job_id)
    reports = await once(
        store,
        KeepTimes(
            payloads_s=9 * 86_400, idempotency_keys_s=32 * 86_400, claim_keys_s=3 * 3_600, finished_jobs_s=101 * 86_400
        ),
    )
    assert done(reports) == {("extend", None): 1}
    keep = KeepTimes(
        payloads_s=7 * 86_400, idempotency_keys_s=32 * 86_400, claim_keys_s=3_600, finished_jobs_s=99 * 86_400
    )
    parts = ("forget payloads", "forget claims", "retire")
    assert done(*await rounds(store, db, keep)) == {(part, None): 1 for part in parts}
    reports = await once(store, KeepTimes(idempotency_keys_s=30 * 86_400))
    assert done(reports) == {("forget keys", None): 1}


@pytest.fixture
async def hasty(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store that waits for a lock only a moment."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 200)
    async with Store.open(dsn) as opened:
        yield opened


def troubles(*reported: list[Report]) -> dict[tuple[str, str | None], str]:
    """The parts that something stood in the way of, and what."""
    told = (report for reports in reported for report in reports)
    return {(report.part, report.contract): report.trouble for report in told if report.trouble}


async def test_a_busy_table_stops_only_the_part_that_needs_it(
    store: Store, hasty: Store, db: Harness, dsn: str
) -> None:
    await neglected(store, db)
    with Harness(dsn) as other, other.connection.transaction():
        other.sql("lock table tenure.key in exclusive mode")
        reported = await rounds(hasty, db)
    (busy,) = troubles(*reported).items()
    assert busy[0] == ("forget keys", None)
    assert busy[1].startswith("BUSY: ")
    assert done(*reported) == without(("forget keys", None))
    assert done(await once(store)) == {("forget keys", None): 1}


async def test_a_reader_stops_only_what_retires(store: Store, hasty: Store, db: Harness, dsn: str) -> None:
    await neglected(store, db)
    with Harness(dsn) as reader, reader.connection.transaction():
        reader.sql("select count(*) from tenure.event")
        reported = await rounds(hasty, db)
    told = troubles(*reported)
    assert list(told) == [("retire", None)]
    assert told["retire", None].startswith("BUSY: ")
    assert reported[-1][-1] == Report("vacuum", 1)
    assert done(*reported) == without(*LEAVING), "keys wait for their jobs"
    assert done(*await rounds(store, db)) == LEAVING


async def test_a_record_that_cannot_be_written_is_told_and_stops_nobody(store: Store, db: Harness) -> None:
    jobs = await neglected(store, db)
    db.sql("alter table tenure.dead_letter add constraint no_paper check (contract <> 'gate_b2') not valid")
    reported = await rounds(store, db)
    ((part, told),) = troubles(*reported).items()
    assert part == ("settle", "gate_b2")
    assert f"job {jobs['pending']}: its record could not be written" in told
    assert done(*reported) == without(("settle", "gate_b2"))
    db.sql("alter table tenure.dead_letter drop constraint no_paper")
    assert done(await once(store)) == {("settle", "gate_b2"): 1}


async def test_a_move_that_the_database_refuses_stops_only_its_own_part(store: Store, db: Harness) -> None:
    await neglected(store, db)
    db.sql(
        "alter table tenure.event add constraint no_expiry check (contract <> 'simple' or trigger <> 'expire_at_cap')"
    )
    reported = await rounds(store, db)
    assert list(troubles(*reported)) == [("reap", "simple")]
    assert done(*reported) == without(("reap", "simple"))


async def test_as_the_app_role_only_what_needs_the_owner_is_left_undone(store: Store, db: Harness, dsn: str) -> None:
    jobs = await neglected(store, db)
    migrate(dsn, grants=True)  # which makes the range ahead, too
    async with Store.open(make_conninfo(dsn, options="-c role=tenure_app")) as app:
        reports = await once(app)
    ((part, told),) = troubles(reports).items()
    assert part == ("retire", None)
    assert told.startswith("E-UNAVAILABLE: only the owner of the tables can drop ranges")
    assert reports[-1] == Report("vacuum", 0)
    assert done(reports) == without(("extend", None), *LEAVING)
    assert (await store.jobs([jobs["left"]]))[0].state == "succeeded"
    assert begun(db) == [], "nothing of it was begun"
    assert done(*await rounds(store, db)) == LEAVING
    everything_is_done(db, jobs)


async def test_a_time_that_makes_no_sense_is_told_by_its_part(store: Store, db: Harness) -> None:
    await neglected(store, db)
    reports = await once(store, KeepTimes(payloads_s=-1, claim_keys_s=1, finished_jobs_s=0))
    told = troubles(reports)
    assert list(told) == [(part, None) for part in ("forget payloads", "retire", "forget flows", "forget claims")]
    assert all("E-BAD-INPUT: keep_sec is " in trouble for trouble in told.values())


async def test_a_database_that_went_away_ends_the_round_in_our_own_words(dsn: str, db: Harness) -> None:
    store = await Store.connect(dsn)
    await store.close()
    with pytest.raises(TenureError) as error:
        await once(store)
    assert not isinstance(error.value, CannotConnect), "a closed store is said to be one"
