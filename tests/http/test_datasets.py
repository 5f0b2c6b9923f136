"""Datasets over HTTP: outputs and events with a completion, staged rows, generations, people and tenants."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.harness import Harness
from tests.http.conftest import Caller, new_key, proof, serving

PRICES: list[dict[str, Any]] = [{"dataset": "prices"}]
ROWS = [{"id": "a", "v": 1}, {"id": "b", "v": 2}]
APPEND: dict[str, Any] = {"kind": "append", "dataset": "prices", "rows": ROWS, "unique_key": ["id"]}
#: All that a completion adds to datasets.
TRACES = ("row", "scope", "batch", "output", "event", "delivery")


def declared(http: Caller, name: str = "prices", **fields: Any) -> dict[str, Any]:
    """The generation that a declaration answers."""
    answer = http.client.put(f"/api/v1/datasets/{name}", json=fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def held(http: Caller, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A held job that writes prices, with what its holder shows."""
    declared(http)
    job_id = http.enqueued(writes=PRICES, **fields)
    (claim,) = http.claimed()
    return job_id, proof(claim)


def running_task(http: Caller, **fields: Any) -> dict[str, Any]:
    """A claimed task of document 001 that writes prices, as its worker names it."""
    declared(http)
    job_id = http.enqueued("dispatcher", **{"writes": PRICES, **fields})
    won = http.post("/internal/task-claim", {"task_id": job_id, "worker_id": "w1"})
    assert won["status"] == "Claimed"
    return {"task_id": job_id, "attempt": won["attempt"], "lease_token": won["lease_token"]}


def rows(http: Caller, number: int = 1, **query: Any) -> list[Any]:
    """All rows of a generation of prices, page by page."""
    (generation,) = http.get("/api/v1/datasets/prices/generations", number=number)["generations"]
    found, after = list[Any](), dict[str, Any]()
    while True:
        page = http.get(f"/api/v1/dataset-generations/{generation['id']}/rows", **query, **after)
        found += [row["value"] for row in page["rows"]]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


def traces(db: Harness) -> list[int]:
    return [db.value(f"select count(*) from tenure.dataset_{name}") for name in TRACES]


@pytest.mark.req("S1-09", "S1-10")
def test_outputs_are_stored_with_the_completion(http: Caller) -> None:
    for version in (1, 2):
        job_id, shown = held(http)
        replace = {"kind": "replace", "dataset": "prices", "scope": "may", "rows": [version]}
        pointer = {"kind": "pointer", "dataset": "prices", "location": f"s3://{version}", "cursor": "c", "row_count": 9}
        http.post(f"/api/v1/jobs/{job_id}/succeed", {**shown, "outputs": [APPEND, replace, pointer]})
    assert rows(http) == [*ROWS, 2]
    assert rows(http, scope="may") == [2]
    seen = http.get(f"/api/v1/jobs/{job_id}/datasets")
    assert [(one["mode"], one["dataset"], one["generation"]) for one in seen["pins"]] == [("write", "prices", 1)]
    assert [(one["kind"], one["given"], one["row_count"]) for one in seen["outputs"]] == [
        ("append", 2, 0), ("replace", 1, 1), ("pointer", None, 9),
    ]  # fmt: skip
    (generation,) = http.get("/api/v1/datasets/prices/generations")["generations"]
    (pointer,) = http.get(f"/api/v1/dataset-generations/{generation['id']}/pointers")["pointers"]
    assert (pointer["scope"], pointer["location"], pointer["job_id"]) == ("all", "s3://2", job_id)


