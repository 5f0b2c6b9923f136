"""What operators ask and do over HTTP: why a job waits, queues that are paused, logs a page at a time."""

from __future__ import annotations

import pytest

from tenure.client.remote import RemoteClient
from tenure.http.error_response import commands_to_routes
from tests.harness import Harness
from tests.http.conftest import Caller, proof


@pytest.mark.parametrize("queue", ["mail", 'it\'s a/b "q"'])
def test_a_paused_queue_gives_nothing_says_why_and_goes_on(http: Caller, queue: str) -> None:
    job_id = http.enqueued(queue=queue)
    assert http.post("/api/v1/queues/pause", {"queue": queue, "reason": "a test"})["changed"] is True
    assert http.post("/api/v1/queues/pause", {"queue": queue})["changed"] is False
    assert http.claimed(queues=[queue]) == []
    told = http.get(f"/api/v1/jobs/{job_id}/why")
    assert (told["id"], told["state"], told["role"]) == (job_id, "queued", "ready")
    assert any("paused" in sentence for sentence in told["why"])
    method, path, body = told["next"][0].replace(" with", "").split(" ", 2)
    answer = http.client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.json() == {"queue": queue, "changed": True, "paused": None}
    assert len(http.claimed(queues=[queue])) == 1
    assert http.post("/api/v1/queues/resume", {"queue": queue})["changed"] is False


def test_what_to_do_about_a_dead_job_are_requests(http: Caller) -> None:
    job_id = http.enqueued()
    http.post(f"/api/v1/jobs/{job_id}/dead-letter", {"reason_code": "policy"})
    letter = http.get(f"/api/v1/jobs/{job_id}")["dlq_id"]
    items = "/api/v1/dlq/items"
    assert http.get(f"/api/v1/jobs/{job_id}/why")["next"] == [
        f"POST {items}/{letter}/requeue", f"POST {items}/{letter}/discard", f"GET {items}/{letter}",
        f"GET /api/v1/jobs/{job_id}/events",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "route"),
    [
        ("claim it then; tenure jobs why 7", "claim it then; GET /api/v1/jobs/7/why"),
        ("tenure jobs cancel 7 --mode hard. Or wait", "POST /api/v1/jobs/7/cancel. Or wait"),
        ("tenure dlq discard 1 --reason TEXT --person NAME, or go", "POST /api/v1/dlq/items/1/discard, or go"),
        ("tenure queues resume a.b, then wait", 'POST /api/v1/queues/resume with {"queue": "a.b"}, then wait'),
        ("tenure keys create NAME", "tenure keys create NAME"),
    ],
)
def test_commands_in_hints_become_routes(hint: str, route: str) -> None:
    assert commands_to_routes(hint) == route


async def test_a_long_log_is_read_a_page_at_a_time(
    url: str, http: Caller, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = http.enqueued()
    for _ in range(4):
        (claim,) = http.claimed()
        http.post(f"/api/v1/jobs/{job_id}/snooze", proof(claim, seconds=0))
    whole = http.get(f"/api/v1/jobs/{job_id}/events")
    assert (len(whole["events"]), whole["next"]) == (8, None)
    seen, cursor = list[int](), "0"
    while cursor:
        params = {"limit": "3", **({"cursor": cursor} if seen else {})}
        page = http.client.get(f"/api/v1/jobs/{job_id}/events", params=params).json()
        seen += [one["seq"] for one in page["events"]]
        cursor = page["next"]
    assert seen == [one["seq"] for one in whole["events"]]
    read = RemoteClient._read

    async def in_threes(self: RemoteClient, path: str, *rest: object) -> object:
        return await read(self, f"{path}{'&' if '?' in path else '?'}limit=3", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteClient, "_read", in_threes)
    remote = RemoteClient(url)
    assert [row.seq for row in await remote.log(int(job_id))] == seen
    await remote.close()


def test_a_contract_that_is_not_there_is_not_found_and_in_a_body_it_is_bad_input(http: Caller) -> None:
    asked = http.client.get("/api/v1/contracts/nope")
    assert (asked.status_code, asked.json()["error"]["code"]) == (404, "CONTRACT_NOT_FOUND")
    made = http.client.post("/api/v1/jobs", json={"type": "send", "contract": "nope"})
    assert (made.status_code, made.json()["error"]["code"]) == (422, "E-UNKNOWN-CONTRACT")


def test_a_whole_number_may_be_written_with_a_point(http: Caller, db: Harness) -> None:
    made = http.client.post("/api/v1/jobs", json={"type": "send", "priority": 3.0, "max_attempts": 2.0})
    assert made.is_success, made.text
    job_id = made.json()["id"]
    row = db.row(int(job_id))
    assert (row["priority"], row["max_attempts"]) == (3, 2)
    (claim,) = http.post("/api/v1/claims", {"worker_id": "w1", "queues": ["default"], "limit": 1.0})["claims"]
    done = {"claims": 1.0, "lease_token": claim["lease_token"], "result": None}
    assert http.post(f"/api/v1/jobs/{job_id}/succeed", done)["state"] == "succeeded"
    for wrong in (3.5, True, "3", 1e300):
        refused = http.client.post("/api/v1/jobs", json={"type": "send", "priority": wrong})
        assert refused.status_code == 422, wrong
        assert refused.json()["error"]["code"] == "E-BAD-INPUT"
        assert "priority must be a whole number from 0 to 9" in refused.json()["error"]["message"]
