"""Operations on many jobs over HTTP and from a program: who may do what, and that exactly the previewed is done."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tenure.app import App
from tenure.errors import BadInput
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller
from tests.postgres.test_letter_groups import broken, count, fail
from tests.postgres.test_operations import jobs, retrying

OPERATIONS = "/api/v1/operations"


async def test_a_preview_is_started_aborted_and_resumed(store: Store, http: Caller, db: Harness) -> None:
    ids = await jobs(store, 3)
    body = {"kind": "jobs", "verb": "cancel", "q": "type:t", "reason": "oops", "per_second": 0.5}
    made = http.post(OPERATIONS, body, status=201)
    assert (made["state"], made["total"], made["left"], made["options"]) == ("preview", 3, 3, {"reason": "oops"})
    place = f"{OPERATIONS}/{made['id']}"
    page = http.get(f"{place}/items", limit=2)
    assert ([item["item_id"] for item in page["items"]], page["next"]) == ([str(ids[0]), str(ids[1])], str(ids[1]))
    assert [item["item_id"] for item in http.get(f"{place}/items", cursor=page["next"])["items"]] == [str(ids[2])]
    assert http.post(f"{place}/collect")["collected"] is True
    assert http.post(f"{place}/start", {})["state"] == "running"
    http.refused(f"{place}/start", {}, 409, "OPERATION_CONFLICT")
    await store.operations.work(batches=1)
    assert http.post(f"{place}/abort")["left"] == 2
    assert http.post(f"{place}/resume", {"per_second": 1_000})["state"] == "running"
    db.sql("update tenure.operation set next_at = '-infinity'")
    await store.operations.work()
    assert (http.get(place)["state"], http.get(place)["done"]) == ("done", 3)
    assert http.get(place)["now"] is None, "a cancel makes no jobs"
    assert [one["id"] for one in http.get(OPERATIONS)["operations"]] == [made["id"]]
    http.get(f"{OPERATIONS}/99", status=404)
    http.refused(OPERATIONS, {**body, "q": "state"}, 422, "E-BAD-INPUT")


async def test_who_may_operate_may_not_discard_and_a_tenant_sees_its_own(store: Store, url: str, db: Harness) -> None:
    await fail(store, [broken("send")], "gate_b2")
    await fail(store, [broken("send")], "gate_b2", tenant="zeta")
    keys = {
        "operator": await store.keys.create("operator", ["operate"], "acme", None, "test", 3_600),
        "ann": await store.keys.create("ann", ["approve"], None, "ann", "test", 3_600),
        "bob": await store.keys.create("bob", ["approve"], None, "bob", "test", 3_600),
    }
    callers = {
        name: Caller(httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}))
        for name, (_, key) in keys.items()
    }
    operator, ann, bob = callers["operator"], callers["ann"], callers["bob"]
    discard = {"kind": "dead_letters", "verb": "discard", "reason": "spam"}
    operator.refused(OPERATIONS, discard, 403, "AUTH_FORBIDDEN")
    ann.refused(OPERATIONS, {"kind": "dead_letters", "verb": "requeue"}, 403, "AUTH_FORBIDDEN")
    mine = operator.post(OPERATIONS, {"kind": "dead_letters", "verb": "requeue"}, status=201)
    assert (mine["total"], mine["tenant_id"]) == (1, "acme")
    both = ann.post(OPERATIONS, discard, status=201)
    assert both["total"] == 2
    operator.get(f"{OPERATIONS}/{both['id']}", status=404)
    operator.refused(f"{OPERATIONS}/{both['id']}/abort", None, 404, "OPERATION_NOT_FOUND")
    ann.refused(f"{OPERATIONS}/{both['id']}/start", {"person": "bob"}, 403, "AUTH_FORBIDDEN")
    ann.post(f"{OPERATIONS}/{both['id']}/start", {})
    await store.operations.work()
    agreed = bob.post(OPERATIONS, {"kind": "dead_letters", "verb": "approve"}, status=201)
    bob.post(f"{OPERATIONS}/{agreed['id']}/start", {})
    await store.operations.work()
    rows = db.sql("select status, discard_asked_by as asked, discard_approved_by as agreed from tenure.dead_letter")
    assert rows == [{"status": "discarded", "asked": "ann", "agreed": "bob"}] * 2


async def test_groups_searches_and_another_payload_over_http(store: Store, http: Caller, db: Harness) -> None:
    letters = await fail(store, [broken("send", n, "1.2") for n in range(3)])
    await count(store)
    groups = http.get("/api/v1/dlq/groups")
    (group,) = groups["groups"]
    assert (group["open"], group["releases"][0]["value"], groups["uncounted"]) == (3, "1.2", 0)
    assert (group["workers"], group["example"]) == (None, group["last_error"]["message"])
    shown = http.get(f"/api/v1/dlq/groups/{group['fingerprint']}")
    assert (shown["letters"], shown["workers"]) == (3, [{"worker": "w", "letters": 3, "open": 3}])
    counted = http.get("/api/v1/jobs/count", q="state:dead", by="worker")
    assert (counted["total"], counted["complete"], counted["next"]) == (3, True, None)
    assert [(one["value"], one["jobs"]) for one in counted["groups"]] == [("w", 3)]
    (job, *_) = http.get("/api/v1/jobs", q="worker:w took:<1h")["jobs"]
    assert (job["worker"], http.get(f"/api/v1/jobs/{job['id']}")["worker"]) == ("w", "w")
    assert job["ran_s"] > 0
    http.get("/api/v1/dlq/groups/nope", status=404)
    query = f"group:{group['fingerprint']} payload.n:1"
    found = http.get("/api/v1/dlq/items", q=query)
    assert ([item["id"] for item in found["items"]], found["stopped"]) == ([str(letters[1])], False)
    body: dict[str, Any] = {"changes": [[["n"], 5], [["to", "name"], "Ada"]]}
    job = http.post(f"/api/v1/dlq/items/{letters[1]}/requeue", body)["job_id"]
    assert http.get(f"/api/v1/jobs/{job}")["payload"] == {"n": 5, "to": {"name": "Ada"}}
    http.refused(f"/api/v1/dlq/items/{letters[0]}/requeue", {"changes": [[["n", "x"], 5]]}, 422, "E-BAD-INPUT")
    assert http.get("/api/v1/jobs", q="payload.to.name:Ada")["jobs"][0]["id"] == job
    waits, forbidden = await retrying(store, db), await retrying(store, db, "simple")
    assert http.post(f"/api/v1/jobs/{waits}/retry-now", {})["due"] is True
    http.refused(f"/api/v1/jobs/{forbidden}/retry-now", {}, 409, "EARLY_RETRY")


async def test_a_program_repairs_what_it_finds(dsn: str, store: Store, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)])
    await count(store)
    async with App(dsn) as app:
        (group,) = await app.dead_letters.groups()
        assert (await app.dead_letters.search(f"group:{group.fingerprint}", limit=1)).letters[0].id == letters[-1]
        assert await app.dead_letters.requeue(letters[0], payload={"n": 9})
        preview = await app.operations.preview("dead_letters", "requeue", "status:open", actor="ada")
        assert [item.item_id for item in await app.operations.items(preview)] == letters[1:]
        done = await app.operations.run(preview, actor="ada")
        assert (done.state, done.done) == ("done", 3)
        made = await app.operations.made(done)
        assert made is not None
        assert (made.states, made.unfinished, made.complete) == ({"queued": 3}, 3, True)
        assert await app.operations.show(done.id) == (await app.operations.list())[0]
        again = await app.operations.preview("jobs", "cancel", "", actor="ada", per_second=0.01)
        assert (await app.operations.start(again)).state == "running"
        assert (await app.operations.abort(again)).state == "aborted"
        assert (await app.operations.resume(again, per_second=1_000)).state == "running"
        assert (await app.operations.run(again)).done == 4
    assert db.value("select count(*) from tenure.job") == 0


async def test_a_program_behind_a_dispatcher_is_told_where_to_repair(url: str) -> None:
    async with App(dispatcher_url=url) as app:
        with pytest.raises(BadInput, match="/api/v1/operations"):
            await app.operations.list()


async def test_what_was_run_again_is_refused_with_its_new_job_and_repeated_by_again(store: Store, http: Caller) -> None:
    letters = await fail(store, [broken("send", n) for n in range(2)])
    dead = (await store.letters.show(letters[0])).job_id
    new = http.post(f"/api/v1/jobs/{dead}/requeue", {})["requeued_as"]
    refused = http.refused(f"/api/v1/jobs/{dead}/requeue", {}, 409, "DLQ_REQUEUE_CONFLICT")
    assert (refused["requeued_as"], "again" in refused["hint"]) == (new, True)
    http.refused(f"/api/v1/dlq/items/{letters[0]}/requeue", {"again": True}, 409, "NOT_FINISHED")
    await store.cancel(int(new), actor="bob")
    assert int(http.post(f"/api/v1/dlq/items/{letters[0]}/requeue", {"again": True})["job_id"]) > int(new)
    body = {"kind": "jobs", "verb": "requeue", "q": "type:mail.send"}
    made = http.post(OPERATIONS, body, status=201)
    summary = made["summary"]
    assert (made["total"], summary["run_again"]["count"], len(summary["samples"])) == (1, 2, 1)
    assert (summary["types"], list(summary["tenants"].values())) == ({"mail.send": 1}, [1])
    assert http.post(f"{OPERATIONS}/{made['id']}/abort")["state"] == "aborted"
    http.get(f"{OPERATIONS}/{made['id']}", status=404)
    assert http.post(OPERATIONS, {**body, "again": True}, status=201)["total"] == 3
    begun = http.post(OPERATIONS, body, status=201)["id"]
    http.post(f"{OPERATIONS}/{begun}/start", {})
    await store.operations.work()
    assert http.get(f"{OPERATIONS}/{begun}")["now"]["states"] == {"queued": 1}
    assert http.get(f"{OPERATIONS}/{begun}/items")["items"][0]["made_state"] == "queued"
    nothing = http.post(OPERATIONS, {**body, "q": "type:none"}, status=201)
    assert (nothing["state"], nothing["total"]) == ("done", 0)
    http.refused(OPERATIONS, {**body, "verb": "cancel", "again": True}, 422, "E-BAD-INPUT")
