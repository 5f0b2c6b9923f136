"""The oracle numbers of the five documents, over HTTP alone: a handler that always fails in a way that may pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, proof


class Oracle(NamedTuple):
    """What a document says of a job that always fails."""

    executions: int
    counter: int
    end: str
    transitions: int
    delays_ms: list[tuple[int, int]]


ORACLES = {
    "phase27": Oracle(5, 5, "failed", 10, [(1050, 1950), (2100, 3900), (4200, 7800), (8400, 15600)]),
    "dispatcher": Oracle(3, 3, "Failed", 8, [(15000, 45000), (30000, 90000)]),
    "reliability": Oracle(3, 3, "dead_lettered", 9, [(250, 750), (500, 1500)]),
    "simple": Oracle(3, 3, "FAILED", 8, [(750, 1250), (1500, 2500)]),
    "gate_b2": Oracle(4, 3, "failed", 10, [(1000, 1300), (2000, 2300), (4000, 4300)]),
}
LIMITS = {"phase27": 5, "dispatcher": 3, "reliability": 3, "simple": 3, "gate_b2": 3}


async def failing(http: Caller, store: Store, db: Harness, contract: str) -> tuple[str, list[dict[str, Any]]]:
    """A job that fails whenever it runs, until it runs no more; what was answered to each failure."""
    job_id = http.enqueued(contract, max_attempts=LIMITS[contract])
    answers: list[dict[str, Any]] = []
    while won := http.claimed(contract):
        (claim,) = won
        http.post(f"/api/v1/jobs/{job_id}/start", proof(claim))
        error = {"type": "TimeoutError", "message": "no answer", "retryable": True}
        answers.append(http.post(f"/api/v1/jobs/{job_id}/fail", proof(claim, error=error)))
        if answers[-1]["will_retry"]:
            db.due(int(job_id))
            await store.promote(contract)  # what a reconciler does where the contract has one
    return job_id, answers


@pytest.mark.req("S1-84", "S4-59")
@pytest.mark.parametrize("contract", ORACLES)
async def test_a_job_that_always_fails_ends_as_its_document_says(
    http: Caller, store: Store, db: Harness, contract: str
) -> None:
    oracle = ORACLES[contract]
    job_id, answers = await failing(http, store, db, contract)
    shown = http.get(f"/api/v1/jobs/{job_id}")
    hops = [event for event in http.get(f"/api/v1/jobs/{job_id}/events")["events"] if event["hop"]]
    assert len(answers) == oracle.executions == shown["claims"]
    assert (shown["state"], shown["role"], shown["counter"]) == (oracle.end, "done", oracle.counter)
    assert len(hops) == oracle.transitions
    delays = [answer["delay_ms"] for answer in answers if answer["will_retry"]]
    assert len(delays) == len(oracle.delays_ms)
    assert all(low <= delay <= high for delay, (low, high) in zip(delays, oracle.delays_ms, strict=True)), delays
    db.log_is_sound(int(job_id))