def test_finishes_of_a_batch_have_outputs_each_its_own(http: Caller) -> None:
    declared(http)
    for _ in range(3):
        http.enqueued(writes=PRICES)
    first, second, third = (
        {**proof(one), "id": one["job"]["id"], "verb": "succeed"} for one in http.claimed(limit=3)
    )  # fmt: skip
    stranger = {**APPEND, "dataset": "others"}
    wrong = {**APPEND, "scope": "may"}
    finishes = [{**first, "outputs": [APPEND]}, {**second, "outputs": [stranger]}, {**third, "outputs": [wrong]}]
    answers = http.post("/api/v1/finishes", {"finishes": finishes})["answers"]
    assert answers[0]["state"] == "succeeded"
    assert [one["error"]["code"] for one in answers[1:]] == ["DATASET_CONFLICT", "E-BAD-INPUT"]
    assert rows(http) == ROWS


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({**APPEND, "keys": ["a", "b"]}, "keys and unique_key both"),
        ({**APPEND, "unique_key": ["no"]}, "has no 'no'"),
        ({**APPEND, "unique_key": None}, "2 rows and 0 keys"),
        ({**APPEND, "keys": ["a", "a"], "unique_key": None}, "two rows with the key a"),
        ({"kind": "replace", "dataset": "prices", "rows": [1]}, "says what it replaces"),
        ({"kind": "pointer", "dataset": "prices"}, "says where the data is kept"),
        ({"kind": "pointer", "dataset": "prices", "location": "x", "rows": []}, "takes no rows"),
        ({**APPEND, "staged": "7"}, "rows that were staged"),
        ({"kind": "append", "dataset": "prices", "staged": "0"}, "staged is 0"),
    ],
)
def test_a_wrong_output_is_refused_and_the_job_stays_held(
    http: Caller, db: Harness, output: dict[str, Any], said: str
) -> None:
    job_id, shown = held(http)
    error = http.refused(f"/api/v1/jobs/{job_id}/succeed", {**shown, "outputs": [output]}, 422, "E-BAD-INPUT")
    assert said in f"{error['message']} {error['hint']}"
    assert http.get(f"/api/v1/jobs/{job_id}")["state"] == "running"
    assert traces(db) == [0] * len(TRACES)


@pytest.mark.req("S1-11")
@pytest.mark.parametrize("contract", ["dispatcher", "standard"])
def test_a_zombie_changes_nothing(http: Caller, db: Harness, contract: str) -> None:
    uuid = declared(http)["dataset_uuid"]
    job_id = http.enqueued(contract, writes=PRICES)
    (claim,) = http.claimed(contract)
    stage = {**proof(claim), "dataset": "prices", "rows": ROWS, "keys": ["a", "b"]}
    db.sql("update tenure.job set claims = claims + 1, lease_token = gen_random_uuid()")
    event = {"dataset_uuid": uuid, "dataset_version": 1, "cursor": 1}
    path = f"/api/v1/jobs/{job_id}"
    http.refused(
        f"{path}/succeed", {**proof(claim), "outputs": [APPEND], "dataset_events": [event]}, 409, "LEASE_CONFLICT"
    )
    http.refused(f"{path}/stage", stage, 409, "LEASE_CONFLICT")
    task = {"task_id": job_id, "attempt": 1, "lease_token": claim["lease_token"], "status": "Completed"}
    http.refused("/internal/task-complete", {**task, "outputs": [APPEND], "events": [event]}, 409, "LEASE_CONFLICT")
    assert traces(db) == [0] * len(TRACES)
    assert http.get(path)["state"] == claim["job"]["state"]


@pytest.mark.req("S1-11", "S1-51", "S1-52")
def test_a_completed_task_has_its_outputs_and_events_or_none(http: Caller, db: Harness) -> None:
    uuid = declared(http)["dataset_uuid"]
    job = {"type": "index"}
    http.client.put("/api/v1/dataset-subscriptions", json={"subscriptions": [{"dataset": "prices", "job": job}]})
    task = running_task(http)
    moved = {"dataset_uuid": uuid, "dataset_version": 1, "location": "s3://x", "partition_key": "may", "row_count": 3}
    outputs = [APPEND, {"rows": 17}, moved, {**moved, "dataset_uuid": str(uuid4())}]
    events = [{"dataset_uuid": uuid, "dataset_version": 1, "cursor": 7}, {"note": 1}]
    body = {**task, "status": "Completed", "outputs": outputs, "events": events}
    other = {**APPEND, "dataset": "others"}
    http.refused("/internal/task-complete", {**body, "outputs": [other]}, 409, "DATASET_CONFLICT")
    http.refused("/internal/task-complete", {**body, "outputs": [{**APPEND, "x": 1}]}, 422, "E-BAD-INPUT")
    http.refused("/internal/task-complete", {**body, "events": [{"dataset_uuid": "x"}]}, 422, "E-BAD-INPUT")
    late = {**moved, "dataset_version": 2}
    http.refused("/internal/task-complete", {**body, "outputs": [late]}, 409, "DATASET_CONFLICT")
    assert traces(db) == [0] * len(TRACES)
    assert http.post("/internal/task-complete", body)["status"] == "Completed"
    assert http.post("/internal/task-complete", body)["status"] == "Completed"  # its answer was lost
    http.refused("/internal/task-complete", {**body, "outputs": [APPEND]}, 409, "IDEMPOTENCY_CONFLICT")
    assert rows(http) == ROWS
    kept = http.get(f"/api/v1/jobs/{task['task_id']}")["result"]
    assert kept == [
        {"kind": "append", "dataset": "prices", "unique_key": ["id"], "given": 2}, *outputs[1:],
    ]  # fmt: skip
    found = http.get(f"/api/v1/jobs/{task['task_id']}/datasets")["outputs"]
    assert [(one["kind"], one["scope"], one["location"]) for one in found] == [
        ("append", None, None), ("pointer", "may", "s3://x"),
    ]  # fmt: skip
    assert db.value("select count(*) from tenure.emitted") == 2
    (subscription,) = http.get("/api/v1/dataset-subscriptions")["subscriptions"]
    assert (subscription["type"], subscription["waiting"]) == ("index", 1)


