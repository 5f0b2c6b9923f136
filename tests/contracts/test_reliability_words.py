"""Document 002, its words: eight reasons, five stages, nine event types, and when each of them is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from tenure.errors import BadInput, Refused
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.postgres.store import Store
from tests.contracts.compensation import REFUND_REFUSED, compensating
from tests.contracts.reliability import (
    INVALID,
    PERMANENT,
    RELIABILITY,
    TRANSIENT,
    assigned,
    events,
    letters,
    make,
    running,
    shown,
    types,
)
from tests.harness import Harness

EIGHT = {
    "parse_error", "validation_failed", "dependency_unavailable", "timeout", "exhausted_retries", "policy_violation",
    "infrastructure_failure", "compensation_failed",
}  # fmt: skip
FIVE = ("fetch", "input", "exec", "output", "commit")
NINE = {
    "job_claimed", "job_started", "job_lease_renewed", "job_heartbeat", "job_succeeded", "job_failed",
    "job_cancelled", "job_dead_lettered", "job_compensated",
}  # fmt: skip


async def set_aside(store: Store, reason: str, standing: str) -> int:
    """A job that an operator or a policy set aside for this reason, from where it stood."""
    job_id = await make(store)
    if standing != "queued":
        await (assigned if standing == "assigned" else running)(store)
    await store.dead_letter(job_id, reason_code=reason, actor="policy")
    return job_id


async def ended(store: Store, db: Harness, reason: str) -> int:
    """A job that came to its dead letter the way that this reason names."""
    standing = {"parse_error": "queued", "dependency_unavailable": "assigned", "policy_violation": "assigned"}
    if reason == "validation_failed":
        job_id = await make(store)
        await store.fail((await running(store)).held, INVALID)
    elif reason == "exhausted_retries":
        job_id = await make(store, max_attempts=1)
        await store.fail((await running(store)).held, TRANSIENT)
    elif reason == "timeout":
        job_id = await make(store, max_attempts=1)
        await running(store)
        db.expire(job_id)
        await store.reap("reliability")
    elif reason == "compensation_failed":
        job = await compensating(store)
        await store.compensation_failed(job.held, REFUND_REFUSED)
        job_id = job.id
    else:
        job_id = await set_aside(store, reason, standing.get(reason, "running"))
    return job_id


@pytest.mark.req("S2-41")
async def test_each_of_the_eight_reasons_has_its_way_and_there_is_no_ninth(store: Store, db: Harness) -> None:
    assert set(RELIABILITY.dead_letters.reasons) == EIGHT
    for reason in sorted(EIGHT):
        job_id = await ended(store, db, reason)
        (letter,) = letters(db, job_id)
        assert (letter["reason_code"], shown(db, job_id)["status"]) == (reason, "dead_lettered")
        assert letter["stage"] in FIVE
    waiting = await make(store)
    before = db.fingerprint(waiting)
    strangers: tuple[Any, ...] = ("worker_lost", "operator", "PARSE_ERROR", "", " timeout", "a\x00b", 7)
    for stranger in strangers:
        with pytest.raises(BadInput, match="reason_code"):
            await store.dead_letter(waiting, reason_code=stranger, actor="ada")
    assert db.fingerprint(waiting) == before
    # The words of whoever asks for the state are a reason, but no reason code.
    await store.transition(waiting, "dead_lettered", reason="looks wrong to me", actor="ada")
    assert events(db, waiting)[-1]["payload"]["reason"] == "looks wrong to me"
    assert {row["reason_code"] for row in db.sql("select * from tenure_reliability.dead_letters")} == EIGHT


async def test_a_job_is_set_aside_for_a_reason_or_not_at_all(store: Store, db: Harness) -> None:
    job_id = await make(store)
    nothing: Any = None
    with pytest.raises(BadInput, match="reason_code"):
        await store.dead_letter(job_id, reason_code=nothing, actor="ada")
    assert shown(db, job_id)["status"] == "queued"


@pytest.mark.req("S2-41", "S2-43")
async def test_the_database_knows_no_other_reason_and_no_other_stage(store: Store, db: Harness) -> None:
    job_id = await set_aside(store, "policy_violation", "queued")
    for column in ("reason_code", "stage"):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.sql(f"update tenure.dead_letter set {column} = 'banana' where job_id = %s", job_id)


async def test_the_stage_in_which_a_job_failed_is_on_its_letter_and_no_sixth_can_be_asked_for(
    store: Store, db: Harness
) -> None:
    assert RELIABILITY.dead_letters.stages == FIVE
    for stage in FIVE:
        ids = [await make(store, max_attempts=1) for _ in range(3)]
        jobs = [await running(store) for _ in ids]
        await store.fail(jobs[0].held, Failure("no", type="ValidationError", stage=stage))
        await store.fail(jobs[1].held, Failure("no", type="TransientError", stage=stage))
        await store.dead_letter(ids[2], reason_code="infrastructure_failure", stage=stage, actor="ada")
        told = [(letter["stage"], letter["reason_code"]) for job_id in ids for letter in letters(db, job_id)]
        reasons = ("validation_failed", "exhausted_retries", "infrastructure_failure")
        assert told == [(stage, reason) for reason in reasons]
    unsaid = await ended(store, db, "exhausted_retries")
    assert letters(db, unsaid)[0]["stage"] == "exec"
    waiting = await make(store)
    before = db.fingerprint(waiting)
    for stranger in ("execute", "Input", "", "a\x00b"):
        with pytest.raises(BadInput, match="stage"):
            await store.dead_letter(waiting, reason_code="parse_error", stage=stranger, actor="ada")
    assert db.fingerprint(waiting) == before


@pytest.mark.req("S2-43")
async def test_a_failure_of_an_unknown_stage_is_kept_as_it_was_told_and_the_letter_says_exec(
    store: Store, db: Harness
) -> None:
    strange = Failure("no", type="ValidationError", stage="warp core")
    failed = await make(store)
    await store.fail((await running(store)).held, strange)
    undoing = await compensating(store)
    await store.compensation_failed(undoing.held, strange)
    for job_id in (failed, undoing.id):
        (letter,) = letters(db, job_id)
        # A failure can always be reported; but the letter's stage is one of the five.
        assert letter["last_error"]["stage"] == "warp core"
        assert letter["stage"] == "exec"


@pytest.mark.req("S2-45", "S2-49")
async def test_each_action_is_told_by_its_own_event_and_no_other_type_exists(store: Store, db: Harness) -> None:
    async def new(fate: Callable[[Any], Awaitable[object]], **given: Any) -> list[str]:
        """What is told of a running job from the moment that this happens to it."""
        job_id = await make(store, **given)
        (job,) = await store.claim_by_id([job_id], worker="w1", contract="reliability")
        assert isinstance(job, Job)
        await store.start(job.held)
        logged = len(types(db, job_id))
        await fate(job)
        return types(db, job_id)[logged:]

    async def renewed(job: Any) -> None:
        db.wear(job.id)
        await store.heartbeat(job.held)

    async def undone(job: Any) -> None:
        await store.effect(job.held, "charge", compensable=True)
        await store.fail(job.held, PERMANENT)
        await store.compensated(job.held)

    async def expired(job: Any) -> None:
        db.expire(job.id)
        await store.reap("reliability")

    queued = await make(store)
    assert types(db, queued) == [], "birth is no transition"
    job = await assigned(store)
    assert types(db, queued) == ["job_claimed"]
    await store.start(job.held)
    assert types(db, queued) == ["job_claimed", "job_started"]
    assert await new(lambda job: store.succeed(job.held)) == ["job_succeeded"]
    assert await new(lambda job: store.fail(job.held, PERMANENT)) == ["job_failed"]
    assert await new(lambda job: store.cancelled(job.held)) == ["job_cancelled"]
    assert await new(lambda job: store.cancel(job.id, mode="hard", actor="ada")) == ["job_cancelled"]
    assert await new(lambda job: store.fail(job.held, INVALID)) == ["job_dead_lettered"]
    assert await new(lambda job: store.fail(job.held, TRANSIENT), max_attempts=1) == ["job_dead_lettered"]
    assert await new(expired, max_attempts=1) == ["job_dead_lettered"]
    aside = await new(lambda job: store.dead_letter(job.id, reason_code="policy_violation", actor="ada"))
    assert aside == ["job_dead_lettered"]
    assert await new(lambda job: store.heartbeat(job.held)) == ["job_heartbeat"]
    assert await new(renewed) == ["job_heartbeat", "job_lease_renewed"]
    assert await new(undone) == ["job_compensated", "job_failed"]
    # The one declared extension: the document has no word for a way back.
    assert await new(expired) == ["job_requeued"]
    assert await new(lambda job: store.fail(job.held, TRANSIENT)) == ["job_requeued"]
    # What is neither a transition nor one of the document's facts is told by no event.
    for silent in (
        lambda job: store.progress(job.held, 1), lambda job: store.checkpoint(job.held, 1),
        lambda job: store.effect(job.held, "mail"), lambda job: store.cancel(job.id, actor="ada"),
    ):  # fmt: skip
        assert await new(silent) == []
    told = {row["type"] for row in db.sql("select distinct type from tenure_reliability.job_events")}
    assert told == NINE | {"job_requeued"}
    assert {event.name for event in RELIABILITY.events} == told


@pytest.mark.req("S2-07")
async def test_failed_is_said_once_and_last_and_never_of_a_failure_that_is_tried_again(
    store: Store, db: Harness
) -> None:
    await store.types.declare([JobType("index", "reliability", max_attempts=3, on_exhausted="failed")])
    retried, fatal = await make(store), await make(store, queue="other")
    for n in range(3):
        assert shown(db, retried)["status"] == "queued", "a failure that is tried again is not failed"
        held = (await running(store)).held
        assert (await store.fail(held, TRANSIENT)).will_retry == (n < 2)
        db.due(retried)
    (other,) = await store.claim("reliability", ["other"], worker="w1")
    await store.start(other.held)
    await store.fail(other.held, PERMANENT)
    for job_id, runs in ((retried, 3), (fatal, 1)):
        assert (shown(db, job_id)["status"], shown(db, job_id)["attempts"]) == ("failed", runs)
        assert types(db, job_id).count("job_failed") == 1
        before = db.fingerprint(job_id)
        last = held if job_id == retried else other.held
        late: list[Awaitable[object]] = [
            store.fail(last, PERMANENT), store.succeed(last), store.heartbeat(last), store.start(last),
            store.cancel(job_id, mode="hard", actor="ada"), store.transition(job_id, "queued", actor="ada"),
            store.dead_letter(job_id, reason_code="policy_violation", actor="ada"),
        ]  # fmt: skip
        for call in late:
            with pytest.raises(Refused):
                await call
        assert await store.reap("reliability") == []
        assert db.fingerprint(job_id) == before
        assert types(db, job_id)[-1] == "job_failed"
        # Running it again is another job.
        again = await store.requeue(job_id, actor="ada")
        assert (again != job_id, shown(db, job_id)["status"], db.fingerprint(job_id)) == (True, "failed", before)


@pytest.mark.req("S2-15")
async def test_jobs_are_born_queued_only(store: Store, db: Harness) -> None:
    made = await store.enqueue_many([NewJob("index", contract="reliability", delay_ms=n) for n in (0, 60_000)])
    assert {row["status"] for row in db.sql("select status from tenure_reliability.jobs")} == {"queued"}
    roles = {state: roles[0] for state, roles in RELIABILITY.states.items() if state != "queued"}
    assert len(roles) == 6
    taken = []
    for state, role in roles.items():
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            db.sql("insert into tenure_reliability.jobs (status, type) values (%s, 'index')", state)
        for born in {role, "ready"}:
            try:
                db.sql(
                    "insert into tenure.job (contract, version, state, role, type, max_attempts) "
                    "values ('reliability', '1', %s, %s, 'index', 3)", state, born,
                )  # fmt: skip
            except psycopg.errors.CheckViolation:
                continue
            taken.append((state, born))
    assert taken == []
    assert len(made) == db.value("select count(*) from tenure.job")


@pytest.mark.req("S2-32")
async def test_after_an_expiry_another_claims_and_no_effect_is_had_twice(store: Store, db: Harness) -> None:
    job_id = await make(store)
    zombie = await running(store, "w1")
    assert (await store.effect(zombie.held, "charge", {"receipt": 1})).recorded
    db.expire(job_id)
    # Nobody has taken it yet: the lease is forfeited all the same.
    for node in ("charge", "ship"):
        with pytest.raises(Refused):
            await store.effect(zombie.held, node, {"receipt": 9})
    second = await running(store, "w2")
    assert (second.id, second.claims) == (job_id, 2)
    for node in ("charge", "ship"):
        with pytest.raises(Refused):
            await store.effect(zombie.held, node, {"receipt": 9})
    had = await store.effect(second.held, "charge", {"receipt": 2})
    assert (had.recorded, had.result_json) == (False, '{"receipt": 1}')
    assert (await store.effect(second.held, "ship", {"parcel": 1})).recorded
    await store.succeed(second.held)
    for node in ("charge", "mail"):
        for late in (zombie, second):
            with pytest.raises(Refused):
                await store.effect(late.held, node)
    rows = db.sql("select node, claims, result from tenure.effect where job_id = %s order by at", job_id)
    assert [(row["node"], row["claims"], row["result"]) for row in rows] == [
        ("charge", 1, {"receipt": 1}),
        ("ship", 2, {"parcel": 1}),
    ]
