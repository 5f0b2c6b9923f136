"""Leases and due times run from the database's clock, also after it stepped back; a cancel asked for meanwhile holds.

A clock that stepped back leaves rows whose last change lies ahead of now. The log's own time must rise all the same,
but nobody may be leased, delayed or kept waiting for the difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.contracts.notation import path, states
from tenure.errors import InvalidTransition
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.harness import Harness

CLAIMS = ["claim", "claim_by_id"]
LEASE_MS = 20_000
NAMES = ["standard", "phase27", "gate_b2", "simple"]

_STATES = states(asked="ready", doing="active", made="done", spoilt="done", dropped="done")

#: Reclaimed in place, and cancelled on request.
BREAD: Contract = replace(
    BUILT_IN["phase27"],
    name="bread",
    title="Bread: asked, doing, then made, spoilt or dropped",
    states=_STATES,
    initial="asked",
    paths=(
        path("claim", "asked > doing"),
        path("reclaim", "doing > doing"),
        path("succeed", "doing > made"),
        path("retry", "doing > asked", due="backoff"),
        path("exhaust", "doing > spoilt"),
        path("expire_at_cap", "doing > spoilt"),
        path("cancel", "asked|doing > dropped"),
    ),
    views=(),
    events=(),
    cancel_modes=("soft",),
    knobs={},
)


async def taken(store: Store, how: str, job_id: int, contract: str = "standard") -> Job:
    """The job, claimed in one of the two ways."""
    if how == "claim":
        (job,) = await store.claim(contract, worker="w", lease_ms=LEASE_MS)
    else:
        answer = (await store.claim_by_id([job_id], worker="w", contract=contract, lease_ms=LEASE_MS))[0]
        assert isinstance(answer, Job)
        job = answer
    assert job.id == job_id
    return job


def step_back(db: Harness, job_id: int) -> datetime:
    """Let the clock have been an hour ahead when this job was last changed; what time it is."""
    db.sql("update tenure.job set updated_at = clock_timestamp() + interval '1 hour' where id = %s", job_id)
    now: datetime = db.value("select updated_at - interval '1 hour' from tenure.job where id = %s", job_id)
    return now


def is_ahead(db: Harness, since: datetime, at: object, ms: int) -> None:
    """Assert that a time lies this far ahead of what the database's clock said at some moment since then."""
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    assert isinstance(at, datetime)
    assert since <= at - timedelta(milliseconds=ms) <= db.value("select clock_timestamp()"), at


@pytest.mark.parametrize("how", CLAIMS)
@pytest.mark.parametrize("name", NAMES)
async def test_lease_runs_from_the_clock_that_stepped_back(store: Store, db: Harness, how: str, name: str) -> None:
    made = await store.enqueue(NewJob("t", contract=name))
    since = step_back(db, made.job_id)
    job = await taken(store, how, made.job_id, name)
    is_ahead(db, since, job.lease_expires_at, LEASE_MS)
    is_ahead(db, since, db.row(job.id)["lease_expires_at"], LEASE_MS)
    # The log's time rises from what it was.
    is_ahead(db, since, db.log(job.id)[0]["ts"], 3_600_000)


@pytest.mark.parametrize("name", NAMES)
async def test_retry_waits_from_the_clock_that_stepped_back(store: Store, db: Harness, name: str) -> None:
    made = await store.enqueue(NewJob("t", contract=name))
    job = await taken(store, "claim", made.job_id, name)
    since = step_back(db, job.id)
    failed = await store.fail(job.held, Failure("no", retryable=True))
    assert failed.will_retry
    assert failed.delay_ms is not None
    row = db.row(job.id)
    for due in (failed.due_at, row["due_at"], row["last_error"]["due_at"], db.log(job.id)[1]["facts"]["due_at"]):
        is_ahead(db, since, due, failed.delay_ms)
    db.log_is_sound(job.id)