def test_a_claimed_job_says_what_it_reads_and_writes(http: Caller) -> None:
    uuid = declared(http)["dataset_uuid"]
    for contract in ("standard", "dispatcher"):
        http.enqueued(contract, writes=PRICES, reads=PRICES)
    (claim,) = http.claimed()
    task = http.post("/internal/task-claim", {"task_id": "2", "worker_id": "w"})["task"]
    for seen in (claim["datasets"], task["datasets"]):
        assert [(one["mode"], one["dataset_uuid"], one["generation"]) for one in seen] == [
            ("read", uuid, 1), ("write", uuid, 1),
        ]  # fmt: skip
        assert http.get(f"/api/v1/dataset-generations/{seen[0]['generation_id']}")["number"] == 1
    http.enqueued(writes=PRICES)
    (quick,) = http.claimed(record=False)
    assert "datasets" not in quick


def test_large_outputs_are_staged_part_by_part(http: Caller, db: Harness) -> None:
    job_id, shown = held(http)
    stage = f"/api/v1/jobs/{job_id}/stage"
    first = http.post(stage, {**shown, "dataset": "prices", "rows": [1, 2], "first": 0})
    more = {**shown, "dataset": "prices", "staged": first["staged"], "rows": [3], "first": 2}
    for _ in range(2):  # the first answer was lost
        assert http.post(stage, more) == {"staged": first["staged"], "rows": 3}
    assert rows(http) == []
    keyed = http.post(stage, {**shown, "dataset": "prices", "rows": ROWS, "keys": ["a", "b"]})
    outputs = [
        {"kind": "replace", "dataset": "prices", "scope": "may", "staged": first["staged"]},
        {"kind": "append", "dataset": "prices", "staged": keyed["staged"]},
    ]
    http.post(f"/api/v1/jobs/{job_id}/succeed", {**shown, "outputs": outputs})
    assert rows(http) == [*ROWS, 1, 2, 3]
    http.refused(stage, more, 409, "INVALID_TRANSITION")


def test_a_set_is_cut_over_and_rolled_back_and_people_are_named(dsn: str, db: Harness) -> None:
    key = new_key(dsn, "ann", "operate", "enqueue", "work", person="Ann")
    with serving(dsn) as url, httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}) as client:
        http = Caller(client)
        for name in ("prices", "rates"):
            declared(http, name)
            http.post(f"/api/v1/datasets/{name}/generations", {})
        waiting = http.enqueued(writes=[{"dataset": "prices", "generation": 2}])
        done = http.post("/api/v1/dataset-cutovers", {"generations": {"prices": 2, "rates": 2}, "reason": "the feed"})
        assert (done["kind"], done["actor"], done["reason"]) == ("cutover", "Ann", "the feed")
        both = {"datasets": ["rates", "prices"]}
        current = http.post("/api/v1/dataset-generations/current", both)["generations"]
        assert [(one["dataset"], one["number"]) for one in current] == [("rates", 2), ("prices", 2)]
        http.refused("/api/v1/dataset-cutovers", {"generations": {"prices": 2}}, 409, "DATASET_CONFLICT")
        http.refused("/api/v1/dataset-cutovers", {"generations": {"prices": 9}}, 404, "DATASET_NOT_FOUND")
        back = http.post("/api/v1/dataset-rollbacks", {"datasets": ["prices"], "reason": "a bad feed"})
        assert (back["cancelled"], back["left"]) == ([waiting], {})
        assert http.get(f"/api/v1/jobs/{waiting}")["state"] == "cancelled"
        current = http.post("/api/v1/dataset-generations/current", both)["generations"]
        assert [one["number"] for one in current] == [1, 1]
        history = http.get("/api/v1/dataset-switches", dataset="rates")["switches"]
        assert [(one["kind"], one["actor"], one["reason"]) for one in history] == [
            ("rollback", "Ann", "a bad feed"), ("cutover", "Ann", "the feed"),
        ]  # fmt: skip
        page = http.get("/api/v1/dataset-switches", limit=1)
        assert http.get("/api/v1/dataset-switches", limit=1, cursor=page["next"])["switches"] == history[1:]
        http.refused("/api/v1/dataset-rollbacks", {"datasets": ["prices"]}, 409, "DATASET_CONFLICT")
        seen = http.get("/api/v1/datasets/prices")
        assert (seen["current"], seen["newest"], seen["created_by"], len(seen["generations"])) == (1, 2, "Ann", 2)


