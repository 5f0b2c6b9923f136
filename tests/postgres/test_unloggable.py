"""A job that cannot be logged stops nobody else: claims leave it out, people see it, and it comes back."""

from __future__ import annotations

import logging

import psycopg
import pytest

from tenure.errors import Refused
from tenure.jobs.job import Job, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.jobs.validation import ID_UNIT
from tenure.jobs.why import explain_job
from tenure.postgres.store import Store
from tenure.proof.audit import audit
from tests.harness import Harness
from tests.holder_calls import calls

#: A log row that is there already: the job's next hop has the same number.
SPOIL = """
insert into tenure.event
    (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
select id, now(), seq + 1, 1, 1, 1, contract, 'spoilt', state, state, 'a test' from tenure.job where id = any(%s)
"""
_MEND = "delete from tenure.event where trigger = 'spoilt'"


def mend(db: Harness) -> None:
    """Let every job be logged again."""
    with db.connection.transaction():
        db.sql("set local session_replication_role = replica")
        db.sql(_MEND)


@pytest.mark.parametrize("contract", ["standard", "phase27", "dispatcher", "reliability", "simple", "gate_b2"])
@pytest.mark.parametrize("limit", [1, 10])
async def test_one_job_that_cannot_be_logged_does_not_stop_its_queue(
    store: Store, db: Harness, contract: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [(await store.enqueue(NewJob("t", contract=contract))).job_id for _ in range(8)]
    bad = [ids[0], ids[5]]
    db.sql(SPOIL, bad)
    claimed = list[int]()
    with caplog.at_level(logging.ERROR, "tenure"):
        while jobs := await store.claim(contract, worker="w", limit=limit):
            claimed += [job.id for job in jobs]
    assert claimed == [job_id for job_id in ids if job_id not in bad]
    for job_id in bad:
        row = db.row(job_id)
        assert (row["claims"], row["role"]) == (0, "ready")
        assert "event" in row["quarantine_reason"]
        assert caplog.text.count(f"job {job_id} cannot be logged") == 1


async def test_a_job_that_cannot_be_logged_is_seen(store: Store, db: Harness) -> None:
    ids = [(await store.enqueue(NewJob("t"))).job_id for _ in range(3)]
    db.sql(SPOIL, ids[:1])
    await store.claim(worker="w")
    (queue,) = await store.queues.list()
    assert (queue.quarantined, queue.ready, queue.held) == (1, 1, 1)
    found = [one for one in (await audit(store)).violations if one.promise == "nothing stranded"]
    assert [one.job_id for one in found] == ids[:1]
    seen = await store.details(ids[0])
    assert any(
        "could not be logged" in line
        for line in explain_job(seen.job, seen.log, seen.contract, seen.now, seen.situation)
    )


async def test_it_is_tried_again_after_a_while_and_runs_when_the_cause_is_mended(store: Store, db: Harness) -> None:
    ids = [(await store.enqueue(NewJob("t"))).job_id for _ in range(2)]
    db.sql(SPOIL, ids[:1])
    assert [job.id for job in await store.claim(worker="w", limit=9)] == ids[1:]
    mend(db)
    assert await store.watch.release(300.0) == 0
    assert await store.claim(worker="w") == []
    db.sql("update tenure.job set quarantined_at = quarantined_at - interval '301 seconds'")
    assert await store.watch.release(300.0) == 1
    (job,) = await store.claim(worker="w")
    assert job.id == ids[0]
    assert db.row(job.id)["quarantined_at"] is None


async def test_any_move_ends_a_quarantine(store: Store, db: Harness) -> None:
    ids = [(await store.enqueue(NewJob("t"))).job_id for _ in range(2)]
    db.sql(SPOIL, ids[:1])
    await store.claim(worker="w", limit=9)
    mend(db)
    (job,) = await store.claim_by_id(ids[:1], worker="w")
    assert isinstance(job, Job)
    assert db.row(ids[0])["quarantined_at"] is None
    await store.hand_back(job.held)
    assert [one.id for one in await store.claim(worker="w")] == ids[:1]


@pytest.mark.parametrize("jobs", [1, 5])
async def test_where_nothing_can_be_logged_no_job_is_left_out(store: Store, db: Harness, jobs: int) -> None:
    await store.enqueue_many([NewJob("t")] * jobs)
    db.sql("create function public.refuse() returns trigger language plpgsql as $$ begin raise 'no room'; end $$")
    db.sql("create trigger refuse before insert on tenure.event for each row execute function public.refuse()")
    with pytest.raises(psycopg.errors.RaiseException, match="no room"):
        await store.claim(worker="w", limit=2)
    assert db.value("select count(*) from tenure.job where quarantined_at is not null") == 0


@pytest.mark.parametrize("contract", ["standard", "phase27", "dispatcher", "reliability", "simple", "gate_b2"])
async def test_a_lone_job_that_cannot_be_logged_is_left_out_and_counted(
    store: Store, db: Harness, contract: str
) -> None:
    made = await store.enqueue(NewJob("t", contract=contract))
    db.sql(SPOIL, [made.job_id])
    assert await store.claim(contract, worker="w") == []
    (queue,) = await store.queues.list()
    assert (queue.quarantined, queue.ready, queue.held) == (1, 0, 0)
    assert db.row(made.job_id)["claims"] == 0


async def test_a_good_job_runs_behind_150_that_cannot_be_logged(store: Store, db: Harness) -> None:
    ids = [made.job_id for made in await store.enqueue_many([NewJob("t")] * 151) if isinstance(made, Enqueued)]
    db.sql(SPOIL, ids[:150])
    assert [job.id for job in await store.claim(worker="w")] == ids[150:]
    (queue,) = await store.queues.list()
    assert (queue.quarantined, queue.ready, queue.held) == (150, 0, 1)


async def test_a_missing_part_of_the_log_stops_only_the_jobs_of_its_ids(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await store.enqueue_many([NewJob("t")] * 3_000)
    db.sql("select setval('tenure.job_id_seq', %s)", ID_UNIT)
    good = await store.enqueue(NewJob("t"))
    db.sql("alter table tenure.event detach partition tenure.event_0")
    with caplog.at_level(logging.ERROR, "tenure"):
        assert [job.id for job in await store.claim(worker="w")] == [good.job_id]
    (queue,) = await store.queues.list()
    assert (queue.quarantined, queue.ready, queue.held) == (3_000, 0, 1)
    assert caplog.text.count("cannot be logged") == 1, "one line for all of them"


async def test_one_lost_job_that_cannot_be_logged_does_not_stop_the_reaping_of_others(
    store: Store, db: Harness
) -> None:
    ids = [(await store.enqueue(NewJob("t"))).job_id for _ in range(5)]
    await store.claim(worker="w", limit=5)
    db.expire(*ids)
    db.sql(SPOIL, ids[2:3])
    outcomes = await store.reap("standard")
    assert {one.job_id for one in outcomes if isinstance(one, Moved)} == {*ids} - {ids[2]}
    (refused,) = (one for one in outcomes if not isinstance(one, Moved))
    assert (refused.job_id, refused.reason_code) == (ids[2], "NOT_LOGGED")


@pytest.mark.parametrize("time", ["-infinity", "infinity", "0044-03-15 BC", "20000-01-01"])
async def test_a_due_time_that_no_client_can_read_is_refused(store: Store, db: Harness, time: str) -> None:
    made = await store.enqueue(NewJob("t"))
    with pytest.raises(psycopg.errors.CheckViolation):
        db.sql("update tenure.job set due_at = %s where id = %s", time, made.job_id)
    assert [job.id for job in await store.claim(worker="w")] == [made.job_id]


def of_a_later_release(db: Harness, job_id: int, contract: str = "standard") -> None:
    """Let a job be of a version of its contract that this release cannot read."""
    db.sql(
        "insert into tenure.contract (name, version, digest, declaration) select name, '9', 'later', "
        "jsonb_set(declaration::jsonb, '{states}', '\"a word of a later release\"') "
        "from tenure.contract where name = %s",
        contract,
    )
    db.sql("update tenure.job set version = '9' where id = %s", job_id)


async def test_a_worker_claims_only_versions_that_it_can_settle(store: Store, db: Harness) -> None:
    old, new = [(await store.enqueue(NewJob("t"))).job_id for _ in range(2)]
    of_a_later_release(db, new)
    assert [job.id for job in await store.claim(worker="w", limit=9)] == [old]
    assert [job.id for job in await store.claim(worker="w", limit=9, types=["t"])] == []
    assert await store.due(["standard"], ["default"]) == []
    assert db.row(new)["claims"] == 0


async def test_a_claim_by_id_refuses_a_version_that_its_caller_cannot_settle(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    old, new, gone = [(await store.enqueue(NewJob("t"))).job_id for _ in range(3)]
    of_a_later_release(db, new)
    before = db.fingerprint(new)
    with caplog.at_level(logging.WARNING, "tenure"):
        for _ in range(2):
            (refused,) = await store.claim_by_id([new], worker="w")
            assert isinstance(refused, Refused)
            assert refused.reason_code == "UNKNOWN_VERSION"
            assert "that this process does not know" in str(refused)
    assert db.fingerprint(new) == before
    assert caplog.text.count("contract standard 9 is registered, but this process cannot use it") == 1
    taken = await store.claim_by_id([old, new], worker="w")
    assert [type(one) for one in taken] == [Job, Refused]
    db.sql("update tenure.job set contract = 'phase27' where id = %s", gone)
    (refused,) = await store.claim_by_id([gone], worker="w")
    assert isinstance(refused, Refused)
    assert refused.reason_code == "WRONG_CONTRACT"


async def test_a_version_that_was_registered_meanwhile_is_claimed_by_id_at_once(store: Store, db: Harness) -> None:
    await store.claim(worker="w")
    made = await store.enqueue(NewJob("t"))
    registered_as_2(db, made.job_id)
    (job,) = await store.claim_by_id([made.job_id], worker="w")
    assert isinstance(job, Job)
    assert (await store.succeed(job.held)).role == "done"


def registered_as_2(db: Harness, job_id: int) -> None:
    """Register version 2 of the job's contract, which this release can read, and let the job be of that."""
    db.sql(
        "insert into tenure.contract (name, version, digest, declaration) select name, '2', digest, "
        "jsonb_set(declaration::jsonb, '{version}', '\"2\"') from tenure.contract where name = 'standard'"
    )
    db.sql("update tenure.job set version = '2' where id = %s", job_id)


async def test_a_version_that_was_registered_meanwhile_is_claimed_once_it_is_read(store: Store, db: Harness) -> None:
    await store.claim(worker="w")
    made = await store.enqueue(NewJob("t"))
    registered_as_2(db, made.job_id)
    store._engine._next_registry_read = 0.0  # as if half a minute had passed
    assert await store.due(["standard"], ["default"]) == ["standard"]
    (job,) = await store.claim(worker="w")
    assert (await store.succeed(job.held)).role == "done"


@pytest.mark.parametrize("contract", ["standard", "phase27", "dispatcher", "reliability", "simple", "gate_b2"])
@pytest.mark.parametrize("verb", ["claim by id", "succeed", "fail"])
async def test_a_batch_with_a_job_that_cannot_be_logged_refuses_that_job_alone(
    store: Store, db: Harness, contract: str, verb: str
) -> None:
    ids = [(await store.enqueue(NewJob("t", contract=contract))).job_id for _ in range(4)]
    held = []
    if verb != "claim by id":
        held = [job.held for job in await store.claim(contract, worker="w", limit=9)]
        await store.report("start", calls(held))
    db.sql(SPOIL, ids[1:2])
    before = db.row(ids[1])
    if verb == "claim by id":
        answers: list[object] = [*await store.claim_by_id(ids, worker="w", contract=contract)]
    elif verb == "succeed":
        answers = [*await store.report("succeed", calls(held))]
    else:
        answers = [*await store.report("fail", calls(held, failures=[ValueError("no")] * 4))]
    refused = answers.pop(1)
    assert isinstance(refused, Refused)
    assert refused.reason_code == "NOT_LOGGED"
    assert db.row(ids[1]) == before
    assert all(isinstance(one, (Job, Moved)) for one in answers)


async def test_a_repeat_beside_a_job_that_cannot_be_logged_gets_its_first_answer(store: Store, db: Harness) -> None:
    for _ in range(3):
        await store.enqueue(NewJob("t", contract="reliability"))
    held = [job.held for job in await store.claim("reliability", worker="w", limit=9)]
    first = await store.start(held[0], key="k0")
    db.sql(SPOIL, [held[1].id])
    again, refused, fresh = await store.report("start", calls(held, keys=["k0", "k1", "k2"]))
    assert again == first
    assert isinstance(refused, Refused)
    assert refused.reason_code == "NOT_LOGGED"
    assert isinstance(fresh, Moved)
