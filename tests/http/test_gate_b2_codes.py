"""The codes of document 004's neighbours over HTTP, each with its status, by a request that provokes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import httpx2
import pytest

from tenure.contracts import BUILT_IN
from tenure.postgres.store import Store
from tests.contracts.matrix import ALLOWED, job_in
from tests.harness import Harness
from tests.http.conftest import Caller, new_key, proof, serving

INVALID = "WF_STATE_TRANSITION_INVALID"
FATAL = {"error": {"type": "BusinessError", "message": "no such account", "code": "NO_ACCOUNT", "retryable": False}}
ITEMS = "/api/v1/dlq/items"
NOBODY = "999999"


def failed(http: Caller, **fields: Any) -> tuple[str, dict[str, Any], str]:
    """A job that its holder failed for good: its id, the holder's proof, and its dead letter."""
    job_id = http.enqueued("gate_b2", **fields)
    (claim,) = http.claimed("gate_b2", queues=[fields.get("queue", "default")])
    assert http.post(f"/api/v1/jobs/{job_id}/fail", proof(claim, **FATAL))["state"] == "failed"
    return job_id, proof(claim), str(http.get(f"/api/v1/jobs/{job_id}")["dlq_id"])


@pytest.mark.req("S4-13", "S4-55")
async def test_all_41_illegal_pairs_are_refused_with_409_and_the_documents_code(
    store: Store, http: Caller, db: Harness
) -> None:
    states, refused = BUILT_IN["gate_b2"].states, 0
    for source in states:
        job_id = await job_in(store, db, "gate_b2", source)
        before = db.fingerprint(job_id)
        for target in states:
            if (source, target) not in ALLOWED["gate_b2"]:
                error = http.refused(f"/api/v1/jobs/{job_id}/transition", {"to": target}, 409, INVALID)
                assert error["retryable"] is False
                refused += 1
        assert db.fingerprint(job_id) == before, source
    assert refused == len(list(product(states, states))) - 8 == 41


@pytest.mark.req("S4-13", "S4-55")
def test_a_second_end_of_a_failed_job_by_its_last_holder_is_refused_with_the_documents_code(
    http: Caller, db: Harness
) -> None:
    job_id, held, _ = failed(http)
    before = db.fingerprint(int(job_id))
    http.refused(f"/api/v1/jobs/{job_id}/succeed", {**held, "result": 1}, 409, INVALID)
    http.refused(f"/api/v1/jobs/{job_id}/fail", {**held, **FATAL}, 409, INVALID)
    http.refused(f"/api/v1/jobs/{job_id}/heartbeat", held, 409, INVALID)
    stranger = {**held, "lease_token": "3d6f0a6e-0f0c-4d53-9a0b-0d5f6f1b2c3d"}
    http.refused(f"/api/v1/jobs/{job_id}/succeed", stranger, 409, "LEASE_CONFLICT")
    many = [
        {"id": job_id, "verb": "succeed", **held}, {"id": job_id, "verb": "fail", **held, **FATAL},
        {"id": job_id, "verb": "succeed", **stranger},
    ]  # fmt: skip
    answers = http.post("/api/v1/finishes", {"finishes": many})["answers"]
    assert [answer["error"]["code"] for answer in answers] == [INVALID, INVALID, "LEASE_CONFLICT"]
    assert db.fingerprint(int(job_id)) == before


@pytest.mark.req("S4-55")
def test_a_job_that_there_is_not_and_a_cancel_that_the_document_has_not(http: Caller, db: Harness) -> None:
    job_id = http.enqueued("gate_b2")
    before = db.fingerprint(int(job_id))
    http.refused(f"/api/v1/jobs/{job_id}/cancel", {}, 409, INVALID)
    assert db.fingerprint(int(job_id)) == before
    for path, body in (("cancel", {}), ("transition", {"to": "running"}), ("requeue", None)):
        http.refused(f"/api/v1/jobs/{NOBODY}/{path}", body, 404, "JOB_NOT_FOUND")
    http.refused(f"/api/v1/internal/jobs/{NOBODY}/run", None, 404, "JOB_NOT_FOUND")
    assert http.get(f"/api/v1/jobs/{NOBODY}", status=404)["error"]["code"] == "JOB_NOT_FOUND"


@pytest.mark.req("S4-55")
def test_a_dead_letter_that_there_is_not_is_404_to_every_verb(http: Caller) -> None:
    for verb, body in (
        ("requeue", None),
        ("discard", {"reason": "a test", "person": "Ada"}),
        ("approve", {"person": "Ada"}),
    ):
        http.refused(f"{ITEMS}/{NOBODY}/{verb}", body, 404, "DLQ_ITEM_NOT_FOUND")
    assert http.get(f"{ITEMS}/{NOBODY}", status=404)["error"]["code"] == "DLQ_ITEM_NOT_FOUND"


@pytest.mark.req("S4-55")
def test_a_second_requeue_and_a_late_discard_are_conflicts(http: Caller) -> None:
    _, _, letter = failed(http)
    again = http.post(f"{ITEMS}/{letter}/requeue")
    assert (again["dlq_id"], again["status"]) == (letter, "queued")
    assert http.get(f"/api/v1/jobs/{again['job_id']}")["origin_letter"] == letter
    http.refused(f"{ITEMS}/{letter}/requeue", None, 409, "DLQ_REQUEUE_CONFLICT")
    http.refused(f"{ITEMS}/{letter}/discard", {"reason": "late", "person": "Bob"}, 409, "DLQ_DISCARD_CONFLICT")


