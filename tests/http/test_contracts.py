"""What the jobs of a contract do, and whether its histories keep every promise: over HTTP, of users' contracts too."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.http import contract_verifications
from tenure.http.contract_verifications import ContractVerifications
from tenure.model.explore import explore
from tenure.postgres.migrate import migrate
from tests.harness import Harness
from tests.http.conftest import Caller, proof
from tests.worker.working import until

STANDARD = BUILT_IN["standard"]
AGAIN = {"type": "TransientError", "message": "again", "retryable": True}


def moves(http: Caller, contract: str = "standard", **query: Any) -> dict[tuple[str, str | None, str], int]:
    found = http.get(f"/api/v1/contracts/{contract}/activity", **query)["moves"]
    return {(one["trigger"], one["from_state"], one["to_state"]): one["moves"] for one in found}


def test_activity_counts_live_jobs_and_moves_of_the_contract_alone(http: Caller, db: Harness) -> None:
    http.enqueued(), http.enqueued("simple")
    (claim,) = http.claimed()
    http.post(f"/api/v1/jobs/{claim['job']['id']}/heartbeat", proof(claim))
    http.post(f"/api/v1/jobs/{claim['job']['id']}/fail", {**proof(claim), "error": AGAIN})
    http.enqueued(tenant_id="acme")
    db.sql("update tenure.job set due_at = now() where counter > 0")
    found = http.get("/api/v1/contracts/standard/activity")
    assert (found["name"], found["since_seconds"]) == ("standard", 3600)
    assert {one["state"]: one["jobs"] for one in found["live"]} == {"queued": 2}
    expected = {("enqueue", None, "queued"): 2, ("claim", "queued", "running"): 1, ("retry", "running", "queued"): 1}
    assert moves(http) == expected, "a heartbeat is no move"
    assert moves(http, "simple") == {("enqueue", None, "PENDING"): 1}
    db.sql("update tenure.tally set at = at - interval '2 hours' where tenant_id = 'default'")
    assert moves(http) == {("enqueue", None, "queued"): 1}
    assert moves(http, since_seconds=8 * 3600) == expected


def test_activity_of_folded_counts_is_the_same(dsn: str, http: Caller, db: Harness) -> None:
    http.enqueued(), http.enqueued("gate_b2")
    before = moves(http)
    assert db.value("select count(*) from tenure.tally") > 0
    http.client.get("/metrics").raise_for_status()  # it folds
    assert db.value("select count(*) from tenure.tally") == 0
    assert moves(http) == before == {("enqueue", None, "queued"): 1}


def test_contract_that_is_not_there_has_no_activity_and_no_verification(http: Caller) -> None:
    for part in ("activity", "verification"):
        answer = http.client.get(f"/api/v1/contracts/nope/{part}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "CONTRACT_NOT_FOUND")


async def test_verification_says_what_the_explorer_says_once_it_is_done(http: Caller) -> None:
    path = "/api/v1/contracts/standard/verification"
    assert http.get(path) == {"name": "standard", "version": "1", "state": "running", "why": None, "report": None}
    await until(lambda: http.get(path)["state"] != "running")
    assert http.get(path) == {
        "name": "standard", "version": "1", "state": "held", "why": None, "report": explore(STANDARD).to_json(),
    }  # fmt: skip


async def test_verification_that_finds_a_broken_promise_has_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    # No sound contract breaks a promise, and only a sound one can be registered: the explorer is another one here.
    story = {"invariant": "an end", "what": "the job stays", "story": ["worker A claims"]}
    report = {**explore(STANDARD).to_json(), "broken": [story]}
    monkeypatch.setattr(contract_verifications, "_RUN", f"print({json.dumps(json.dumps(report))})")
    verifications = ContractVerifications()
    await until(lambda: verifications.get(STANDARD)["state"] != "running")
    assert verifications.get(STANDARD) == {"state": "broken", "why": None, "report": report}


async def test_users_contract_is_verified_too(dsn: str, http: Caller) -> None:
    migrate(dsn, {"mine": replace(STANDARD, name="mine", views=())})
    await until(lambda: http.client.get("/api/v1/contracts/mine/verification").json()["state"] == "held")


async def test_verification_is_computed_once_apart_from_the_event_loop_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contract_verifications, "_RUN", "import time; time.sleep(601)")
    verifications = ContractVerifications()
    for _ in range(3):
        assert verifications.get(STANDARD)["state"] == "running"

    def children() -> list[str]:
        command = f"{sys.executable}\0-c\0import time; time.sleep(601)\0".encode()
        return [one.parent.name for one in Path("/proc").glob("[0-9]*/cmdline") if _content(one) == command]

    await until(lambda: len(children()) == 1)
    await verifications.stop()
    assert children() == []


async def test_verification_that_fails_is_not_decided_and_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    verifications = ContractVerifications()
    monkeypatch.setattr(contract_verifications, "_RUN", "raise SystemExit(3)")
    await until(lambda: verifications.get(STANDARD)["state"] != "running")
    found = verifications.get(STANDARD)
    assert (found["state"], found["report"]) == ("unknown", None)
    assert "tenure contracts verify standard" in found["why"]


def _content(file: Path) -> bytes:
    """What stands in a file; nothing if its process has ended meanwhile."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
