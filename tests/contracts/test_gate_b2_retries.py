"""Document 004, retries: three of them, their frozen delays, and the histories that the replay cases name."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from tenure.errors import BadInput, NotDue
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.model.backoff import delay_ms
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.clock import MOMENT, TICK, StoppedClock
from tests.contracts.gate_b2 import (
    DEAD,
    GATE_B2,
    PERMANENT,
    RETRY,
    TRANSIENT,
    fail,
    gaps_filled,
    items,
    make,
    records,
    shown,
    take,
    transitions,
)
from tests.harness import Harness
from tests.holder_calls import calls


def delays(answers: list[Moved]) -> list[int]:
    """The delays that these answers name."""
    return [answer.delay_ms for answer in answers if answer.delay_ms is not None]


@pytest.mark.req("S4-15")
@pytest.mark.parametrize(
    "failure",
    [PERMANENT, Failure("no flag"), Failure("no flag", type="TransientError")],
    ids=["flagged false", "not flagged", "not flagged, transient by name"],
)
async def test_an_error_that_is_not_flagged_retryable_goes_straight_to_the_dead_letters(
    store: Store, db: Harness, failure: Failure
) -> None:
    job_id = await make(store)
    (answer,) = await fail(store, db, job_id, 1, failure)
    assert (answer.state, answer.will_retry) == ("failed", False)
    assert (shown(db, job_id)["status"], shown(db, job_id)["retry_count"]) == ("failed", 0)
    assert transitions(db, job_id) == ["queued->running", *DEAD]
    assert len(items(db, job_id)) == 1


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_a_job_that_succeeds_after_some_retries_takes_the_replayed_road(
    store: Store, db: Harness, retries: int
) -> None:
    """The roads of RP-001, RP-002 and RP-003."""
    db.spy()
    job_id = await make(store)
    await fail(store, db, job_id, retries)
    await store.succeed(await take(store, db, job_id))
    assert transitions(db, job_id) == ["queued->running", *RETRY * retries, "running->succeeded"]
    gaps_filled(db, job_id)
    row = shown(db, job_id)
    assert (row["status"], row["retry_count"], items(db, job_id)) == ("succeeded", retries, [])
    db.log_is_sound(job_id)


@pytest.mark.req("S4-16", "S4-53")
async def test_the_fourth_failure_enters_the_dead_letters_and_no_fifth_run_begins(store: Store, db: Harness) -> None:
    """The road of RP-004."""
    db.spy()
    job_id = await make(store)
    answers = await fail(store, db, job_id, 4)
    assert [answer.will_retry for answer in answers] == [True, True, True, False]
    assert transitions(db, job_id) == ["queued->running", *RETRY * 3, *DEAD]
    gaps_filled(db, job_id)
    # dlq_pending is committed before the record is written: another transaction goes on from there.
    pending, failed = db.seen(job_id)[-2:]
    assert (pending.new, failed.old, failed.new) == ("dlq_pending", "dlq_pending", "failed")
    assert pending.txid < failed.txid
    assert (shown(db, job_id)["status"], shown(db, job_id)["retry_count"]) == ("failed", 3)
    (item,) = items(db, job_id)
    assert item["dlq_id"]
    assert await store.claim("gate_b2", worker="w5") == []
    assert db.row(job_id)["claims"] == 4
    with pytest.raises(BadInput, match="max_retries"):
        await make(store, max_attempts=4)


@pytest.mark.req("S4-59")
async def test_a_job_that_always_fails_runs_four_times_and_makes_ten_transitions(store: Store, db: Harness) -> None:
    job_id = await make(store)
    answers = await fail(store, db, job_id, 4)
    told = transitions(db, job_id)
    assert len(told) == len(records(db, job_id)) == 10
    assert [told.count(each) for each in ("queued->running", *RETRY, *DEAD)] == [1, 3, 3, 1, 1, 1]
    assert (shown(db, job_id)["retry_count"], db.row(job_id)["claims"], len(items(db, job_id))) == (3, 4, 1)
    spans = [(1000, 1300), (2000, 2300), (4000, 4300)]
    assert all(low <= delay <= high for delay, (low, high) in zip(delays(answers), spans, strict=True))
    db.log_is_sound(job_id)


@pytest.mark.req("S4-17", "S4-21")
async def test_the_delay_doubles_with_the_retry_count_which_counts_from_one(store: Store, db: Harness) -> None:
    job_id = await make(store)
    assert shown(db, job_id)["retry_count"] == 0
    for retry_count in (1, 2, 3):
        (answer,) = await fail(store, db, job_id, 1)
        row = shown(db, job_id)
        assert (row["status"], row["retry_count"], answer.counter) == ("retrying", retry_count, retry_count)
        assert answer.delay_ms is not None
        assert 0 <= answer.delay_ms - 1000 * 2 ** (retry_count - 1) <= 300
        assert row["next_retry_at"] == row["updated_at"] + timedelta(milliseconds=answer.delay_ms)


@pytest.mark.req("S4-18")
async def test_jitter_is_added_after_the_cap_and_lies_within_0_and_300(store: Store, db: Harness, dsn: str) -> None:
    await store.enqueue_many([NewJob("settle", contract="gate_b2") for _ in range(400)])
    jobs = await store.claim("gate_b2", worker="w1", limit=400)
    answers = await store.report("fail", calls([job.held for job in jobs], failures=[TRANSIENT] * 400))
    offsets = [delay - 1000 for delay in delays([answer for answer in answers if isinstance(answer, Moved)])]
    assert len(offsets) == 400
    assert all(0 <= offset <= 300 for offset in offsets)
    assert len(set(offsets)) > 100
    assert min(offsets) < 15
    assert max(offsets) > 285
    async with Store.open(dsn, numbers={"gate_b2": {"backoff_cap_ms": 1500}}) as capped:
        job_id = await make(capped)
        assert 1500 <= delays(await fail(capped, db, job_id, 3))[2] <= 1800


def test_both_ends_of_the_jitter_can_be_reached() -> None:
    seen = {delay_ms(GATE_B2.backoff, job_id, 1) - 1000 for job_id in range(1, 10_000)}
    assert seen == set(range(301))


@pytest.mark.req("S4-19", "S4-20")
async def test_base_and_maximum_are_1000_and_30000_and_settings(store: Store, db: Harness, dsn: str) -> None:
    assert (GATE_B2.numbers()["backoff_base_ms"], GATE_B2.numbers()["backoff_cap_ms"]) == (1000, 30_000)
    names = {"WORKER_RETRY_BACKOFF_BASE_MS": "20000", "WORKER_RETRY_BACKOFF_MAX_MS": "50000"}
    only_base = Settings.load({"WORKER_RETRY_BACKOFF_BASE_MS": "20000"})
    both = Settings.load(names)
    seen = []
    for settings in (Settings.load({}), only_base, both):
        async with Store.open(dsn, numbers=settings.numbers) as configured:
            job_id = await make(configured)
            answers = await fail(configured, db, job_id, 4)
            seen.append([math.floor(delay / 1000) * 1000 for delay in delays(answers)])
    assert seen == [[1000, 2000, 4000], [20_000, 30_000, 30_000], [20_000, 40_000, 50_000]]
    for name, value in (("WORKER_RETRY_BACKOFF_BASE_MS", "soon"), ("WORKER_RETRY_BACKOFF_MAX_MS", "-1")):
        with pytest.raises(BadInput, match=name):
            Settings.load({name: value})


@pytest.mark.req("S4-22")
async def test_a_job_is_not_run_again_before_its_delay_has_passed(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        job_id = await make(store)
        (answer,) = await fail(store, db, job_id, 1)
        assert answer.delay_ms is not None
        due = MOMENT + timedelta(milliseconds=answer.delay_ms)
        assert answer.due_at == due
        for early in (MOMENT, due - TICK):
            clock.set(early)
            (refused,) = await store.claim_by_id([job_id], worker="w2", contract="gate_b2")
            assert isinstance(refused, NotDue)
            assert await store.claim("gate_b2", worker="w2") == []
        clock.set(due)
        assert [job.id for job in await store.claim("gate_b2", worker="w2")] == [job_id]
    times = {record["status_transition"]: record["ts"] for record in records(db, job_id)}
    assert (times["retrying->running"], times["running->retrying"]) == (due, answer.at)


@pytest.mark.req("S4-23", "S4-24")
async def test_retry_count_rises_exactly_when_running_becomes_retrying_and_the_job_stays_one_row(
    store: Store, db: Harness
) -> None:
    db.spy()
    failing, crashing = await make(store, priority=0), await make(store, priority=9)
    await fail(store, db, failing, 4)
    for _ in range(3):
        await take(store, db, crashing)
        db.expire(crashing)
        await store.reap("gate_b2")
    await store.succeed(await take(store, db, crashing))
    for job_id in (failing, crashing):
        before = 0
        for hop in db.seen(job_id):
            assert hop.counter - before == int((hop.old, hop.new) == ("running", "retrying"))
            before = hop.counter
        assert before == 3
        counts = [record["retry_count"] for record in records(db, job_id)]
        assert counts == [0, 1, 1, 2, 2, 3, 3, *[3] * (len(counts) - 7)]
    assert [row["job_id"] for row in db.sql("select job_id from tenure_gate_b2.jobs order by 1")] == [failing, crashing]


@pytest.mark.req("S4-52")
async def test_a_replay_with_the_same_job_id_waits_as_long(store: Store, db: Harness, dsn: str, empty_dsn: str) -> None:
    migrate(empty_dsn)
    histories = []
    for where in (dsn, empty_dsn):
        with Harness(where) as eyes:
            async with Store.open(where) as replay:
                ids = [await make(replay, priority=n) for n in range(3)]
                answers = [await fail(replay, eyes, job_id, 3) for job_id in ids]
                for job_id in ids:
                    await replay.succeed(await take(replay, eyes, job_id))
            roads = [transitions(eyes, job_id) for job_id in ids]
            counts = [[record["retry_count"] for record in records(eyes, job_id)] for job_id in ids]
            histories.append((ids, [delays(each) for each in answers], roads, counts))
    assert histories[0] == histories[1]
    ids, waited, roads, _ = histories[0]
    assert len({tuple(each) for each in waited}) == 3  # of different jobs, different
    assert waited == [[delay_ms(GATE_B2.backoff, job_id, claims) for claims in (1, 2, 3)] for job_id in ids]
    assert roads == [["queued->running", *RETRY * 3, "running->succeeded"]] * 3


@pytest.mark.req("S4-56")
@pytest.mark.parametrize("given", ["t-1", None], ids=["given", "made"])
async def test_the_trace_id_of_a_job_is_in_all_its_records_and_never_changes(
    store: Store, db: Harness, given: str | None
) -> None:
    job_id = await make(store, trace_id=given)
    trace = shown(db, job_id)["trace_id"]
    assert trace == (given or trace)
    assert trace
    for _ in range(3):
        await fail(store, db, job_id, 1)
        assert shown(db, job_id)["trace_id"] == trace
    await fail(store, db, job_id, 1)
    assert {record["trace_id"] for record in records(db, job_id)} == {trace}
    assert shown(db, job_id)["trace_id"] == trace
    assert items(db, job_id)[0]["context_json"]["trace_id"] == trace
    assert (await store.jobs([job_id]))[0].trace_id == trace


@pytest.mark.parametrize("given", ["t-1", None], ids=["given", "made"])
async def test_the_trace_id_is_in_the_records_of_every_way_that_a_job_moves(
    store: Store, db: Harness, given: str | None
) -> None:
    """Each record has it from its own log row, which several statements write."""
    ids = [await make(store, trace_id=given) for _ in range(3)]
    (plain,) = await store.claim("gate_b2", worker="w1")
    (by_id,) = await store.claim_by_id(ids[1:2], worker="w1", contract="gate_b2")
    assert isinstance(by_id, Job)
    await store.succeed(plain.held)
    await store.succeed(by_id.held, key="k")
    await store.transition(ids[2], "running", actor="ada")
    db.expire(ids[2])
    await store.reap("gate_b2")
    for job_id, count in zip(ids, (2, 2, 2), strict=True):
        assert [record["trace_id"] for record in records(db, job_id)] == [shown(db, job_id)["trace_id"]] * count
    assert {shown(db, job_id)["trace_id"] == given for job_id in ids} == {given is not None}


@pytest.mark.req("S4-57")
async def test_a_worker_that_dies_in_every_run_ends_the_job_as_failed_after_four(store: Store, db: Harness) -> None:
    db.spy()
    job_id = await make(store)
    for run in range(1, 5):
        await take(store, db, job_id, f"w{run}")
        assert await store.reap("gate_b2") == []
        db.expire(job_id)
        (answer,) = await store.reap("gate_b2")
        assert isinstance(answer, Moved)
        assert answer.state == ("retrying" if run < 4 else "failed")
        assert shown(db, job_id)["error_code"] == "WORKER_LOST"
    assert transitions(db, job_id) == ["queued->running", *RETRY * 3, *DEAD]
    gaps_filled(db, job_id)
    (item,) = items(db, job_id)
    assert (item["error_code"], item["error_class"], item["status"]) == ("WORKER_LOST", "WorkerLost", "open")
    assert shown(db, job_id)["retry_count"] == 3
    db.log_is_sound(job_id)


async def test_a_late_worker_cannot_complete_a_job_that_was_given_back(store: Store, db: Harness) -> None:
    job_id = await make(store)
    held = await take(store, db, job_id)
    db.expire(job_id)
    await store.reap("gate_b2")
    before = db.fingerprint(job_id)
    (answer,) = await store.report("succeed", calls([held]))
    assert not isinstance(answer, Moved)
    assert db.fingerprint(job_id) == before
