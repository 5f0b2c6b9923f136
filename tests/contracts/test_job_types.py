"""Job types: each kind of job has its own lease, beat, limit, backoff and end, seen on its rows alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, LeaseConflictError
from tenure.jobs.job import Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.outcome import Enqueued, Moved
from tenure.model.backoff import delay_ms
from tenure.postgres.store import Store
from tests.contracts.job_types import (
    TRANSIENT,
    beat,
    fail_to_the_end,
    lease,
    left,
    made_and_taken,
    make,
    take,
    take_by_id,
)
from tests.contracts.reliability import letters, shown, types
from tests.harness import Harness
from tests.holder_calls import calls

every_contract = pytest.mark.parametrize("contract", BUILT_IN)


def seconds(number: float) -> timedelta:
    """So many of them."""
    return timedelta(seconds=number)


@pytest.mark.req("S2-01")
async def test_four_job_types_have_their_own_lease_limit_and_end(store: Store, db: Harness) -> None:
    four = [
        JobType("indexing", "reliability", lease_ttl_sec=30, heartbeat_sec=10, max_attempts=1, on_exhausted="failed"),
        JobType("research", "reliability", lease_ttl_sec=120, heartbeat_sec=30, max_attempts=4),
        JobType("execution", "reliability", lease_ttl_sec=45, max_attempts=2, on_exhausted="dead_lettered"),
        JobType("qa", "reliability", lease_ttl_sec=90.5, heartbeat_sec=20, max_attempts=5, on_exhausted="failed"),
    ]
    assert await store.types.declare(four) == 4
    made = await store.enqueue_many([NewJob(one.type, contract="reliability", queue=one.type) for one in four])
    ids = [answer.job_id for answer in made if isinstance(answer, Enqueued)]
    # All four are taken by one call: what differs is their type alone.
    jobs = await store.claim("reliability", [one.type for one in four], worker="w1", limit=4)
    assert [job.id for job in jobs] == ids
    await store.report("start", calls([job.held for job in jobs]))
    assert [lease(db, job_id) for job_id in ids] == [seconds(30), seconds(120), seconds(45), seconds(90.5)]
    assert [shown(db, job_id)["max_attempts"] for job_id in ids] == [1, 4, 2, 5]
    await store.report("fail", calls([job.held for job in jobs], failures=[TRANSIENT] * 4))
    for one, job_id in zip(four[1:], ids[1:], strict=True):
        await fail_to_the_end(store, db, "reliability", one.type, job_id)
    rows = [shown(db, job_id) for job_id in ids]
    assert [row["attempts"] for row in rows] == [1, 4, 2, 5]
    assert [row["status"] for row in rows] == ["failed", "dead_lettered", "dead_lettered", "failed"]


@pytest.mark.req("S2-26")
async def test_a_types_lease_is_30_to_120_seconds(store: Store, db: Harness) -> None:
    for length in (29, 121, 29.999, 120.001, 0, -60):
        with pytest.raises(BadInput, match=r"lease_ttl_sec.* within 30\.\.120 seconds"):
            await store.types.declare([JobType("outside", "reliability", lease_ttl_sec=length)])
    assert await store.types.list() == []
    for length in (30, 120):
        await store.types.declare([JobType(f"type{length}", "reliability", lease_ttl_sec=length)])
        job = await made_and_taken(store, "reliability", f"type{length}")
        claimed = db.one(
            "select ts from tenure_reliability.job_events where job_id = %s and type = 'job_claimed'", job.id
        )
        assert shown(db, job.id)["lease_expires_at"] - claimed["ts"] == seconds(length)
        assert job.lease_expires_at == shown(db, job.id)["lease_expires_at"]
    assert lease(db, (await made_and_taken(store, "reliability", "undeclared")).id) == seconds(60)


@pytest.mark.req("S2-28")
async def test_a_type_beats_every_10_to_30_seconds_and_two_missed_beats_of_its_own_orphan_its_jobs(
    store: Store, db: Harness
) -> None:
    for interval in (9, 31, 9.999, 30.001, 0):
        with pytest.raises(BadInput, match=r"heartbeat_sec.* within 10\.\.30 seconds"):
            await store.types.declare([JobType("outside", "reliability", heartbeat_sec=interval)])
    assert await store.types.list() == []
    for interval in (10, 30):
        await store.types.declare([JobType(f"b{interval}", "reliability", lease_ttl_sec=120, heartbeat_sec=interval)])
    quick = await made_and_taken(store, "reliability", "b10")
    slow = await made_and_taken(store, "reliability", "b30")
    for ago, orphaned in ((19, []), (21, [quick.id]), (59, []), (61, [slow.id])):
        for job in (quick, slow):
            beat(db, job.id, ago)
        outcomes = await store.reap("reliability")
        assert [outcome.job_id for outcome in outcomes if isinstance(outcome, Moved)] == orphaned, ago
    for job in (quick, slow):
        assert (shown(db, job.id)["status"], db.log(job.id)[-1]["reason"]) == ("queued", "orphaned")


@pytest.mark.req("S2-28")
async def test_the_lease_is_a_second_clock_beside_the_types_beat(store: Store, db: Harness) -> None:
    await store.types.declare([JobType("steady", "reliability", lease_ttl_sec=30, heartbeat_sec=30)])
    job = await made_and_taken(store, "reliability", "steady")
    beat(db, job.id, 21)  # two beats of the contract's own 15 s would not be over either; the lease is
    db.expire(job.id)
    (outcome,) = await store.reap("reliability")
    assert isinstance(outcome, Moved)
    assert db.log(job.id)[-1]["reason"] == "lease_expired"


@pytest.mark.req("S2-28")
@pytest.mark.parametrize("verb", ["beat", "succeed", "fail", "checkpoint", "effect"])
async def test_a_holder_that_missed_two_beats_of_its_type_is_refused_before_anybody_reaps(
    store: Store, db: Harness, verb: str
) -> None:
    await store.types.declare([JobType("quick", "reliability", lease_ttl_sec=120, heartbeat_sec=10)])
    job = await made_and_taken(store, "reliability", "quick")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "beat": lambda: store.heartbeat(job.held),
        "succeed": lambda: store.succeed(job.held),
        "fail": lambda: store.fail(job.held, TRANSIENT),
        "checkpoint": lambda: store.checkpoint(job.held, {"page": 1}),
        "effect": lambda: store.effect(job.held, "mail"),
    }
    beat(db, job.id, 21)
    before = db.fingerprint(job.id)
    with pytest.raises(LeaseConflictError):
        await calls[verb]()
    assert (db.fingerprint(job.id), await store.effects(job.id)) == (before, {})
    beat(db, job.id, 19)
    await calls[verb]()


@pytest.mark.req("S2-31")
async def test_work_longer_than_its_lease_needs_renewal(store: Store, db: Harness) -> None:
    refused = [
        JobType("long", "reliability", lease_ttl_sec=60, sla_sec=61, renews=False),
        JobType("long", "reliability", lease_ttl_sec=120, sla_sec=3600, renews=False),
        JobType("long", "reliability", sla_sec=60.5, renews=False),  # the contract's own lease is 60 s
    ]
    for declared in refused:
        with pytest.raises(BadInput, match=r"longer than its lease of .* and nothing renews it"):
            await store.types.declare([declared])
    assert await store.types.list() == []
    fine = [
        JobType("long", "reliability", lease_ttl_sec=60, sla_sec=3600, renews=True),
        JobType("short", "reliability", lease_ttl_sec=60, sla_sec=60, renews=False),
        JobType("unsaid", "reliability", lease_ttl_sec=30, renews=False),
    ]
    assert await store.types.declare(fine) == 3
    assert await store.types.list("reliability") == fine
    for kind, renewed in (("long", True), ("short", False)):
        job = await made_and_taken(store, "reliability", kind)
        left(db, job.id, 25)
        before = shown(db, job.id)["lease_expires_at"]
        noted = await store.heartbeat(job.held)
        row = shown(db, job.id)
        assert noted.renewed == renewed
        assert noted.lease_expires_at == row["lease_expires_at"]
        assert row["lease_expires_at"] == (row["last_heartbeat_at"] + seconds(60) if renewed else before)
        assert types(db, job.id)[2:] == ["job_heartbeat"] + ["job_lease_renewed"] * renewed


@every_contract
async def test_where_a_type_does_not_renew_no_beat_of_any_contract_extends_the_lease(
    store: Store, db: Harness, contract: str
) -> None:
    await store.types.declare([JobType("still", contract, renews=False)])
    for kind, renewed in (("still", False), ("other", True)):
        job = await made_and_taken(store, contract, kind)
        left(db, job.id, BUILT_IN[contract].lease.default_ms / 2_500)
        before = db.row(job.id)["lease_expires_at"]
        assert (await store.heartbeat(job.held)).renewed == renewed
        assert (db.row(job.id)["lease_expires_at"] > before) == renewed
        assert db.row(job.id)["last_heartbeat_at"] is not None


@pytest.mark.req("S2-35")
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("policy", ["failed", "dead_lettered", None])
async def test_at_the_end_of_its_budget_a_job_ends_by_the_policy_of_its_type(
    store: Store, db: Harness, policy: str | None, limit: int
) -> None:
    await store.types.declare([JobType("flaky", "reliability", max_attempts=limit, on_exhausted=policy)])
    job_id = await make(store, "reliability", "flaky")
    answers = await fail_to_the_end(store, db, "reliability", "flaky", job_id)
    end = policy or "dead_lettered"
    assert [answer.state for answer in answers] == ["queued"] * (limit - 1) + [end]
    row = shown(db, job_id)
    assert (row["status"], row["attempts"], row["max_attempts"]) == (end, limit, limit)
    cycle = ["job_claimed", "job_started"]
    assert types(db, job_id) == [*cycle, "job_requeued"] * (limit - 1) + [*cycle, f"job_{end}"]
    told = [letter["reason_code"] for letter in letters(db, job_id)]
    assert told == (["exhausted_retries"] if end == "dead_lettered" else [])
    # The execution after the last never starts.
    assert await store.claim("reliability", ["flaky"], worker="w1") == []
    db.log_is_sound(job_id)


async def test_the_policy_is_for_a_spent_budget_only(store: Store, db: Harness) -> None:
    await store.types.declare([JobType("flaky", "reliability", max_attempts=1, on_exhausted="failed")])
    lost = await made_and_taken(store, "reliability", "flaky")
    db.expire(lost.id)
    await store.reap("reliability")
    (letter,) = letters(db, lost.id)
    assert (shown(db, lost.id)["status"], letter["reason_code"]) == ("dead_lettered", "timeout")


@every_contract
async def test_a_types_backoff_is_the_contracts_form_with_the_types_numbers(
    store: Store, db: Harness, contract: str
) -> None:
    limit = 3 if contract == "gate_b2" else 6
    own = JobType("slow", contract, max_attempts=limit, backoff_base_ms=40_000, backoff_cap_ms=90_000)
    await store.types.declare([own])
    for kind, form in (
        ("slow", replace(BUILT_IN[contract].backoff, base_seconds=40, cap_seconds=90)),
        ("other", BUILT_IN[contract].backoff),
    ):
        job_id = await make(store, contract, kind, max_attempts=limit)
        answers = await fail_to_the_end(store, db, contract, kind, job_id)
        waits = [answer.delay_ms for answer in answers if answer.will_retry]
        assert waits == [delay_ms(form, job_id, claims) for claims in range(1, len(answers))]
        assert len(waits) >= 3


@pytest.mark.parametrize("given", [{"backoff_base_ms": 7}, {"backoff_cap_ms": 7}])
async def test_a_type_may_change_one_number_of_the_backoff_and_leave_the_other(
    store: Store, db: Harness, given: dict[str, int]
) -> None:
    await store.types.declare([JobType("slow", "reliability", **given)])  # type: ignore[arg-type]
    seconds = {name.removeprefix("backoff_").replace("_ms", "_seconds"): n / 1_000 for name, n in given.items()}
    form = replace(BUILT_IN["reliability"].backoff, **seconds)  # type: ignore[arg-type]
    job = await made_and_taken(store, "reliability", "slow")
    assert (await store.fail(job.held, TRANSIENT)).delay_ms == delay_ms(form, job.id, 1)


@every_contract
@pytest.mark.parametrize("way", ["claim", "claim_by_id"])
async def test_a_claim_takes_the_lease_of_the_type_unless_it_says_its_own(
    store: Store, db: Harness, contract: str, way: str
) -> None:
    await store.types.declare([JobType("mail", contract, lease_ttl_sec=100)])
    for given, length in ((None, 100), (40_000, 40)):
        job_id = await make(store, contract, "mail")
        if way == "claim":
            job = await take(store, contract, "mail", lease_ms=given)
        else:
            job = await take_by_id(store, contract, job_id, lease_ms=given)
        assert job.id == job_id
        assert lease(db, job_id) == seconds(length)
        # The lease that the claim took is the one that a beat takes again.
        left(db, job_id, length * 0.4)
        noted = await store.heartbeat(job.held)
        assert noted.renewed
        assert noted.lease_expires_at == db.row(job_id)["last_heartbeat_at"] + seconds(length)
        await store.succeed(job.held)


async def test_a_beat_renews_when_half_of_the_types_own_lease_is_gone(store: Store, db: Harness) -> None:
    await store.types.declare([JobType("long", "reliability", lease_ttl_sec=120)])
    job = await made_and_taken(store, "reliability", "long")
    left(db, job.id, 110)
    assert not (await store.heartbeat(job.held)).renewed
    left(db, job.id, 59)
    assert (await store.heartbeat(job.held)).renewed


async def test_both_ways_to_claim_take_the_beat_of_the_type(store: Store, db: Harness) -> None:
    await store.types.declare([JobType("quick", "reliability", lease_ttl_sec=120, heartbeat_sec=10)])
    first = await made_and_taken(store, "reliability", "quick")
    second = await take_by_id(store, "reliability", await make(store, "reliability", "quick"))
    for job in (first, second):
        beat(db, job.id, 21)
        assert await store.reap("reliability"), "two beats of 10 s were missed"
        await store.cancel(job.id, actor="test")


async def test_the_jobs_own_limit_wins_over_the_types_which_wins_over_the_contracts(store: Store, db: Harness) -> None:
    await store.types.declare([JobType("mail", max_attempts=7)])
    batches: list[list[int | None]] = [
        [None],
        [3],
        [3, 3],
        [None, None],
        [3, None, 1],
        [5],
    ]  # the contract's own default is 5
    for limits in batches:
        made = await store.enqueue_many([NewJob("mail", max_attempts=limit) for limit in limits])
        stored = [db.row(answer.job_id)["max_attempts"] for answer in made if isinstance(answer, Enqueued)]
        assert stored == [limit or 7 for limit in limits]
    keyed = [NewJob("mail", key="a"), NewJob("other", key="b"), NewJob("mail", key="c", max_attempts=2)]
    made = await store.enqueue_many(keyed)
    stored = [db.row(answer.job_id)["max_attempts"] for answer in made if isinstance(answer, Enqueued)]
    assert stored == [7, 5, 2]


async def test_a_changed_type_counts_from_the_next_claim_and_enqueue_on(store: Store, db: Harness) -> None:
    own = JobType("mail", "reliability", lease_ttl_sec=30, heartbeat_sec=10, max_attempts=4)
    await store.types.declare([own])
    job = await made_and_taken(store, "reliability", "mail")
    before = db.fingerprint(job.id)
    new = JobType("mail", "reliability", lease_ttl_sec=120, heartbeat_sec=30, max_attempts=2)
    assert await store.types.declare([new]) == 1
    assert db.fingerprint(job.id) == before
    left(db, job.id, 14)
    noted = await store.heartbeat(job.held)
    assert noted.lease_expires_at == shown(db, job.id)["last_heartbeat_at"] + seconds(30)
    beat(db, job.id, 21)
    (outcome,) = await store.reap("reliability")
    assert isinstance(outcome, Moved)
    again = await take(store, "reliability", "mail")
    assert (again.id, lease(db, job.id), shown(db, job.id)["max_attempts"]) == (job.id, seconds(120), 4)
    beat(db, job.id, 59)
    assert await store.reap("reliability") == []
    assert shown(db, await make(store, "reliability", "mail"))["max_attempts"] == 2


async def test_a_job_reclaimed_in_place_takes_the_lease_of_its_type(store: Store, db: Harness) -> None:
    first = await made_and_taken(store, "phase27", "mail")
    db.expire(first.id)
    await store.types.declare([JobType("mail", "phase27", lease_ttl_sec=100)])
    again = await take(store, "phase27", "mail")
    assert (again.id, again.claims, lease(db, again.id)) == (first.id, 2, seconds(100))


async def test_a_type_of_one_contract_leaves_the_same_name_under_another_alone(store: Store, db: Harness) -> None:
    await store.types.declare([
        JobType("mail", "reliability", lease_ttl_sec=120, heartbeat_sec=10, max_attempts=1, on_exhausted="failed",
                renews=False, backoff_base_ms=1, backoff_cap_ms=1),
    ])  # fmt: skip
    for contract in BUILT_IN:
        if contract == "reliability":
            continue
        plain = BUILT_IN[contract]
        job: Job = await made_and_taken(store, contract, "mail")
        row = db.row(job.id)
        assert lease(db, job.id) == timedelta(milliseconds=plain.lease.default_ms)
        beat = plain.lease.heartbeat
        numbers = (plain.budget.default, plain.lease.default_ms, beat.default_ms if beat else None)
        assert (row["max_attempts"], row["lease_ms"], row["heartbeat_ms"]) == numbers
        left(db, job.id, 1)
        assert (await store.heartbeat(job.held)).renewed
        moved = await store.fail(job.held, TRANSIENT)
        assert (moved.will_retry, moved.delay_ms) == (True, delay_ms(plain.backoff, job.id, 1))
