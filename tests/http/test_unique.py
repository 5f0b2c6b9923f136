"""Unique and expiring jobs over HTTP: the fields of a job, alone and in a batch; the code of a duplicate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness import Harness
from tests.http.conftest import Caller

SYNC = {"type": "sync", "payload": {"customer": 7, "full": False}, "unique": "waiting", "unique_by": ["customer"]}


def test_a_unique_job_is_made_once_and_returned_or_refused(http: Caller, db: Harness) -> None:
    first = http.post("/api/v1/jobs", SYNC, status=201)
    assert first["made"]
    again = http.post("/api/v1/jobs", SYNC, status=200)
    assert (again["id"], again["made"]) == (first["id"], False)
    error = http.refused("/api/v1/jobs", {**SYNC, "on_conflict": "refuse"}, 409, "DUPLICATE_JOB")
    assert (error["job_id"], error["retryable"]) == (first["id"], False)
    assert error["hint"] == f"GET /api/v1/jobs/{first['id']}"
    new = {**SYNC, "payload": {"customer": 7, "full": True}, "on_conflict": "replace", "delay_seconds": 60}
    assert http.post("/api/v1/jobs", new)["id"] == first["id"]
    row = db.row(int(first["id"]))
    assert row["payload"] == {"customer": 7, "full": True}
    assert row["due_at"] > row["updated_at"]
    (entry,) = http.get(f"/api/v1/jobs/{first['id']}/events")["events"]
    assert (entry["trigger"], entry["hop"]) == ("replaced", False)


def test_a_batch_answers_each_by_itself(http: Caller) -> None:
    jobs = [SYNC, SYNC, {**SYNC, "on_conflict": "refuse"}, {**SYNC, "unique": 3600}, {**SYNC, "unique_by": ["x"]}]
    answers = http.post("/api/v1/jobs/batch", {"jobs": jobs})["jobs"]
    assert sorted(answer.get("made", "") for answer in answers[:2]) == [False, True]
    assert answers[2]["error"]["code"] == "DUPLICATE_JOB"
    assert answers[3]["id"] == answers[0]["id"] == answers[2]["error"]["job_id"]
    assert answers[4]["error"]["code"] == "E-BAD-INPUT"


def test_a_key_comes_first(http: Caller) -> None:
    first = http.post("/api/v1/jobs", {**SYNC, "idempotency_key": "a"}, status=201)
    assert http.post("/api/v1/jobs", {**SYNC, "idempotency_key": "a"})["id"] == first["id"]
    (claim,) = http.claimed()
    proof = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
    http.post(f"/api/v1/jobs/{first['id']}/succeed", proof)
    assert http.post("/api/v1/jobs", {**SYNC, "idempotency_key": "a"})["id"] == first["id"]
    assert http.post("/api/v1/jobs", {**SYNC, "idempotency_key": "b"}, status=201)["made"]


def test_an_expiry_is_shown_and_told(http: Caller, db: Harness) -> None:
    made = http.post("/api/v1/jobs", {"type": "t", "expires_seconds": 60}, status=201)["id"]
    assert http.get(f"/api/v1/jobs/{made}")["expires_at"] is not None
    assert any("expires at" in sentence for sentence in http.get(f"/api/v1/jobs/{made}/why")["why"])
    db.sql("update tenure.job set expires_at = clock_timestamp()")
    claim = {"task_id": made, "worker_id": "w"}
    assert http.claimed() == []
    assert http.get(f"/api/v1/jobs/{made}")["state"] == "cancelled"
    assert http.post("/internal/task-claim", claim)["reason"] == "cancelled"
    at = http.post("/api/v1/jobs", {"type": "t", "expires_at": "2030-01-01T00:00:00Z"}, status=201)["id"]
    assert http.get(f"/api/v1/jobs/{at}")["expires_at"] == "2030-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    "fields",
    [
        {"unique": "sometimes"},
        {"unique": 0},
        {"unique": -1},
        {"unique": True},
        {"unique_by": ["customer"]},
        {"on_conflict": "return"},
        {"unique": "active", "on_conflict": "ignore"},
        {"unique": "active", "unique_by": []},
        {"unique": "active", "unique_by": ["customer"]},
        {"expires_seconds": 0},
        {"expires_seconds": 5, "delay_seconds": 5},
        {"expires_seconds": 5, "expires_at": "2030-01-01T00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00"},
        {"expires_seconds": 5, "contract": "gate_b2"},
    ],
)
def test_wrong_fields_are_refused_and_make_nothing(http: Caller, db: Harness, fields: dict[str, Any]) -> None:
    http.refused("/api/v1/jobs", {"type": "t", **fields}, 422, "E-BAD-INPUT")
    assert db.value("select count(*) from tenure.job") == 0
