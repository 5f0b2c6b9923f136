"""Who gets in where nobody has a key yet, and who decides: this machine alone, no page of another site, two people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import httpx2
import pytest

from tenure.http import authentication
from tenure.http.long_poll import ClaimGroup
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, new_key, serving
from tests.http.inventory import World
from tests.worker.working import until

ADMIN = "an admin's key of its own"


@contextmanager
def calling(url: str, key: str) -> Iterator[Caller]:
    """Calls with a key."""
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as client:
        yield Caller(client)


@pytest.mark.parametrize("revoked", [False, True])
async def test_an_open_dispatcher_closes_as_soon_as_a_key_was_made(
    dsn: str, monkeypatch: pytest.MonkeyPatch, revoked: bool
) -> None:
    monkeypatch.setattr(authentication, "_CACHE_S", 0.1)
    with serving(dsn) as url, httpx2.Client(base_url=url, timeout=30) as client:
        assert client.get("/api/v1/jobs").status_code == 200
        await asyncio.to_thread(new_key, dsn, "first", "admin", revoked=revoked)
        await until(lambda: client.get("/api/v1/jobs").status_code != 200)
        assert client.get("/api/v1/jobs").json()["error"]["code"] == "AUTH_REQUIRED"


async def test_a_revoked_key_opens_nothing_after_a_moment(
    dsn: str, store: Store, waited: list[ClaimGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_CACHE_S", 0.1)
    key, text = await store.keys.create("short", ["work"], None, None, "test")
    with serving(dsn, admin_key=ADMIN) as url, calling(url, text) as http, calling(url, ADMIN) as admin:
        asked = {"worker_id": "w", "wait_seconds": 25}
        waiting = asyncio.create_task(asyncio.to_thread(http.client.post, "/api/v1/claims", json=asked))
        await until(lambda: bool(waited))
        await store.keys.revoke(key.id, "test")
        await until(lambda: http.client.get("/api/v1/contracts").status_code == 401)
        job_id = admin.enqueued()
        # Who was let in before, and waits, is shut out as well: a job that came later is not theirs.
        assert (await waiting).status_code == 401
        assert admin.get(f"/api/v1/jobs/{job_id}")["state"] == "queued"


_FOREIGN = [
    "evil.example", "evil.example:80", "evil.example:99999", "evil.example:port", "127.0.0.1.evil.example", "a b", "",
    "evil.example@localhost", "localhost@evil.example", "[::1", "0.0.0.0", "10.0.0.1", "evil.example, localhost",
]  # fmt: skip
_OURS = ["localhost", "LocalHost:8000", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8000"]


def test_an_open_dispatcher_answers_to_this_machines_names_alone(client: httpx2.Client) -> None:
    """A page whose name was made to point here (DNS rebinding) is told nothing."""
    for host in _FOREIGN:
        response = client.get("/api/v1/jobs", headers={"Host": host})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "AUTH_FORBIDDEN"), host
    for host in _OURS:
        assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 200, host


def test_what_a_proxy_forwards_from_another_machine_is_refused(client: httpx2.Client) -> None:
    for name in ("X-Forwarded-For", "X-Real-IP"):
        for sender in ("203.0.113.9", "127.0.0.1, 203.0.113.9", "203.0.113.9, 127.0.0.1"):
            assert client.get("/api/v1/jobs", headers={name: sender}).status_code == 401, sender
        assert client.get("/api/v1/jobs", headers={name: "127.0.0.1"}).status_code == 200


def test_a_page_of_another_site_can_do_nothing_to_an_open_dispatcher(http: Caller) -> None:
    """A browser sends these without asking first: no body, or a form's."""
    job_id = http.enqueued()
    for origin in ("http://evil.example", "null", "https://localhost:1", "http://localhost.evil.example", ""):
        for content, kind in ((b"", "text/plain"), (b"", ""), (b"mode=hard", "application/x-www-form-urlencoded")):
            headers = {"Origin": origin, "Content-Type": kind}
            response = http.client.post(f"/api/v1/jobs/{job_id}/cancel", content=content, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "AUTH_FORBIDDEN"), origin
    assert http.get(f"/api/v1/jobs/{job_id}")["state"] == "queued"


def test_its_own_page_may(http: Caller) -> None:
    job_id = http.enqueued()
    origin = str(http.client.base_url).rstrip("/")
    response = http.client.post(f"/api/v1/jobs/{job_id}/cancel", headers={"Origin": origin})
    assert response.status_code == 200


def test_a_body_that_a_form_can_send_is_refused_with_a_key_too(dsn: str) -> None:
    with serving(dsn, admin_key=ADMIN) as url, calling(url, ADMIN) as http:
        job_id = http.enqueued()
        response = http.client.post(
            f"/api/v1/jobs/{job_id}/cancel", content=b'{"mode": "hard"}', headers={"Content-Type": "text/plain"}
        )
        assert response.status_code == 422
        assert http.get(f"/api/v1/jobs/{job_id}")["state"] == "queued"


@pytest.mark.req("S4-32", "S4-34")
def test_people_decide_and_not_keys(dsn: str, db: Harness) -> None:
    names = {"ann": "Ann", "ann again": "Ann", "ann otherwise": " aNN", "ben": "Ben"}
    keys = {name: new_key(dsn, name, "approve", person=person) for name, person in names.items()}
    with serving(dsn, admin_key=ADMIN) as url, calling(url, ADMIN) as admin:
        letter = f"/api/v1/dlq/items/{World(admin).letter('gate_b2')}"

        def decides(name: str, verb: str, body: dict[str, str], status: int, code: str | None = None) -> None:
            with calling(url, keys[name]) as http:
                answer = http.post(f"{letter}/{verb}", body, status=status)
                assert code is None or answer["error"]["code"] == code, answer

        decides("ann", "discard", {"reason": "a test", "person": "Ben"}, 403, "AUTH_FORBIDDEN")
        decides("ann", "discard", {"reason": "a test"}, 200)
        for name in ("ann", "ann again", "ann otherwise"):
            decides(name, "approve", {}, 409, "APPROVAL_REQUIRED")
            decides(name, "approve", {"person": "Ben"}, 403, "AUTH_FORBIDDEN")
        assert admin.get(letter)["status"] == "open"
        decides("ben", "approve", {"person": "Ben"}, 200)
        after = admin.get(letter)
        assert (after["status"], after["discard_asked_by"], after["discard_approved_by"]) == ("discarded", "Ann", "Ben")
        kept = db.one("select discard_asked_at, discard_approved_at, discard_reason from tenure.dead_letter")
        assert None not in kept.values()
        assert kept["discard_asked_at"] < kept["discard_approved_at"]
        assert after["discard_reason"] == kept["discard_reason"] == "a test"
        for moment in ("discard_asked_at", "discard_approved_at"):
            assert datetime.fromisoformat(after[moment]) == kept[moment]
