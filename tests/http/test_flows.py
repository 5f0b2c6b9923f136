"""Flows over HTTP: one document creates them; scopes and tenants, what the routes answer, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import httpx2
import pytest

from tests.harness import Harness
from tests.http.conftest import Caller, new_key, proof, serving

FLOWS = "/api/v1/flows"
ETL: dict[str, Any] = {
    "name": "nightly",
    "nodes": [
        {"type": "extract", "payload": {"day": "2030-01-02"}, "queue": "db", "max_attempts": 2, "priority": 1},
        {"name": "part", "type": "transform", "payload": {"factor": 2}, "inputs": {"row": "extract"}, "each": "row"},
        {"type": "load", "inputs": {"rows": "part"}, "contract": "phase27"},
        {"name": "alarm", "type": "mail", "cleanup": True},
    ],
}


def end(http: Caller, verb: str = "succeed", contract: str = "standard", **facts: Any) -> list[dict[str, Any]]:
    """Claim what is due and end it so; the jobs."""
    claims = http.claimed(contract, queues=["default", "db"])
    for claim in claims:
        http.post(f"/api/v1/jobs/{claim['job']['id']}/start", proof(claim))
        http.post(f"/api/v1/jobs/{claim['job']['id']}/{verb}", proof(claim, **facts))
    return [claim["job"] for claim in claims]


def states(http: Caller, flow_id: str) -> dict[str, str]:
    """Node → its state."""
    return {node["name"]: node["state"] for node in http.get(f"{FLOWS}/{flow_id}")["nodes"]}


def test_a_document_becomes_a_flow_whose_jobs_get_the_results_of_their_parents(http: Caller) -> None:
    made = http.post(FLOWS, ETL, status=201)
    assert (made["made"], set(made["jobs"])) == (True, {"extract", "part", "load", "alarm"})
    assert states(http, made["id"]) == dict.fromkeys(("part", "load", "alarm"), "waiting") | {"extract": "started"}
    (first,) = end(http, result=[10, 20])
    assert (first["id"], first["payload"], first["queue"]) == (made["jobs"]["extract"], {"day": "2030-01-02"}, "db")
    assert (first["max_attempts"], first["priority"]) == (2, 1)
    parts = end(http, result=7)
    assert [part["payload"] for part in parts] == [{"factor": 2, "row": 10}, {"factor": 2, "row": 20}]
    (last,) = end(http, contract="phase27")
    assert (last["id"], last["payload"]) == (made["jobs"]["load"], {"rows": [7, 7]})
    shown = http.get(f"{FLOWS}/{made['id']}")
    assert (shown["state"], shown["node_count"], shown["open_count"], shown["failed_count"]) == ("succeeded", 6, 0, 0)
    assert shown["created_by"] == "loopback"
    assert [node["name"] for node in shown["nodes"]] == ["extract", "part", "part[0]", "part[1]", "load", "alarm"]
    assert shown["nodes"][-1]["state"] == "skipped"


def test_workers_of_document_001_run_a_flow_and_are_told_its_names(http: Caller) -> None:
    nodes = [{**node, "contract": "dispatcher"} for node in ETL["nodes"]]
    made = http.post(FLOWS, {**ETL, "nodes": nodes}, status=201)
    jobs = made["jobs"]

    def claim(task_id: str) -> Any:
        return http.post("/internal/task-claim", {"task_id": task_id, "worker_id": "w1"})

    def run(task_id: str, outputs: Any) -> Any:
        claimed = claim(task_id)
        proof = {"task_id": task_id, "attempt": claimed["attempt"], "lease_token": claimed["lease_token"]}
        http.post("/internal/task-complete", {**proof, "status": "Completed", "outputs": outputs})
        return claimed["task"]

    assert claim(jobs["load"]) == {"status": "NotClaimed", "reason": "WaitingForParents"}
    first = run(jobs["extract"], [10, 20])
    assert (first["job"], first["inputs"]) == ({"dag_name": "nightly", "name": "extract"}, [])
    given = {"argument": "row", "task_id": jobs["extract"], "name": "extract"}
    members = [one for one in http.get(f"{FLOWS}/{made['id']}")["nodes"] if one["part_of"] is not None]
    for n, member in enumerate(members):
        task = run(member["job_id"], n)
        assert (task["job"], task["inputs"]) == ({"dag_name": "nightly", "name": f"part[{n}]"}, [given])
        assert task["config"] == {"factor": 2, "row": 10 * (n + 1)}
    last = run(jobs["load"], None)
    assert last["config"] == {"rows": [0, 1]}
    assert last["inputs"] == [{"argument": "rows", "task_id": jobs["part"], "name": "part"}]
    assert http.get(f"{FLOWS}/{made['id']}", limit=0)["state"] == "succeeded"
    alone = claim(http.enqueued("dispatcher"))["task"]
    assert (alone["job"], alone["inputs"]) == ({"dag_name": None, "name": "t"}, [])


def test_a_task_that_another_route_claimed_before_is_told_its_names_too(http: Caller, db: Harness) -> None:
    made = http.post(FLOWS, {"name": "f", "nodes": [{"type": "t"}]}, status=201)
    (claim,) = http.claimed()
    http.post(f"/api/v1/jobs/{made['jobs']['t']}/hand-back", proof(claim))
    db.due(int(made["jobs"]["t"]))
    body = {"task_id": made["jobs"]["t"], "worker_id": "w2"}
    assert http.post("/internal/task-claim", body)["task"]["job"]["dag_name"] == "f"


def test_the_same_key_gets_the_first_flow(http: Caller, db: Harness) -> None:
    first = http.post(FLOWS, {**ETL, "idempotency_key": "2030-01-02"}, status=201)
    again = http.post(FLOWS, ETL, status=200, **{"Idempotency-Key": "2030-01-02"})
    assert again == {**first, "made": False}
    error = http.refused(FLOWS, {**ETL, "name": "other", "idempotency_key": "2030-01-02"}, 409, "FLOW_CONFLICT")
    assert error["hint"] == f"use a new key, or GET {FLOWS}/{first['id']}"
    assert db.value("select count(*) from tenure.flow") == 1


def test_flows_are_listed_and_shown_a_page_at_a_time(http: Caller) -> None:
    ids = [http.post(FLOWS, {**ETL, "name": name}, status=201)["id"] for name in ("a", "b", "a")]
    page = http.get(FLOWS, name="a", limit=1)
    assert ([one["id"] for one in page["flows"]], page["next"]) == ([ids[2]], ids[2])
    assert [one["id"] for one in http.get(FLOWS, name="a", cursor=page["next"])["flows"]] == [ids[0]]
    assert http.get(FLOWS, state="failed") == {"flows": [], "next": None}
    names: list[str] = []
    query: dict[str, Any] = {}
    while query.get("cursor", "") is not None:
        page = http.get(f"{FLOWS}/{ids[0]}", limit=3, **query)
        names += [node["name"] for node in page["nodes"]]
        query["cursor"] = page["next"]
    assert sorted(names) == ["alarm", "extract", "load", "part"]
    alone = http.get(f"{FLOWS}/{ids[0]}", limit=0)
    assert (alone["nodes"], alone["next"], alone["name"]) == ([], None, "a")


def test_the_picture_is_an_svg_that_runs_no_script(http: Caller) -> None:
    nodes = [{"name": "<script>alert(1)</script>", "type": "t"}, {"type": "load"}]
    made = http.post(FLOWS, {"name": "odd & <b>", "nodes": nodes}, status=201)
    picture = http.client.get(f"{FLOWS}/{made['id']}/picture")
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert picture.headers["content-security-policy"].startswith("default-src 'none'")
    root = ElementTree.fromstring(picture.text)
    assert {each.tag.rpartition("}")[2] for each in root.iter()}.isdisjoint({"script", "foreignObject"})
    assert "load" in [each.text for each in root.iter()]
    assert http.get(f"{FLOWS}/999999/picture", status=404)["error"]["code"] == "FLOW_NOT_FOUND"


def test_a_flow_is_cancelled_and_what_goes_on_is_named(http: Caller) -> None:
    nodes = [
        {"name": "a", "type": "t"},
        {"name": "b", "type": "t", "contract": "phase27"},  # it has no cancel
        {"name": "c", "type": "t", "after": ["a", "b"]},
    ]
    made = http.post(FLOWS, {"name": "f", "nodes": nodes}, status=201)
    done = http.post(f"{FLOWS}/{made['id']}/cancel", {"mode": "hard", "reason": "wrong day"})
    assert (done["flow"]["state"], done["waiting_count"], done["job_count"]) == ("cancelling", 1, 1)
    assert list(done["left"]) == ["b"]
    log = http.get(f"/api/v1/jobs/{made['jobs']['a']}/events")["events"]
    assert [(row["trigger"], row["actor"], row["reason"]) for row in log] == [("cancel", "loopback", "wrong day")]
    end(http, contract="phase27")
    assert http.get(f"{FLOWS}/{made['id']}")["state"] == "cancelled"
    again = http.post(f"{FLOWS}/{made['id']}/cancel")
    assert (again["job_count"], again["left"]) == (0, {})


def test_a_failed_flow_is_resumed(http: Caller) -> None:
    made = http.post(FLOWS, ETL, status=201)
    path = f"{FLOWS}/{made['id']}/resume"
    assert "no node ended badly" in http.refused(path, None, 409, "FLOW_CONFLICT")["message"]
    http.post(f"/api/v1/jobs/{made['jobs']['extract']}/dead-letter", {"reason_code": "policy"})
    end(http)  # the clean-up node
    assert http.get(f"{FLOWS}/{made['id']}")["state"] == "failed"
    assert "no node 'gone'" in http.refused(path, {"nodes": ["gone"]}, 422, "E-BAD-INPUT")["message"]
    resumed = http.post(path, {"nodes": ["extract"]})
    assert (resumed["flow"]["state"], resumed["waiting_count"], resumed["left"]) == ("running", 2, {})
    (again,) = end(http, result=[])
    assert again["id"] == resumed["jobs"]["extract"] != made["jobs"]["extract"]


def node(name: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "t", "after": list(after), **more}


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node("a", "b"), node("b", "c"), node("c", "a")], "a cycle: "),
        ([node("a"), node("b", "a", "aa")], "nodes[1].after[1]: there is no node 'aa'"),
        ([node("a"), node("a")], "nodes[1].name: flow 'f' has two nodes 'a'"),
        ([node("a"), node("b[0]"), node("b", inputs={"x": "a"}, each="x")], "nodes[1].name: 'b[0]' names a job of"),
        ([node("a", "a")], "nodes[0].after[0]: node 'a' is after itself"),
        ([node("a"), node("b", inputs={"x": ["a", "z"]})], "nodes[1].inputs.x[1]: there is no node 'z'"),
        ([node("a"), node("b", inputs={"x": 5})], "nodes.1.inputs: 'x' must be the name of a node, or a list of"),
        ([node("a"), node("b", inputs={"": "a"})], "nodes[1].inputs: argument must be a non-empty string"),
        ([node("a"), node("b", inputs={"x\0": "a"})], "nodes[1].inputs: argument contains a NUL"),
        ([node("a"), node("b", inputs={"x": "a"}, payload={"x": 1})], "nodes[1].inputs.x: the payload has 'x' too"),
        ([node("a"), node("b", inputs={"x": "a"}, payload=[1])], "nodes[1].inputs: the payload is no object"),
        ([node("a"), node("b", inputs={"x": "a"}, each="y")], "nodes[1].each: 'y' is no input"),
        ([node("a"), node("b", inputs={"x": ["a"]}, each="x")], "nodes[1].each: 'x' has several parents"),
        ([node("a", cleanup=True)], "only clean-up nodes"),
        ([node("a"), node("b", "a", cleanup=True)], "nodes[1]: a clean-up node runs after all others"),
        ([node("a"), node("b", "c"), node("c", cleanup=True)], "nodes[1].after[0]: 'c' is a clean-up node"),
        ([node("a", on_failure="pray")], "nodes.0.on_failure must be one of stop, skip, continue"),
        ([node("a", run_at="2030-01-02T00:00Z", delay_seconds=1)], "nodes[0]: run_at and delay_seconds"),
        ([node("a", unique="waiting")], "there is no field unique in nodes.0"),
        ([], "nodes must be a list of 1 to 10000 items, and has 0"),
    ],
)
def test_a_wrong_document_is_refused_with_the_place_that_is_wrong(
    http: Caller, db: Harness, nodes: list[Any], said: str
) -> None:
    error = http.refused(FLOWS, {"name": "f", "nodes": nodes}, 422, "E-BAD-INPUT")
    assert said in error["message"], error
    assert db.value("select (select count(*) from tenure.flow) + (select count(*) from tenure.job)") == 0


def test_an_unknown_contract_is_refused_with_its_node(http: Caller, db: Harness) -> None:
    error = http.refused(FLOWS, {"name": "f", "nodes": [node("a", contract="gone")]}, 422, "E-UNKNOWN-CONTRACT")
    assert error["message"].startswith("node 'a': no contract 'gone' is registered")
    assert db.value("select count(*) from tenure.flow") == 0


def test_a_cycle_is_named_node_by_node(http: Caller) -> None:
    nodes = [node("first"), node("a", "first", "c"), node("b", "a"), node("c", "b")]
    error = http.refused(FLOWS, {"name": "f", "nodes": nodes}, 422, "E-BAD-INPUT")
    cycle = error["message"].partition("a cycle: ")[2].split(" → ")
    assert (len(cycle), cycle[0], {*cycle}) == (4, cycle[-1], {"a", "b", "c"})
    after = {one["name"]: one["after"] for one in nodes}
    assert all(before in after[behind] for before, behind in itertools.pairwise(cycle))


def test_a_node_that_waits_says_so_and_names_its_parents(http: Caller) -> None:
    made = http.post(FLOWS, ETL, status=201)
    path = f"/api/v1/jobs/{made['jobs']['part']}"
    for where in (path, f"{path}/events", f"{path}/effects"):
        error = http.get(where, status=409)["error"]
        assert (error["code"], error["flow_id"], error["node"]) == ("WAITING_FOR_PARENTS", made["id"], "part")
        assert error["hint"] == f"GET {FLOWS}/{made['id']}"
    http.refused(f"{path}/cancel", {}, 409, "WAITING_FOR_PARENTS")
    why = http.get(f"{path}/why")
    assert (why["id"], why["state"], why["role"]) == (made["jobs"]["part"], "waiting", "waiting")
    first, part, last = (made["jobs"][name] for name in ("extract", "part", "load"))
    flow = f"flow {made['id']} (nightly)"
    assert why["why"] == [f"Job {part} is node part of {flow} and waits for extract (queued, job {first})."]
    assert why["next"] == [f"GET {FLOWS}/{made['id']}", f"GET /api/v1/jobs/{first}/why"]
    end(http, result=[1, 2])
    assert http.get(f"/api/v1/jobs/{last}/why")["why"] == [
        f"Job {last} is node load of {flow} and waits for part (2 of its jobs have not ended)."
    ]
    http.post(f"{FLOWS}/{made['id']}/cancel", {})
    ended = http.get(f"/api/v1/jobs/{made['jobs']['load']}/why")
    assert (ended["state"], ended["role"], ended["next"][1]) == (
        "cancelled", "done", f"POST {FLOWS}/{made['id']}/resume",
    )  # fmt: skip


@pytest.fixture
def tenants(dsn: str, db: Harness) -> Iterator[tuple[Caller, Caller]]:
    """Callers whose keys are bound to two tenants."""
    with serving(dsn) as url:
        callers = [
            Caller(httpx2.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {key}"}))
            for key in [new_key(dsn, one, "enqueue", "operate", tenant=one) for one in ("acme", "other")]
        ]
        yield callers[0], callers[1]
        for caller in callers:
            caller.client.close()


def test_a_tenants_key_makes_sees_and_changes_its_own_flows_alone(tenants: tuple[Caller, Caller]) -> None:
    acme, other = tenants
    made = acme.post(FLOWS, ETL, status=201)
    shown = acme.get(f"{FLOWS}/{made['id']}")
    assert (shown["tenant_id"], shown["created_by"]) == ("acme", "key acme")
    assert acme.get(f"/api/v1/jobs/{made['jobs']['extract']}")["tenant_id"] == "acme"
    assert [one["id"] for one in acme.get(FLOWS)["flows"]] == [made["id"]]
    assert other.get(FLOWS) == {"flows": [], "next": None}
    assert other.get(FLOWS, status=403, tenant_id="acme")["error"]["code"] == "TENANT_SCOPE_VIOLATION"
    for path in (f"{FLOWS}/{made['id']}", f"{FLOWS}/{made['id']}/picture", f"/api/v1/jobs/{made['jobs']['load']}",
                 f"/api/v1/jobs/{made['jobs']['load']}/why"):  # fmt: skip
        assert other.get(path, status=403)["error"]["code"] == "TENANT_SCOPE_VIOLATION", path
    for verb in ("cancel", "resume"):
        other.refused(f"{FLOWS}/{made['id']}/{verb}", {}, 403, "TENANT_SCOPE_VIOLATION")
    other.refused(FLOWS, {**ETL, "tenant_id": "acme"}, 403, "TENANT_SCOPE_VIOLATION")
    assert acme.get(f"{FLOWS}/{made['id']}")["state"] == "running"


@pytest.mark.parametrize("width", [10, pytest.param(100, marks=pytest.mark.prove)])
def test_ten_thousand_nodes_fit_into_one_request(http: Caller, db: Harness, width: int) -> None:
    count = 100 * width
    layers = [[f"node-{layer}-{n}" for n in range(width)] for layer in range(100)]
    nodes = [
        node(name, *([before[n], before[n - 1]] if before else []), payload={"text": "x" * 200, "n": n})
        for before, layer in zip([[], *layers], layers, strict=False)
        for n, name in enumerate(layer)
    ]
    made = http.post(FLOWS, {"name": "layers", "nodes": nodes}, status=201)
    assert len(made["jobs"]) == count
    assert db.value("select count(*) from tenure.job") == width
    assert http.get(f"{FLOWS}/{made['id']}", limit=0)["open_count"] == count
    assert "layer" in http.client.get(f"{FLOWS}/{made['id']}/picture").text
    done = http.post(f"{FLOWS}/{made['id']}/cancel", {})
    assert (done["flow"]["state"], done["waiting_count"], done["job_count"]) == ("cancelled", count - width, width)


def test_a_flow_of_more_nodes_is_refused(http: Caller) -> None:
    nodes = [{"name": str(n), "type": "t"} for n in range(10_001)]
    error = http.refused(FLOWS, {"name": "f", "nodes": nodes}, 422, "E-BAD-INPUT")
    assert error["message"] == "nodes must be a list of 1 to 10000 items, and has 10001"
