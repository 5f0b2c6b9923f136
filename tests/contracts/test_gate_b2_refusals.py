"""Document 004, a second end of a job that failed for good: its last holder is told the document's own code."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from tenure.errors import InvalidTransition, StaleLease
from tenure.postgres.store import Store
from tenure.queue import AsyncTaskQueue
from tests.contracts.gate_b2 import PERMANENT, TRANSIENT, fail, left_pending, make, shown, take
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core

CODE, LOST = "WF_STATE_TRANSITION_INVALID", "LEASE_CONFLICT"


@pytest.mark.req("S4-13")
@pytest.mark.parametrize("state", ["dlq_pending", "failed"])
async def test_the_holder_that_failed_a_job_for_good_is_refused_in_the_documents_code(
    store: Store, db: Harness, state: str
) -> None:
    job_id = await make(store)
    if state == "dlq_pending":
        (held,) = await left_pending(store, db, job_id, key="done")
    else:
        held = await take(store, db, job_id)
        await store.fail(held, PERMANENT, key="done")
    row, before = db.row(job_id), db.fingerprint(job_id)
    assert (row["state"], row["lease_owner"], row["lease_expires_at"]) == (state, None, None)
    for call in (
        store.succeed(held, {"n": 1}), store.succeed(held, {"n": 1}, key="other"), store.fail(held, PERMANENT),
        store.fail(held, TRANSIENT), store.heartbeat(held), store.effect(held, "charge"), store.hand_back(held),
    ):  # fmt: skip
        with pytest.raises(InvalidTransition) as refusal:
            await call
        assert (refusal.value.reason_code, refusal.value.state) == (CODE, state)
    assert db.fingerprint(job_id) == before
    # Another token or another claim is no proof: that is a stale lease.
    for stranger in (replace(held, token=uuid4()), replace(held, claims=held.claims + 1)):
        with pytest.raises(StaleLease):
            await store.succeed(stranger)
    assert db.fingerprint(job_id) == before
    assert (await store.fail(held, PERMANENT, key="done")).trigger == "fatal", "the same key gets the first answer"


@pytest.mark.req("S4-13")
async def test_every_surface_refuses_a_second_end_of_a_failed_job_in_the_documents_code(
    dsn: str, store: Store, db: Harness
) -> None:
    job_id = await make(store)
    first = await take(store, db, job_id, "w1")
    await store.fail(first, TRANSIENT)
    last = await take(store, db, job_id, "w2")
    await store.fail(last, PERMANENT)
    before = db.fingerprint(job_id)
    async with AsyncTaskQueue(dsn, contract="gate_b2") as queue:
        for call in (queue.complete_task(last, "late"), queue.fail_task(last, "late", retry=True)):
            with pytest.raises(InvalidTransition) as refusal:
                await call
            assert (refusal.value.reason_code, refusal.value.state) == (CODE, "failed")
    ended = [
        *await store.report("succeed", calls([last, first])),
        *await store.report("fail", calls([first, last], failures=[TRANSIENT] * 2)),
    ]
    assert [getattr(one, "reason_code", None) for one in ended] == [CODE, LOST, LOST, CODE]
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S4-13")
@pytest.mark.parametrize("lost", ["by an operator", "by expiry"])
async def test_a_holder_that_lost_the_job_before_it_failed_has_a_stale_lease(
    store: Store, db: Harness, lost: str
) -> None:
    job_id = await make(store)
    if lost == "by expiry":
        await fail(store, db, job_id, 3)
    held = await take(store, db, job_id)
    if lost == "by expiry":
        db.expire(job_id)
        await store.reap("gate_b2")
    else:
        await store.transition(job_id, "dlq_pending", actor="ada")
    assert shown(db, job_id)["status"] == "failed"
    before = db.fingerprint(job_id)
    for call in (store.succeed(held), store.fail(held, PERMANENT)):
        with pytest.raises(StaleLease):
            await call
    assert db.fingerprint(job_id) == before
