"""Schedules over HTTP: scopes and tenants, and what the routes answer."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.harness import Harness
from tests.http.conftest import new_key, serving

HOURLY: dict[str, Any] = {"application": "shop", "every_seconds": 3_600, "job": {"type": "report"}}
ROUTE = "/api/v1/schedules/report"


def code(response: httpx2.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"]["code"])


def test_a_schedule_is_made_changed_and_deleted(client: httpx2.Client) -> None:
    made = client.put(ROUTE, json=HOURLY).json()
    assert (made["application"], made["in_code"], made["declared_by"]) == ("shop", False, "loopback")
    changed = client.put(ROUTE, json={**HOURLY, "every_seconds": None, "cron": "@daily", "tz": "Asia/Tokyo"}).json()
    assert (changed["id"], changed["cron"], changed["tz"]) == (made["id"], "@daily", "Asia/Tokyo")
    assert [one["name"] for one in client.get("/api/v1/schedules").json()["schedules"]] == ["report"]
    times = client.get(f"{ROUTE}/next", params={"count": 2}).json()["next"]
    assert [one["local"][11:] for one in times] == ["00:00:00+09:00"] * 2
    assert client.delete(ROUTE).json() == {"deleted": "report"}
    assert code(client.get(ROUTE), 404) == "SCHEDULE_NOT_FOUND"


def test_a_schedule_is_paused_resumed_and_run(client: httpx2.Client, db: Harness) -> None:
    client.put(ROUTE, json=HOURLY)
    assert client.post(f"{ROUTE}/pause", json={"reason": "moving"}).json()["state"] == "paused"
    fire = client.post(f"{ROUTE}/run", json={}).json()
    assert (fire["result"], fire["by_hand"], fire["job_id"]) == ("enqueued", True, "1")
    assert code(client.post(f"{ROUTE}/run", json={}), 409) == "SCHEDULE_CONFLICT"
    assert client.post(f"{ROUTE}/resume", json={}).json()["changed"] is True
    assert [one["job_id"] for one in client.get(ROUTE).json()["fires"]] == ["1"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "61 * * * *", "every_seconds": None}, "'61' is no minute"),
        ({"cron": "@daily"}, "and not both"),
        ({"every_seconds": None}, "needs either"),
        ({"tz": "Mars/Base"}, "time zone"),
        ({"missed": "all"}, "overlap"),
        ({"job": {"type": "report", "contract": "gone"}}, "gone"),
    ],
)
def test_a_wrong_schedule_is_refused_and_nothing_is_written(
    client: httpx2.Client, db: Harness, wrong: dict[str, Any], said: str
) -> None:
    response = client.put(ROUTE, json={**HOURLY, **wrong})
    assert response.status_code == 422
    assert said in response.text
    assert db.value("select count(*) from tenure.schedule") == 0


def test_a_tenants_key_sees_and_changes_its_own_schedules_alone(dsn: str, db: Harness) -> None:
    keys = {
        tenant: new_key(dsn, tenant, "operate", "work", tenant=tenant) for tenant in ("acme", "other")
    }  # fmt: skip
    with serving(dsn) as url:
        acme, other = (
            httpx2.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {keys[tenant]}"})
            for tenant in ("acme", "other")
        )
        made = acme.put(ROUTE, json=HOURLY).json()
        assert (made["tenant_id"], made["declared_by"]) == ("acme", "key acme")
        assert other.get("/api/v1/schedules").json() == {"schedules": []}
        for method, path in (("GET", ""), ("GET", "/next"), ("DELETE", "")):
            assert code(other.request(method, ROUTE + path), 404) == "SCHEDULE_NOT_FOUND"
        for verb in ("pause", "resume", "run"):
            assert code(other.post(f"{ROUTE}/{verb}", json={}), 404) == "SCHEDULE_NOT_FOUND"
        assert code(other.put(ROUTE, json=HOURLY), 409) == "SCHEDULE_CONFLICT"
        foreign = {**HOURLY, "job": {"type": "report", "tenant_id": "acme"}}
        assert code(other.put("/api/v1/schedules/mine", json=foreign), 403) == "TENANT_SCOPE_VIOLATION"
        declared = {"application": "shop", "schedules": []}
        assert code(other.put("/api/v1/schedules", json=declared), 403) == "TENANT_SCOPE_VIOLATION"
        assert acme.post(f"{ROUTE}/run", json={}).json()["job_id"] == "1"
        assert db.value("select tenant_id from tenure.job") == "acme"
        acme.close()
        other.close()