def test_a_tenants_key_sees_and_changes_its_own_datasets_alone(dsn: str) -> None:
    keys = {one: new_key(dsn, one, "operate", "work", "enqueue", tenant=one) for one in ("acme", "other")}
    with serving(dsn) as url:
        acme, other = (
            Caller(httpx2.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {keys[one]}"}))
            for one in ("acme", "other")
        )
        generation = declared(acme)
        assert generation["tenant_id"] == "acme"
        assert other.get("/api/v1/datasets")["datasets"] == []
        error = other.get("/api/v1/datasets/prices", status=404)["error"]
        assert (error["code"], error["hint"]) == ("DATASET_NOT_FOUND", "declare it, or GET /api/v1/datasets")
        other.get("/api/v1/datasets/prices", tenant_id="acme", status=403)
        other.get("/api/v1/datasets", tenant_id="acme", status=403)
        for path in ("", "/rows", "/pointers"):
            other.get(f"/api/v1/dataset-generations/{generation['id']}{path}", status=403)
        mine = declared(other)
        stolen = f'["", {generation["id"]}, ""]'  # rows behind a place in the other tenant's generation
        other.get(f"/api/v1/dataset-generations/{mine['id']}/rows", after=stolen, status=422)
        other.refused("/api/v1/jobs", {"type": "t", "reads": [{"dataset": "no"}]}, 404, "DATASET_NOT_FOUND")
        foreign = {"generations": {"prices": 1}, "tenant_id": "acme"}
        other.refused("/api/v1/dataset-cutovers", foreign, 403, "TENANT_SCOPE_VIOLATION")
        job = {"type": "t", "tenant_id": "acme"}
        subscribed = {"subscriptions": [{"dataset": "prices", "job": job}]}
        assert other.client.put("/api/v1/dataset-subscriptions", json=subscribed).status_code == 403
        assert acme.client.put("/api/v1/dataset-subscriptions", json=subscribed).status_code == 200
        assert other.get("/api/v1/dataset-subscriptions")["subscriptions"] == []
        ended = {"dataset": "prices", "type": "t"}
        assert other.post("/api/v1/dataset-subscriptions/end", ended) == {"ended": False}
        assert acme.post("/api/v1/dataset-subscriptions/end", ended) == {"ended": True}
        for one in (acme, other):
            one.client.close()


def test_a_page_of_large_rows_ends_early_and_goes_on(http: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.postgres.datasets.datasets._PAGE_BYTES", 2_500)
    job_id, shown = held(http)
    large = [f"{n}{'x' * 1_000}" for n in range(7)]
    outputs = [
        {"kind": "replace", "dataset": "prices", "scope": scope, "rows": large} for scope in ("may", "june")
    ]  # fmt: skip
    http.post(f"/api/v1/jobs/{job_id}/succeed", {**shown, "outputs": outputs})
    assert rows(http) == large * 2
    (generation,) = http.get("/api/v1/datasets/prices/generations")["generations"]
    assert len(http.get(f"/api/v1/dataset-generations/{generation['id']}/rows")["rows"]) == 3


def test_a_schedule_and_a_batch_name_datasets(http: Caller, db: Harness) -> None:
    declared(http, shape={"v": 1})
    declared(http, shape={"v": 2})
    used = {"reads": PRICES, "writes": [{"dataset": "prices", "shape": {"v": 2}}]}
    made = http.post(
        "/api/v1/jobs/batch", {"jobs": [{"type": "t", **used}, {"type": "t", "reads": [{"dataset": "no"}]}]}
    )
    assert [one.get("error", {}).get("code") for one in made["jobs"]] == [None, "DATASET_NOT_FOUND"]
    schedule = {"application": "shop", "every_seconds": 3_600, "job": {"type": "report", **used}}
    shown = http.client.put("/api/v1/schedules/report", json=schedule).json()
    assert (shown["job"]["reads"], shown["job"]["writes"]) == (used["reads"], used["writes"])
    job_id = http.post("/api/v1/schedules/report/run", {})["job_id"]
    pins = http.get(f"/api/v1/jobs/{job_id}/datasets")["pins"]
    assert [(one["mode"], one["generation"]) for one in pins] == [("read", 1), ("write", 2)]
