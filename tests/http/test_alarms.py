"""Alarms over HTTP: a tenant's key sees its tenant's alone, and a mute names a person."""

from __future__ import annotations

import httpx2
import pytest

from tenure.jobs.alarm import Condition
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import serving

ADMIN = "tenure_" + "a" * 43


async def stage(store: Store) -> None:
    """An alarm of each of two tenants, and one of none."""
    await store.alarms._store(
        [
            Condition("retrying-share", "many wait", "tenure jobs list", 0.5, 0.2, tenant=tenant)
            for tenant in ("ada", "ben", "")
        ]
    )


@pytest.mark.req("S4-06")
async def test_a_tenants_key_sees_and_mutes_its_own_alarms_alone(dsn: str, store: Store, db: Harness) -> None:
    await stage(store)
    with serving(dsn, admin_key=ADMIN) as url, httpx2.Client(base_url=url, timeout=30) as http:
        _, text = await store.keys.create("ops of ada", ["operate"], "ada", "Ann", "a test")
        own, all_ = {"Authorization": f"Bearer {text}"}, {"Authorization": f"Bearer {ADMIN}"}
        assert [one["tenant_id"] for one in http.get("/api/v1/alarms", headers=own).json()["alarms"]] == ["ada"]
        assert len(http.get("/api/v1/alarms", headers=all_).json()["alarms"]) == 3
        refused = http.get("/api/v1/alarms?tenant_id=ben", headers=own)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "TENANT_SCOPE_VIOLATION")
        assert http.post("/api/v1/alarms/test", headers=own).status_code == 403
        answer = http.post("/api/v1/alarms/mute", headers=own, json={"seconds": 60, "reason": "a release"}).json()
        assert answer["muted_by"] == "Ann"
        found = {one["tenant_id"]: one["muted_by"] for one in http.get("/api/v1/alarms", headers=all_).json()["alarms"]}
        assert found == {"ada": "Ann", "ben": None, None: None}
        other = http.post("/api/v1/alarms/mute", headers=own, json={"seconds": 60, "person": "Ben"})
        assert (other.status_code, other.json()["error"]["code"]) == (403, "AUTH_FORBIDDEN")
        assert http.post("/api/v1/alarms/unmute", headers=own, json={}).json() == {"ended": 1}
