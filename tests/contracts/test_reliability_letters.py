"""Document 002: dead_lettered means a dead letter with its reason and stage, written in the same transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import psycopg
import pytest

from tenure.errors import TenureError
from tenure.jobs.job import Failure
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
)
from tests.harness import Harness

Way = Callable[[Store, Harness], Awaitable[int]]


async def _operator(standing: str, store: Store, db: Harness) -> int:
    job_id = await make(store)
    if standing != "queued":
        await (assigned if standing == "assigned" else running)(store)
    await store.dead_letter(job_id, reason_code="policy_violation", stage="fetch", actor="ada")
    return job_id


async def _transition(standing: str, store: Store, db: Harness) -> int:
    job_id = await make(store)
    if standing != "queued":
        await (assigned if standing == "assigned" else running)(store)
    await store.transition(job_id, "dead_lettered", reason="by hand", actor="ada")
    return job_id


async def _fail(store: Store, db: Harness, failure: Failure, started: bool = True) -> int:
    job_id = await make(store, max_attempts=1)
    job = await (running if started else assigned)(store)
    await store.fail(job.held, failure)
    return job_id


async def _expire(store: Store, db: Harness, started: bool, *, orphaned: bool = False) -> int:
    job_id = await make(store, max_attempts=1)
    await (running if started else assigned)(store)
    if orphaned:
        db.sql("update tenure.job set last_heartbeat_at = now() - interval '1 hour' where id = %s", job_id)
    else:
        db.expire(job_id)
    await store.reap("reliability")
    return job_id


async def _closed_by_a_claim(store: Store, db: Harness) -> int:
    job_id = await make(store, max_attempts=1)
    await running(store)
    db.expire(job_id)
    assert await store.claim("reliability", worker="w2") == []
    return job_id


async def _handed_back(store: Store, db: Harness) -> int:
    job_id = await make(store, max_attempts=1)
    await store.hand_back((await running(store)).held)
    return job_id


async def _undone(store: Store, db: Harness) -> int:
    await make(store, max_attempts=1)
    job = await running(store)
    await store.effect(job.held, "charge", compensable=True)
    await store.fail(job.held, TRANSIENT)
    await store.compensated(job.held)
    return job.id


async def _not_undone(store: Store, db: Harness) -> int:
    job = await compensating(store)
    await store.compensation_failed(job.held, REFUND_REFUSED)
    return job.id


async def _lost_with_effects(store: Store, db: Harness) -> int:
    await make(store, max_attempts=1)
    job = await running(store)
    await store.effect(job.held, "charge", compensable=True)
    db.expire(job.id)
    await store.reap("reliability")
    return job.id


#: Every way to dead_lettered → (how, reason code, stage).
WAYS: dict[str, tuple[Way, str, str]] = {
    **{
        f"an operator, from {standing}": (partial(_operator, standing), "policy_violation", "fetch")
        for standing in ("queued", "assigned", "running")
    },
    **{
        f"a request for the state, from {standing}": (partial(_transition, standing), "policy_violation", "exec")
        for standing in ("queued", "assigned", "running")
    },
    "input that is invalid": (lambda s, d: _fail(s, d, INVALID), "validation_failed", "input"),
    "a payload that cannot be read": (
        lambda s, d: _fail(s, d, Failure("no", "ValidationError", "parse_error", stage="input"), started=False),
        "parse_error", "input",
    ),
    "a policy": (lambda s, d: _fail(s, d, Failure("no", "PolicyViolation")), "policy_violation", "exec"),
    "the last attempt": (lambda s, d: _fail(s, d, TRANSIENT), "exhausted_retries", "exec"),
    "a dependency on the last attempt": (
        lambda s, d: _fail(s, d, Failure("no", "DependencyUnavailable", stage="fetch")),
        "dependency_unavailable", "fetch",
    ),
    "a lost machine on the last attempt": (
        lambda s, d: _fail(s, d, Failure("no", "InfrastructureFailure", stage="commit")),
        "infrastructure_failure", "commit",
    ),
    "a lease that ran out before the start": (lambda s, d: _expire(s, d, False), "timeout", "exec"),
    "a lease that ran out": (lambda s, d: _expire(s, d, True), "timeout", "exec"),
    "missed heartbeats": (lambda s, d: _expire(s, d, True, orphaned=True), "timeout", "exec"),
    "a lease that the next claim closes": (_closed_by_a_claim, "timeout", "exec"),
    "a last attempt that is handed back": (_handed_back, "timeout", "exec"),
    "effects that were undone first": (_undone, "exhausted_retries", "exec"),
    "effects that could not be undone": (_not_undone, "compensation_failed", "commit"),
    "effects whose worker was lost": (_lost_with_effects, "compensation_failed", "exec"),
}  # fmt: skip


@pytest.mark.req("S2-09")
@pytest.mark.parametrize("way", WAYS)
async def test_a_job_and_its_dead_letter_are_written_together_with_reason_and_stage(
    store: Store, db: Harness, way: str
) -> None:
    how, reason, stage = WAYS[way]
    job_id = await how(store, db)
    assert shown(db, job_id)["status"] == "dead_lettered"
    (letter,) = letters(db, job_id)
    assert (letter["reason_code"], letter["stage"]) == (reason, stage)
    written = db.one(
        "select d.xmin::text as job, l.xmin::text as letter, e.xmin::text as event from tenure.job_done d "
        "join tenure.dead_letter l on l.job_id = d.id join tenure.event e on (e.job_id, e.seq) = (d.id, d.seq) "
        "where d.id = %s", job_id,
    )  # fmt: skip
    assert written["job"] == written["letter"] == written["event"]
    assert events(db, job_id)[-1]["type"] == "job_dead_lettered"


@pytest.mark.req("S2-09")
async def test_no_other_end_has_a_dead_letter_and_a_letter_that_cannot_be_written_keeps_the_job(
    store: Store, db: Harness
) -> None:
    await make(store)
    await store.succeed((await running(store)).held)
    await make(store)
    await store.fail((await running(store)).held, PERMANENT)
    await make(store)
    await store.cancelled((await running(store)).held, "asked to")
    await make(store)
    await store.fail((await running(store)).held, TRANSIENT)
    assert db.sql("select * from tenure.dead_letter") == []
    db.sql("delete from tenure.job")
    job_id = await make(store, max_attempts=1)
    job = await running(store)
    db.sql("alter table tenure.dead_letter add constraint none check (false)")
    before = db.fingerprint(job_id)
    for failure in (INVALID, TRANSIENT):
        with pytest.raises((TenureError, psycopg.Error)):
            await store.fail(job.held, failure)
    assert db.fingerprint(job_id) == before
    assert shown(db, job_id)["status"] == "running"


def test_every_path_to_dead_lettered_writes_a_letter_and_is_tried_above() -> None:
    paths = [path for path in RELIABILITY.paths if path.end.state == "dead_lettered"]
    assert all(path.letter in RELIABILITY.dead_letters.reasons for path in paths)
    assert {path.trigger for path in paths} == {"exhaust", "expire_at_cap", "dead_letter", "compensation_failed"}
    assert {path.trigger for path in RELIABILITY.paths if path.letter} == {path.trigger for path in paths}
