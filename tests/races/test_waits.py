"""What may happen during a wait, and who does not wait at all: expiry, keys in use, skipped rows, lock timeouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import uuid4

import pytest

from tenure.errors import Busy, IdempotencyConflict, Refused, StaleLease
from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.postgres import connect
from tenure.postgres.store import Store
from tests.clock import MOMENT, TICK, StoppedClock
from tests.holder_calls import calls
from tests.races.sessions import CONTRACTS, PATIENT, TRANSIENT, Arena, now

pytestmark = pytest.mark.core

ENDS = pytest.mark.parametrize("end", ["commit", "rollback"])


@pytest.mark.parametrize(
    ("contract", "verb"),
    [(contract, verb) for contract in CONTRACTS for verb in ("succeed", "fail")] + [("reliability", "start")],
)
def test_lease_that_expired_during_the_wait_is_revived_by_nobody(
    arena: Arena, clock: StoppedClock, contract: str, verb: str
) -> None:
    held, _ = arena.held(contract, started=verb != "start")
    expires = MOMENT + timedelta(seconds=1)
    arena.db.sql("update tenure.job set lease_expires_at = %s where id = %s", expires, held.id)
    before = arena.db.fingerprint(held.id)
    arena.first.begin()
    arena.first.lock(held.id)
    answer = arena.behind(lambda: arena.second.finish(verb, held))
    clock.set(expires + TICK)
    arena.first.end("commit")
    outcome = answer.result(60)

    if contract == "reliability":
        assert type(outcome) is StaleLease
        assert arena.db.fingerprint(held.id) == before
    else:  # valid until taken, and nobody took it
        assert type(outcome) is Moved
    arena.db.log_is_sound(held.id)


@pytest.mark.parametrize("verb", ["succeed", "fail"])
def test_holder_that_missed_its_beats_during_the_wait_is_refused(arena: Arena, clock: StoppedClock, verb: str) -> None:
    held, _ = arena.held("reliability")
    arena.db.sql("update tenure.job set last_heartbeat_at = %s where id = %s", MOMENT - timedelta(seconds=29), held.id)
    before = arena.db.fingerprint(held.id)
    arena.first.begin()
    arena.first.lock(held.id)
    answer = arena.behind(lambda: arena.second.finish(verb, held))
    clock.set(MOMENT + timedelta(seconds=1) + TICK)
    arena.first.end("rollback")
    assert type(answer.result(60)) is StaleLease
    assert arena.db.fingerprint(held.id) == before


@ENDS
@pytest.mark.parametrize("body", ["same", "other"])
def test_second_use_of_a_key_waits_for_the_first(arena: Arena, end: str, body: str) -> None:
    key = uuid4().hex
    arena.first.begin()
    (first,) = arena.first.enqueue(NewJob("t", {"n": 1}, key=key))
    second = NewJob("t", {"n": 1 if body == "same" else 2}, key=key)
    answer = arena.behind(lambda: arena.second.enqueue(second))
    arena.first.end(end)
    (outcome,) = answer.result(60)

    assert isinstance(first, Enqueued)
    if end == "rollback":
        assert isinstance(outcome, Enqueued)
        assert outcome.made
        assert outcome.job_id != first.job_id
    elif body == "same":
        assert outcome == Enqueued(first.job_id, made=False)
    else:
        assert type(outcome) is IdempotencyConflict
        assert outcome.job_id == first.job_id
    payloads = arena.db.sql("select payload from tenure.job where idempotency_key = %s", key)
    assert [row["payload"]["n"] for row in payloads] == [2 if (end, body) == ("rollback", "other") else 1]


@ENDS
@pytest.mark.parametrize("contract", ["standard", "phase27", "reliability"])
@pytest.mark.parametrize("verb", ["claim", "claim_by_id"])
def test_second_use_of_a_claim_key_waits_for_the_first_and_wins_no_second_job(
    arena: Arena, contract: str, verb: str, end: str
) -> None:
    made, queue = arena.made(contract)
    arena.second.enqueue(*[NewJob("t", contract=contract, queue=queue)] * 3)
    key = uuid4()

    def call(session: str) -> list[Job | Refused]:
        asking = arena.first if session == "first" else arena.second
        if verb == "claim":
            return [*asking.claim(contract, queue, 2, key)]
        return [asking.claim_by_id(contract, made, key)]

    arena.first.begin()
    first = [job.held for job in call("first") if isinstance(job, Job)]
    answer = arena.behind(lambda: call("second"))
    arena.first.end(end)
    second = [job for job in answer.result(60) if isinstance(job, Job)]

    # When the first rolls back, its jobs are free again, but the second has already put its hand on others.
    assert len(second) == len(first)
    assert [job.held for job in second] == first or (verb, end) == ("claim", "rollback")
    assert {job.lease_owner for job in second} == {"first" if end == "commit" else "second"}
    held = arena.db.sql("select id from tenure.job where lease_token = %s order by id", key)
    assert [row["id"] for row in held] == [job.id for job in second]
    arena.db.log_is_sound(*(job.id for job in second))


def two_alike(arena: Arena, verb: str, contract: str) -> tuple[list[int], str]:
    """Two jobs that the verb would move both."""
    if verb == "settle":
        return [arena.pending(), arena.pending()], ""
    made, queue = arena.made(contract)
    (other,) = arena.second.enqueue(NewJob("t", contract=contract, queue=queue))
    assert isinstance(other, Enqueued)
    ids = [made, other.job_id]
    if verb != "claim":
        jobs = [arena.second.claim_by_id(contract, job_id) for job_id in ids]
        for job in jobs:
            assert isinstance(job, Job)
            if verb == "promote":
                arena.second.finish("fail", job.held)
                arena.second.due(job.id)
        if verb in ("reap", "reclaim"):
            arena.db.expire(*ids)
    return ids, queue


@pytest.fixture
def impatient(arena: Arena) -> Iterator[Arena]:
    """The second session gives up where it would have to wait."""
    arena.second.sql("set lock_timeout = '1s'")
    yield arena
    arena.second.sql(PATIENT)


@pytest.mark.parametrize(
    ("verb", "contract"),
    [("claim", contract) for contract in CONTRACTS]
    + [("reap", contract) for contract in CONTRACTS if contract != "phase27"]
    + [("reclaim", "phase27"), ("reclaim", "reliability"), ("promote", "dispatcher"), ("settle", "gate_b2")],
)
def test_verbs_that_find_their_jobs_skip_a_locked_row_without_waiting(
    impatient: Arena, verb: str, contract: str
) -> None:
    arena = impatient
    (locked, free), queue = two_alike(arena, verb, contract)
    before, hops = arena.db.fingerprint(locked), len(arena.db.log(free))
    arena.first.begin()
    arena.first.lock(locked)
    if verb in ("claim", "reclaim"):
        moved = [job.id for job in arena.second.claim(contract, queue, 10)]
    else:
        moved = [outcome.job_id for outcome in arena.second.upkeep(verb, contract) if isinstance(outcome, Moved)]

    assert free in moved
    assert locked not in moved
    arena.first.end("rollback")
    assert arena.db.fingerprint(locked)[0] == before[0]
    assert len(arena.db.log(free)) > hops
    arena.db.log_is_sound(locked, free)


@pytest.fixture
async def impatient_store(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store that waits 300 ms for a row."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 300)
    async with Store.open(arena.dsn) as store:
        yield store


def fifty(arena: Arena, contract: str, *, started: bool) -> list[Held]:
    """Fifty held jobs."""
    _, queue = arena.made(contract)
    arena.second.enqueue(*[NewJob("t", contract=contract, queue=queue)] * 49)
    held = [job.held for job in arena.second.claim(contract, queue, 50)]
    if started:
        now(arena.second.store.report("start", calls(held)))
    return held


@pytest.mark.parametrize(
    ("contract", "verb"),
    [("standard", "succeed"), ("gate_b2", "fail"), ("reliability", "start"), ("reliability", "succeed")],
)
async def test_one_locked_row_does_not_stall_the_batch(
    arena: Arena, impatient_store: Store, contract: str, verb: str
) -> None:
    held = fifty(arena, contract, started=verb != "start")
    locked = held[17]
    before = arena.db.fingerprint(locked.id)[0]
    arena.first.begin()
    arena.first.lock(locked.id)
    if verb == "fail":
        outcomes = [*await impatient_store.report("fail", calls(held, failures=[TRANSIENT] * 50))]
    elif verb == "start":
        outcomes = [outcome for outcome in await impatient_store.report("start", calls(held)) if outcome is not None]
    else:
        outcomes = [*await impatient_store.report("succeed", calls(held))]
    arena.first.end("rollback")

    assert len(held) == len(outcomes) == 50
    for one, outcome in zip(held, outcomes, strict=True):
        assert outcome.job_id == one.id
        assert type(outcome) is (Busy if one is locked else Moved), outcome
    assert arena.db.fingerprint(locked.id)[0] == before
    arena.db.log_is_sound(*(one.id for one in held))


async def test_claim_by_id_of_a_locked_row_is_busy_takes_nothing_and_can_be_repeated(
    arena: Arena, impatient_store: Store
) -> None:
    ids, key = [arena.made("standard")[0], arena.made("standard")[0]], uuid4()
    before = arena.db.fingerprint(ids[1])
    arena.first.begin()
    arena.first.lock(ids[0])
    with pytest.raises(Busy):
        await impatient_store.claim_by_id(ids, worker="w", claim_key=key)
    assert arena.db.fingerprint(ids[1]) == before
    arena.first.end("rollback")
    won = await impatient_store.claim_by_id(ids, worker="w", claim_key=key)
    assert [type(answer) for answer in won] == [Job, Job]
    arena.db.log_is_sound(*ids)


async def test_key_in_somebodys_open_transaction_is_refused_in_our_own_words(
    arena: Arena, impatient_store: Store
) -> None:
    key = uuid4().hex
    arena.first.begin()
    arena.first.enqueue(NewJob("t", key=key))
    with pytest.raises(Refused):
        await impatient_store.enqueue(NewJob("t", key=key))
    arena.first.end("rollback")
