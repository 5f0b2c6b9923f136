"""Calls after the lease ran out: valid until somebody takes the job, or forfeited at once; never after a takeover."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import IdempotencyConflict, LeaseConflictError, StaleLease
from tenure.jobs.job import Held, Job
from tenure.jobs.outcome import Effect, Moved, Noted
from tenure.postgres.store import Store
from tests.contracts.repeats import ENDS, GIVES_BACK, everything, hold, next_holder, refusal_of, say
from tests.harness import Harness

every_contract = pytest.mark.parametrize("contract", BUILT_IN)
FORFEITED = ["reliability"]
VALID = [contract for contract in BUILT_IN if contract not in FORFEITED]


def verbs_of(contract: str) -> list[str]:
    """Everything that a holder may say under this contract."""
    noted = ["heartbeat", "progress", "checkpoint", "effect"]
    moved = {*GIVES_BACK[contract], "hand_back", *ENDS[contract]}
    return [*(["start"] if BUILT_IN[contract].path("start") else []), *noted, *sorted(moved)]


def call(store: Store, verb: str, held: Held, key: str | None = None) -> Awaitable[Any]:
    """One call of a holder; notes take no key."""
    match verb:
        case "progress":
            return store.progress(held, {"done": 1})
        case "checkpoint":
            return store.checkpoint(held, {"page": 1})
        case "effect":
            return store.effect(held, "mail")
    return say(store, verb, held, key)


@pytest.mark.parametrize("contract", VALID)
async def test_after_expiry_every_call_of_the_holder_counts_while_nobody_took_the_job(
    store: Store, db: Harness, contract: str
) -> None:
    assert BUILT_IN[contract].lease.after_expiry == "valid_until_taken"
    for verb in verbs_of(contract):
        job = await hold(store, contract, verb)
        db.expire(job.id)
        before = db.fingerprint(job.id)
        assert isinstance(await call(store, verb, job.held), (Moved, Noted, Effect)), verb
        after = db.fingerprint(job.id)
        assert after != before or verb == "effect", verb  # an effect has a row of its own
        db.log_is_sound(job.id)
    assert db.value("select count(*) from tenure.effect") == 1


@pytest.mark.req("S2-21")
@pytest.mark.parametrize("contract", FORFEITED)
@pytest.mark.parametrize("key", [None, "k"])
async def test_after_expiry_every_call_of_a_forfeited_lease_is_refused_though_no_reaper_ran(
    store: Store, db: Harness, contract: str, key: str | None
) -> None:
    for verb in verbs_of(contract):
        job = await hold(store, contract, verb)
        db.expire(job.id)
        before = everything(db)
        refusal = await refusal_of(call(store, verb, job.held, key))
        assert isinstance(refusal, LeaseConflictError), verb
        assert refusal.held_by is None, "nobody else has it"
        assert everything(db) == before, verb
        assert (await store.jobs([job.id]))[0].lease_owner == "w1", "nobody has taken it yet"
        # It was the clock that refused, and no key was spent: with time left the same call counts.
        db.sql("update tenure.job set lease_expires_at = now() + interval '60 s' where id = %s", job.id)
        assert isinstance(await call(store, verb, job.held, key), (Moved, Noted, Effect))


@every_contract
async def test_once_the_job_was_taken_no_call_of_its_old_holder_counts(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in verbs_of(contract):
        if verb.startswith("compensat"):
            continue  # the next holder goes on with the compensation: below
        job = await hold(store, contract, "start" if verb == "start" else "")
        taken = await next_holder(store, db, job)
        before = everything(db)
        for key in (None, "k"):
            refusal = await refusal_of(call(store, verb, job.held, key))
            assert isinstance(refusal, StaleLease), verb
            assert refusal.held_by == "w2", verb
        assert everything(db) == before, verb
        await store.succeed(taken.held)
        db.log_is_sound(job.id)


@pytest.mark.parametrize("contract", [name for name in BUILT_IN if BUILT_IN[name].path("expire")])
async def test_once_the_lease_was_reaped_no_call_of_its_holder_counts_though_nobody_took_the_job(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in verbs_of(contract):
        if verb.startswith("compensat"):
            continue
        job = await hold(store, contract, "start" if verb == "start" else "")
        db.expire(job.id)
        await store.reap(contract)
        before = everything(db)
        for key in (None, "k"):
            refusal = await refusal_of(call(store, verb, job.held, key))
            assert isinstance(refusal, StaleLease), verb
        assert everything(db) == before, verb


async def test_a_compensation_goes_to_the_next_holder_and_the_old_one_cannot_end_it(store: Store, db: Harness) -> None:
    for verb in ("compensated", "compensation_failed"):
        job = await hold(store, "reliability", verb)
        taken = await next_holder(store, db, job)
        before = everything(db)
        for key in (None, "k"):
            assert isinstance(await refusal_of(say(store, verb, job.held, key)), StaleLease)
        assert everything(db) == before
        assert (await say(store, verb, taken.held, "k")).role == "done"
        assert isinstance(await refusal_of(say(store, verb, job.held, "k")), IdempotencyConflict)
        db.log_is_sound(job.id)


@every_contract
async def test_an_expired_lease_with_a_wrong_proof_is_nobodys(store: Store, db: Harness, contract: str) -> None:
    job, other = await hold(store, contract), await hold(store, contract)
    db.expire(job.id)
    before = everything(db)
    wrong = (
        replace(job.held, token=uuid4()),
        replace(job.held, token=other.held.token),
        replace(job.held, claims=job.claims - 1),
        replace(job.held, claims=job.claims + 1),
    )
    for proof in wrong:
        for verb in verbs_of(contract):
            if verb != "start":  # that step is behind this job
                assert isinstance(await refusal_of(call(store, verb, proof, "k")), StaleLease), (verb, proof)
    assert everything(db) == before


@pytest.mark.parametrize("contract", VALID)
async def test_what_was_said_after_expiry_is_answered_again_by_its_key_after_the_takeover(
    store: Store, db: Harness, contract: str
) -> None:
    job = await hold(store, contract)
    db.expire(job.id)
    first = await say(store, "fail", job.held, "k")
    taken: Job = await next_holder(store, db, job)
    before = everything(db)
    assert await say(store, "fail", job.held, "k") == first
    assert isinstance(await refusal_of(say(store, "fail", job.held)), StaleLease)
    assert everything(db) == before
    await store.succeed(taken.held)
