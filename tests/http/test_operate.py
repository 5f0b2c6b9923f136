"""What operators ask and do over HTTP: why a job waits, queues that are paused, logs a page at a time."""

from __future__ import annotations

import pytest

from tenure.http import client
from tenure.http.client import Remote
from tenure.http.hints import routed
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
    assert routed(hint) == route


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
    read = client.Remote._read

    async def in_threes(self: Remote, path: str, *rest: object) -> object:
        return await read(self, f"{path}{'&' if '?' in path else '?'}limit=3", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Remote, "_read", in_threes)
    remote = Remote(url)
    assert [row.seq for row in await remote.log(int(job_id))] == seen
    await remote.close()