@pytest.mark.parametrize("how", CLAIMS)
async def test_reaped_job_is_claimable_at_once_after_the_clock_stepped_back(
    store: Store, db: Harness, how: str
) -> None:
    made = await store.enqueue(NewJob("t"))
    await taken(store, how, made.job_id)
    since = step_back(db, made.job_id)
    db.expire(made.job_id)
    (reaped,) = await store.reap("standard")
    assert isinstance(reaped, Moved)
    assert (reaped.state, reaped.delay_ms) == ("queued", 0)
    is_ahead(db, since, reaped.due_at, 0)
    again = await taken(store, how, made.job_id)
    assert again.claims == 2
    is_ahead(db, since, again.lease_expires_at, LEASE_MS)
    db.log_is_sound(made.job_id)


@pytest.mark.parametrize("how", CLAIMS)
async def test_reclaimed_job_is_leased_by_the_clock_that_stepped_back(store: Store, db: Harness, how: str) -> None:
    made = await store.enqueue(NewJob("t", contract="phase27"))
    await taken(store, how, made.job_id, "phase27")
    since = step_back(db, made.job_id)
    db.expire(made.job_id)
    again = await taken(store, how, made.job_id, "phase27")
    assert db.hops(made.job_id) == ["queued->running", "running->running"]
    is_ahead(db, since, again.lease_expires_at, LEASE_MS)
    db.log_is_sound(made.job_id)


async def test_log_rises_over_a_whole_life_with_a_clock_that_keeps_stepping_back(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t", contract="gate_b2"))
    for _ in range(4):
        step_back(db, made.job_id)
        db.due(made.job_id)
        job = await taken(store, "claim", made.job_id, "gate_b2")
        step_back(db, made.job_id)
        last = await store.fail(job.held, Failure("no", retryable=True))
    assert last.state == "failed"
    db.log_is_sound(made.job_id)
    assert len(db.log(made.job_id)) == 10


@pytest.fixture
async def bakery(dsn: str) -> AsyncIterator[Store]:
    """A store on a database that knows how bread is made."""
    migrate(dsn, {"bread": BREAD})
    async with Store.open(dsn) as opened:
        yield opened


async def lost(store: Store, db: Harness, cancelled: bool) -> Job:
    """A job whose worker is gone, and of which somebody may have asked that it be cancelled."""
    made = await store.enqueue(NewJob("t", contract="bread"))
    job = await taken(store, "claim", made.job_id, "bread")
    db.expire(job.id)
    if cancelled:
        db.sql("update tenure.job set cancel_requested_at = now() where id = %s", job.id)
    return job


async def test_lost_job_that_is_to_be_cancelled_is_not_claimed_again(bakery: Store, db: Harness) -> None:
    job = await lost(bakery, db, cancelled=True)
    before = db.fingerprint(job.id)
    assert await bakery.claim("bread", worker="w2", limit=5) == []
    (refused,) = await bakery.claim_by_id([job.id], worker="w2", contract="bread")
    assert isinstance(refused, InvalidTransition)
    assert refused.state == "doing"
    assert db.fingerprint(job.id) == before
    assert db.value("select count(*) from tenure.claim") == 1


async def test_lost_job_that_is_to_be_cancelled_is_cancelled_by_upkeep(bakery: Store, db: Harness) -> None:
    job = await lost(bakery, db, cancelled=True)
    (ended,) = await bakery.reap("bread")
    assert isinstance(ended, Moved)
    assert (ended.trigger, ended.state, ended.role) == ("cancel", "dropped", "done")
    assert db.hops(job.id) == ["asked->doing", "doing->dropped"]
    db.log_is_sound(job.id)
    assert db.row(job.id)["last_error"]["type"] == "LeaseExpired"


@pytest.mark.parametrize("how", CLAIMS)
async def test_lost_job_that_nobody_cancels_is_claimed_again(bakery: Store, db: Harness, how: str) -> None:
    job = await lost(bakery, db, cancelled=False)
    assert await bakery.reap("bread") == []
    again = await taken(bakery, how, job.id, "bread")
    assert (again.claims, again.state) == (2, "doing")


async def test_lost_jobs_to_be_cancelled_do_not_use_up_the_limit_of_a_claim(bakery: Store, db: Harness) -> None:
    for _ in range(3):
        await lost(bakery, db, cancelled=True)
    live = await lost(bakery, db, cancelled=False)
    waiting = await bakery.enqueue(NewJob("t", contract="bread"))
    won = await bakery.claim("bread", worker="w2", limit=2)
    assert [job.id for job in won] == [live.id, waiting.job_id]
