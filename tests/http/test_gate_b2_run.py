"""Document 004's run endpoint, and its replay cases driven through it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx2
import pytest

from tests.harness import Harness
from tests.http.conftest import Caller, proof, serving

FAILED = ["dlq_pending->dlq_recorded", "dlq_recorded->failed"]


def run(http: Caller, job_id: str, **how: bool) -> dict[str, Any]:
    """Where a job stands after a run."""
    query = "&".join(f"{name}={str(value).lower()}" for name, value in how.items())
    answer = http.post(f"/api/v1/internal/jobs/{job_id}/run?{query}")
    assert answer["success"] is True
    assert set(answer["meta"]) == {"trace_id", "request_id"}
    return dict(answer["data"])


def stands(data: dict[str, Any]) -> tuple[str, int, bool]:
    return data["final_status"], data["retry_count"], data["dlq_id"] is not None


@pytest.mark.req("S4-43", "S4-46")
def test_a_run_leads_to_success_from_wherever_the_job_is(http: Caller, db: Harness) -> None:
    queued, running, retrying = (http.enqueued("gate_b2", queue=name) for name in ("a", "b", "c"))
    http.claimed("gate_b2", queues=["b"])
    assert stands(run(http, retrying, transient_fail=True)) == ("retrying", 1, False)
    for job_id in (queued, running, retrying):
        data = run(http, job_id)
        assert set(data) == {"job_id", "final_status", "retry_count", "dlq_id", "retry_after_ms", "retry_at"}
        assert (data["job_id"], data["final_status"], data["dlq_id"]) == (job_id, "succeeded", None)
    assert db.hops(int(queued)) == ["queued->running", "running->succeeded"]
    assert db.hops(int(running)) == ["queued->running", "running->succeeded"]
    again = ["queued->running", "running->retrying", "retrying->running", "running->succeeded"]
    assert db.hops(int(retrying)) == again
    db.log_is_sound(int(queued), int(running), int(retrying))


@pytest.mark.req("S4-44")
def test_a_forced_failure_goes_straight_to_the_dead_letters(http: Caller, db: Harness) -> None:
    job_id = http.enqueued("gate_b2")
    data = run(http, job_id, force_fail=True)
    assert stands(data) == ("failed", 0, True)
    assert db.hops(int(job_id)) == ["queued->running", "running->dlq_pending", *FAILED]
    item = db.one("select dlq_id, status from tenure_gate_b2.dlq_items where job_id = %s", int(job_id))
    assert (str(item["dlq_id"]), item["status"]) == (data["dlq_id"], "open")


@pytest.mark.req("S4-45")
def test_transient_failures_back_to_back_retry_three_times_and_then_end(http: Caller, db: Harness) -> None:
    job_id = http.enqueued("gate_b2")
    for retries, low in ((1, 1_000), (2, 2_000), (3, 4_000)):
        data = run(http, job_id, transient_fail=True)
        assert stands(data) == ("retrying", retries, False)
        row = db.row(int(job_id))
        pause_ms = round((row["due_at"] - row["updated_at"]).total_seconds() * 1_000)
        assert low <= pause_ms <= low + 300
        assert 0 <= data["retry_after_ms"] <= pause_ms  # what is left of it now
        assert datetime.fromisoformat(data["retry_at"]) == row["due_at"]
    last = run(http, job_id, transient_fail=True)
    assert stands(last) == ("failed", 3, True)
    assert (last["retry_after_ms"], last["retry_at"]) == (None, None)
    between = ["running->retrying", "retrying->running"] * 3
    assert db.hops(int(job_id)) == ["queued->running", *between, "running->dlq_pending", *FAILED]
    db.log_is_sound(int(job_id))


@pytest.mark.req("S4-47", "S4-40")
def test_a_run_of_an_ended_job_is_an_invalid_transition(http: Caller, db: Harness) -> None:
    succeeded, failed = http.enqueued("gate_b2"), http.enqueued("gate_b2")
    run(http, succeeded)
    run(http, failed, force_fail=True)
    before = db.fingerprint(int(succeeded), int(failed))
    for job_id in (succeeded, failed):
        for how in ("", "?force_fail=true", "?transient_fail=true"):
            http.refused(f"/api/v1/internal/jobs/{job_id}/run{how}", None, 409, "WF_STATE_TRANSITION_INVALID")
        for to in ("succeeded", "failed", "running", "retrying"):
            path = f"/api/v1/jobs/{job_id}/transition"
            http.refused(path, {"to": to}, 409, "WF_STATE_TRANSITION_INVALID")
    assert db.fingerprint(int(succeeded), int(failed)) == before


@pytest.mark.req("S4-46")
def test_runs_by_request_are_closed_unless_they_were_opened(dsn: str, http: Caller, db: Harness) -> None:
    job_id = http.enqueued("gate_b2")
    with serving(dsn) as closed, httpx2.Client(base_url=closed, timeout=30) as client:
        Caller(client).refused(f"/api/v1/internal/jobs/{job_id}/run", None, 403, "AUTH_FORBIDDEN")
    assert db.hops(int(job_id)) == []
    http.refused("/api/v1/internal/jobs/999999/run", None, 404, "JOB_NOT_FOUND")
    http.refused(f"/api/v1/internal/jobs/{job_id}/run?force_fail=true&transient_fail=true", None, 422, "E-BAD-INPUT")


@pytest.mark.req("S4-36", "S4-37", "S4-38", "S4-39")
@pytest.mark.parametrize(("failures", "retries"), [(0, 0), (1, 1), (3, 3), (4, 3)])
def test_the_replay_cases_go_as_the_document_lists_them(http: Caller, db: Harness, failures: int, retries: int) -> None:
    job_id = http.enqueued("gate_b2")
    ended: dict[str, Any] = {}
    for n in range(failures + (failures < 4)):
        ended = run(http, job_id, transient_fail=n < failures)
    between = ["running->retrying", "retrying->running"] * retries
    last = ["running->succeeded"] if failures < 4 else ["running->dlq_pending", *FAILED]
    assert db.hops(int(job_id)) == ["queued->running", *between, *last]
    assert stands(ended) == ("succeeded" if failures < 4 else "failed", retries, failures == 4)
    items = db.sql("select dlq_id from tenure_gate_b2.dlq_items where job_id = %s", int(job_id))
    assert [str(item["dlq_id"]) for item in items] == ([ended["dlq_id"]] if failures == 4 else [])


def test_a_job_that_a_worker_holds_is_taken_from_it_by_a_run(http: Caller) -> None:
    job_id = http.enqueued("gate_b2")
    (claim,) = http.claimed("gate_b2")
    assert run(http, job_id)["final_status"] == "succeeded"
    http.refused(f"/api/v1/jobs/{job_id}/succeed", proof(claim), 409, "WF_STATE_TRANSITION_INVALID")
