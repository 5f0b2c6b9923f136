"""`transition`: every allowed pair of states by its own path, every other refused in the contract's own words."""

from __future__ import annotations

from itertools import product

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, InvalidTransition
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.contracts.matrix import ALLOWED, job_in
from tests.harness import Harness

#: Where a path goes on by itself from the state that was asked for.
GOES_ON = {"dlq_pending": "failed", "dlq_recorded": "failed"}


@pytest.mark.req("S4-13", "S4-10", "S2-14", "S2-12")
@pytest.mark.parametrize("contract", ALLOWED)
async def test_the_whole_matrix_of_a_document(store: Store, db: Harness, contract: str) -> None:
    states = BUILT_IN[contract].states
    assert (len(states), len(ALLOWED["gate_b2"])) == (7, 8)  # so that document 004 has 41 illegal pairs
    for source, target in product(states, states):
        job_id = await job_in(store, db, contract, source)
        assert db.row(job_id)["state"] == source
        before = db.fingerprint(job_id)
        if (source, target) in ALLOWED[contract]:
            await store.transition(job_id, target, reason="by hand", actor="ada")
            assert db.row(job_id)["state"] == GOES_ON.get(target, target), (source, target)
            assert db.hops(job_id)[-1].endswith(f"->{GOES_ON.get(target, target)}")
        else:
            with pytest.raises(InvalidTransition) as refusal:
                await store.transition(job_id, target, reason="by hand", actor="ada")
            assert refusal.value.reason_code == BUILT_IN[contract].invalid_transition, (source, target)
            assert db.fingerprint(job_id) == before, (source, target)


@pytest.mark.req("S2-17")
async def test_no_request_moves_a_reliability_job_backwards(store: Store, db: Harness) -> None:
    for source, target in (("running", "queued"), ("assigned", "queued"), ("running", "assigned")):
        job_id = await job_in(store, db, "reliability", source)
        before = db.fingerprint(job_id)
        with pytest.raises(InvalidTransition):
            await store.transition(job_id, target, actor="ada")
        assert db.fingerprint(job_id) == before
    for source in ("queued", "assigned", "running"):
        job_id = await job_in(store, db, "reliability", source)
        await store.dead_letter(job_id, reason_code="infrastructure_failure", stage="fetch", actor="policy")
        letter = db.one("select * from tenure_reliability.dead_letters where job_id = %s", job_id)
        assert (letter["reason_code"], letter["stage"]) == ("infrastructure_failure", "fetch")
        assert (letter["last_owner"] is None) == (source == "queued")


async def test_a_retry_by_request_keeps_the_budget(store: Store, db: Harness) -> None:
    job_id = await job_in(store, db, "gate_b2", "running")
    db.sql("update tenure.job set claims = 4, counter = 3 where id = %s", job_id)
    with pytest.raises(InvalidTransition):
        await store.transition(job_id, "retrying", actor="ada")


async def test_a_state_that_the_contract_does_not_know_is_bad_input(store: Store) -> None:
    made = await store.enqueue(NewJob("t"))
    with pytest.raises(BadInput, match="has no state 'paused'; it has queued, running"):
        await store.transition(made.job_id, "paused", actor="ada")
