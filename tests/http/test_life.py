"""A job's life over HTTP, under every contract: made, claimed, begun, ended; and the same through batches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.http import long_poll
from tests.harness import Harness
from tests.http.conftest import Caller, proof
from tests.worker.working import until

ENDS = {name: path.end.state for name, contract in BUILT_IN.items() if (path := contract.path("succeed"))}


@pytest.mark.parametrize("contract", sorted(BUILT_IN))
def test_a_job_is_made_claimed_begun_and_ended(http: Caller, db: Harness, contract: str) -> None:
    job_id = http.enqueued(contract, payload={"n": 1}, queue="mail", priority=3)
    shown = http.get(f"/api/v1/jobs/{job_id}")
    assert (shown["state"], shown["payload"], shown["queue"]) == (BUILT_IN[contract].initial, {"n": 1}, "mail")
    assert job_id in map(str, shown["record"].values())
    (claim,) = http.claimed(contract, queues=["mail"])
    assert (claim["job"]["id"], claim["claims"]) == (job_id, 1)
    assert claim["job"]["record"] is not None
    start = http.post(f"/api/v1/jobs/{job_id}/start", proof(claim))
    assert start["moved"] is (BUILT_IN[contract].path("start") is not None)
    beat = http.post(f"/api/v1/jobs/{job_id}/heartbeat", proof(claim))
    assert beat["cancel_requested"] is False
    assert http.post(f"/api/v1/jobs/{job_id}/progress", proof(claim, value=0.5))["moved"] is False
    assert http.post(f"/api/v1/jobs/{job_id}/checkpoint", proof(claim, value={"page": 7}))["moved"] is False
    ended = http.post(f"/api/v1/jobs/{job_id}/succeed", proof(claim, result={"ok": True}))
    assert (ended["moved"], ended["state"], ended["role"]) == (True, ENDS[contract], "done")
    after = http.get(f"/api/v1/jobs/{job_id}")
    assert (after["state"], after["result"], after["checkpoint"]) == (ENDS[contract], {"ok": True}, {"page": 7})
    log = http.get(f"/api/v1/jobs/{job_id}/events")["events"]
    assert [event["to_state"] for event in log if event["hop"]] == [hop.split("->")[1] for hop in db.hops(int(job_id))]
    db.log_is_sound(int(job_id))


def test_late_holders_are_refused_and_nothing_changes(http: Caller, db: Harness) -> None:
    job_id = http.enqueued()
    (claim,) = http.claimed()
    db.expire(int(job_id))
    before = db.fingerprint(int(job_id))
    wrong: list[dict[str, Any]] = [
        {**proof(claim), "claims": 2},
        {**proof(claim), "lease_token": "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"},
    ]
    for body in wrong:
        for verb in ("succeed", "fail", "heartbeat", "hand-back", "cancelled"):
            http.refused(f"/api/v1/jobs/{job_id}/{verb}", body, 409, "LEASE_CONFLICT")
        value: dict[str, Any] = {"value": 1}
        facts = {"progress": value, "checkpoint": value, "effect": {"node": "a"}, "snooze": {"seconds": 1}}
        for verb, fact in facts.items():
            http.refused(f"/api/v1/jobs/{job_id}/{verb}", {**body, **fact}, 409, "LEASE_CONFLICT")
    assert db.fingerprint(int(job_id)) == before


async def test_a_waiting_claim_is_answered_when_a_job_is_made_and_not_when_somebody_looks(
    http: Caller, waited: list[long_poll.ClaimGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "_POLL_S", 60)
    waiting = asyncio.create_task(asyncio.to_thread(http.claimed, wait_seconds=60))
    await until(lambda: bool(waited))
    job_id = http.enqueued()
    won = await waiting  # who waits to the end would find it, too, but later than this client waits for an answer
    assert [claim["job"]["id"] for claim in won] == [job_id]