@pytest.mark.req("S4-55")
def test_a_discard_by_fewer_than_two_people_wants_an_approval(http: Caller) -> None:
    _, _, letter = failed(http)
    http.refused(f"{ITEMS}/{letter}/approve", {"person": "Ada"}, 409, "APPROVAL_REQUIRED")
    assert http.post(f"{ITEMS}/{letter}/discard", {"reason": "a test", "person": "Ada"})["status"] == "open"
    http.refused(f"{ITEMS}/{letter}/approve", {"person": " ada "}, 409, "APPROVAL_REQUIRED")
    http.refused(f"{ITEMS}/{letter}/discard", {"reason": "me too", "person": "Bob"}, 409, "APPROVAL_REQUIRED")
    assert http.get(f"{ITEMS}/{letter}")["status"] == "open"
    assert http.post(f"{ITEMS}/{letter}/approve", {"person": "Bob"})["status"] == "discarded"


@pytest.mark.req("S4-55")
def test_a_key_of_another_body_is_a_conflict_to_enqueue_and_to_a_decision(http: Caller) -> None:
    job_id = http.enqueued("gate_b2", idempotency_key="k")
    same = {"type": "t", "contract": "gate_b2", "idempotency_key": "k"}
    assert http.post("/api/v1/jobs", same)["id"] == job_id
    http.refused("/api/v1/jobs", {**same, "type": "other"}, 409, "IDEMPOTENCY_CONFLICT")
    (claim,) = http.claimed("gate_b2")
    http.post(f"/api/v1/jobs/{job_id}/fail", proof(claim, **FATAL, idempotency_key="end"))
    asked = proof(claim, result=1, idempotency_key="end")
    http.refused(f"/api/v1/jobs/{job_id}/succeed", asked, 409, "IDEMPOTENCY_CONFLICT")
    letter = http.get(f"/api/v1/jobs/{job_id}")["dlq_id"]
    body = {"reason": "a test", "person": "Ada", "idempotency_key": "away"}
    http.post(f"{ITEMS}/{letter}/discard", body)
    http.refused(f"{ITEMS}/{letter}/discard", {**body, "reason": "another"}, 409, "IDEMPOTENCY_CONFLICT")


class Tenants(NamedTuple):
    """An admin, and a caller of tenant `zeta` with every scope but admin."""

    admin: Caller
    zeta: Caller
    reader: Caller


@pytest.fixture
def tenants(dsn: str) -> Iterator[Tenants]:
    """Callers with keys, on a dispatcher that runs no jobs by request."""
    scopes = ("enqueue", "work", "operate", "approve")
    keys = [
        new_key(dsn, "admin", "admin", person="Ada"),
        new_key(dsn, "zeta", *scopes, tenant="zeta", person="Zoe"),
        new_key(dsn, "reader", "enqueue"),
    ]
    with serving(dsn) as url:
        clients = [httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) for key in keys]
        yield Tenants(*map(Caller, clients))
        for client in clients:
            client.close()


@pytest.mark.req("S4-55")
def test_another_tenants_job_or_dead_letter_is_a_scope_violation(tenants: Tenants, db: Harness) -> None:
    job_id, held, letter = failed(tenants.admin, tenant_id="acme")
    before, code = db.fingerprint(int(job_id)), "TENANT_SCOPE_VIOLATION"
    tenants.zeta.refused("/api/v1/jobs", {"type": "t", "contract": "gate_b2", "tenant_id": "acme"}, 403, code)
    tenants.zeta.refused(f"/api/v1/jobs/{job_id}/transition", {"to": "running"}, 403, code)
    tenants.zeta.refused(f"/api/v1/jobs/{job_id}/succeed", held, 403, code)
    for verb, body in (("requeue", None), ("discard", {"reason": "a test"}), ("approve", None)):
        tenants.zeta.refused(f"{ITEMS}/{letter}/{verb}", body, 403, code)
    for path in (f"/api/v1/jobs/{job_id}", f"{ITEMS}/{letter}"):
        assert tenants.zeta.get(path, status=403)["error"]["code"] == code
    assert tenants.zeta.get(ITEMS, status=403, tenant_id="acme")["error"]["code"] == code
    assert tenants.zeta.get(ITEMS)["items"] == []
    assert db.fingerprint(int(job_id)) == before


@pytest.mark.req("S4-55")
def test_what_a_key_may_not_do_is_forbidden(tenants: Tenants, db: Harness) -> None:
    job_id, _, letter = failed(tenants.admin)
    before, code = db.fingerprint(int(job_id)), "AUTH_FORBIDDEN"
    tenants.reader.refused(f"/api/v1/jobs/{job_id}/transition", {"to": "running"}, 403, code)
    tenants.reader.refused(f"{ITEMS}/{letter}/requeue", None, 403, code)
    tenants.reader.refused(f"{ITEMS}/{letter}/discard", {"reason": "a test"}, 403, code)
    tenants.admin.refused(f"{ITEMS}/{letter}/discard", {"reason": "a test", "person": "Bob"}, 403, code)
    tenants.admin.refused(f"/api/v1/internal/jobs/{job_id}/run", None, 403, code)
    assert db.fingerprint(int(job_id)) == before
