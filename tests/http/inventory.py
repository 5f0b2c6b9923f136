"""Every route of the dispatcher, as its application has them, and for each a request that it takes.

A route that is new is in ROUTES at once, and fails the tests of all routes until `World` knows a request for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tenure.http import route_table
from tenure.http.openapi import openapi_document
from tests.http.conftest import Caller, proof

#: Those that answer to everybody: a load balancer has no key.
OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
#: Of one tenant alone is what these tell or change; a key that is bound to another is refused.
ABOUT_ALL = {
    ("PUT", "/api/v1/types"),
    ("PUT", "/api/v1/schedules"),
    ("GET", "/api/v1/queues"),
    ("POST", "/api/v1/queues/pause"),
    ("POST", "/api/v1/queues/resume"),
    ("GET", "/api/v1/workers"),
    ("GET", "/api/v1/doctor"),
    ("POST", "/api/v1/alarms/test"),
}
#: What may stand for the part that a path leaves open.
ANY = {
    "job_id": "1", "flow_id": "1", "letter_id": "1", "name": "standard", "schedule": "report", "dataset": "prices",
    "generation_id": "1", "operation_id": "1", "group": "9f2c41d07ab1e635",
}  # fmt: skip


class Route(NamedTuple):
    """A route, and the scopes of which its caller needs one; none: any key will do."""

    method: str
    path: str
    scopes: tuple[str, ...]
    takes_body: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def key(self) -> tuple[str, str]:
        """What it is found by."""
        return self.method, self.path

    @property
    def names_one(self) -> bool:
        """Whether it is about one job, flow, dead letter or generation."""
        named = ("{job_id}", "{flow_id}", "{letter_id}", "{generation_id}")
        return any(name in self.path for name in named) or self.path.startswith("/internal/")


def _routes() -> list[Route]:
    found = []
    for route in route_table.ROUTES:
        if (route.method, route.path) not in OPEN:
            assert route.scopes is not None, f"{route.method} {route.path} asks nobody who they are"
            found.append(Route(route.method, route.path, route.scopes, route.body is not None))
    return found


ROUTES = _routes()
BODIES = [route for route in ROUTES if route.takes_body]
SCHEMA = openapi_document(route_table.ROUTES)


class Asked(NamedTuple):
    """A request: where, and with which body."""

    path: str
    body: dict[str, Any] | None = None


class World:
    """Makes what a route needs, through an admin's calls, and a request that the route then takes."""

    def __init__(self, http: Caller, tenant: str = "default") -> None:
        self.http, self.tenant = http, tenant
        self._queue = "world"

    def request(self, route: Route) -> Asked:
        """A request that this route takes; fails for a route that nobody has thought of."""
        made = _REQUESTS[route.key](self)
        if made.path.startswith("?"):
            return made._replace(path=route.path + made.path)
        return made._replace(path=route.path.format(**_names(made.path)))

    def job(self, contract: str = "standard", **fields: Any) -> str:
        """A job that waits."""
        return self.http.enqueued(contract, tenant_id=self.tenant, queue=self._queue, **fields)

    def held(self, contract: str = "standard") -> tuple[str, dict[str, Any]]:
        """A job that is held, with what its holder shows."""
        job_id = self.job(contract)
        won = self.http.claimed(contract, queues=[self._queue], limit=1_000)
        (mine,) = [claim for claim in won if claim["job"]["id"] == job_id]
        return job_id, proof(mine)

    def begun(self, contract: str) -> tuple[str, dict[str, Any]]:
        """A job that is held and begun."""
        job_id, shown = self.held(contract)
        self.http.post(f"/api/v1/jobs/{job_id}/start", shown)
        return job_id, shown

    def done(self) -> str:
        """A job that ended well."""
        job_id, shown = self.held()
        self.http.post(f"/api/v1/jobs/{job_id}/succeed", shown)
        return job_id

    def compensating(self) -> tuple[str, dict[str, Any]]:
        """A job that failed and has an effect to be undone."""
        job_id, shown = self.begun("reliability")
        self.http.post(f"/api/v1/jobs/{job_id}/effect", {**shown, "node": "pay", "compensable": True})
        error = {"type": "PermanentError", "message": "no", "retryable": False}
        assert self.http.post(f"/api/v1/jobs/{job_id}/fail", {**shown, "error": error})["compensate"] == ["pay"]
        return job_id, shown

    def letter(self, contract: str = "standard") -> str:
        """A dead letter."""
        job_id, shown = self.begun(contract)
        error = {"type": "PermanentError", "message": "no", "code": "PERMANENT", "retryable": False}
        self.http.post(f"/api/v1/jobs/{job_id}/fail", {**shown, "error": error})
        return str(self.http.get(f"/api/v1/jobs/{job_id}")["dlq_id"])

    def alarm(self) -> str:
        """A test alarm, which the list shows."""
        self.http.post("/api/v1/alarms/test", None)
        return ""

    def asked_letter(self) -> str:
        """A dead letter that one person wants to be thrown away."""
        letter_id = self.letter("gate_b2")
        self.http.post(f"/api/v1/dlq/items/{letter_id}/discard", {"reason": "a test", "person": "Ann"})
        return letter_id

    def task(self) -> dict[str, Any]:
        """A claimed task of document 001, as its worker names it."""
        job_id = self.job("dispatcher")
        won = self.http.post("/internal/task-claim", {"task_id": job_id, "worker_id": "w1"})
        return {"task_id": job_id, "attempt": won["attempt"], "lease_token": won["lease_token"]}

    def snoozed(self) -> str:
        """A job that ran and waits."""
        job_id, shown = self.held()
        self.http.post(f"/api/v1/jobs/{job_id}/snooze", {**shown, "seconds": 600})
        return job_id

    def group(self) -> str:
        """A cause of dead letters."""
        self.letter()
        return str(self.http.get("/api/v1/dlq/groups")["groups"][0]["fingerprint"])

    def operation(self, *verbs: str) -> str:
        """A slow operation on many jobs, on which these calls were made."""
        self.job(), self.job()
        body = {"kind": "jobs", "verb": "cancel", "q": f"queue:{self._queue}", "per_second": 0.01}
        made = self.http.post("/api/v1/operations", body, status=201)["id"]
        for verb in verbs:
            self.http.post(f"/api/v1/operations/{made}/{verb}", {} if verb != "abort" else None)
        return str(made)

    def flow(self) -> str:
        """A flow that runs."""
        return str(self.http.post("/api/v1/flows", {**_FLOW, "tenant_id": self.tenant}, status=201)["id"])

    def failed_flow(self) -> str:
        """A flow whose first node has failed."""
        made = self.http.post("/api/v1/flows", {**_FLOW, "tenant_id": self.tenant}, status=201)
        self.http.post(f"/api/v1/jobs/{made['jobs']['extract']}/dead-letter", {"reason_code": "policy"})
        return str(made["id"])

    def schedule(self) -> str:
        """A schedule that was made at run time."""
        made = self.http.client.put("/api/v1/schedules/report", json=self.put_schedule())
        assert made.status_code == 200, made.text
        return "report"

    def put_schedule(self) -> dict[str, Any]:
        """What makes a schedule."""
        return {**_TIMES, "application": "shop", "job": {**_SCHEDULED, "tenant_id": self.tenant}}

    def dataset(self, name: str = "prices") -> str:
        """A dataset of this tenant, with a second generation that waits for a cutover."""
        for version in (1, 2):
            made = self.http.client.put(
                f"{_DATASETS}/{name}", json={"tenant_id": self.tenant, "shape": {"v": version}, "keep": 3}
            )
            assert made.status_code == 200, made.text
        return name

    def generation(self) -> str:
        """The id of its first generation."""
        page = self.http.get(f"{_DATASETS}/{self.dataset()}/generations", tenant_id=self.tenant, number=1)
        return str(page["generations"][0]["id"])

    def writer(self) -> tuple[str, dict[str, Any]]:
        """A job that is held and writes the dataset."""
        used = [{"dataset": self.dataset(), "generation": 1}]
        job_id = self.job(writes=used, reads=used)
        won = self.http.claimed(queues=[self._queue], limit=1_000)
        (mine,) = [claim for claim in won if claim["job"]["id"] == job_id]
        return job_id, proof(mine)

    def cutover(self, name: str = "prices") -> dict[str, Any]:
        """A cutover of a dataset to a new generation."""
        made = self.http.post(f"{_DATASETS}/{self.dataset(name)}/generations", {"tenant_id": self.tenant})
        return {"generations": {name: made["number"]}, "tenant_id": self.tenant, "reason": "a test"}

    def rollback(self) -> dict[str, Any]:
        """A rollback of such a cutover."""
        self.http.post("/api/v1/dataset-cutovers", self.cutover("rates"))
        return {"datasets": ["rates"], "tenant_id": self.tenant, "reason": "a test"}

    def subscribed(self) -> dict[str, Any]:
        """A task that is subscribed to the dataset."""
        job = {name: value for name, value in _SCHEDULED.items() if name != "key"}
        job |= {"tenant_id": self.tenant, "reads": [{"dataset": self.dataset()}]}
        return {"dataset": "prices", "argument": "event", "job": job}


def _names(which: str) -> dict[str, str]:
    """The id or name that stands for what a path leaves open."""
    return dict.fromkeys(
        ("job_id", "flow_id", "letter_id", "name", "schedule", "dataset", "generation_id", "group", "operation_id"),
        which,
    )


def _staging(world: World) -> Asked:
    job_id, shown = world.writer()
    return Asked(job_id, {**shown, "dataset": "prices", "rows": [{"a": 1}], "keys": ["k"]})


def _completing(world: World) -> Asked:
    job_id, shown = world.writer()
    append = {"kind": "append", "dataset": "prices", "rows": [{"id": "a"}], "unique_key": ["id"]}
    event = {"dataset": "prices", "dataset_version": 1, "partition_key": "may", "start": 1, "end": 2}
    return Asked(job_id, {**shown, "result": {"a": 1}, "outputs": [append], "dataset_events": [event]})


def _held(contract: str = "standard", **facts: Any) -> Callable[[World], Asked]:
    def request(world: World) -> Asked:
        job_id, shown = world.held(contract)
        return Asked(job_id, {**shown, **facts})

    return request


def _begun(contract: str, **facts: Any) -> Callable[[World], Asked]:
    def request(world: World) -> Asked:
        job_id, shown = world.begun(contract)
        return Asked(job_id, {**shown, **facts})

    return request


def _compensating(**facts: Any) -> Callable[[World], Asked]:
    def request(world: World) -> Asked:
        job_id, shown = world.compensating()
        return Asked(job_id, {**shown, **facts})

    return request


def _many(name: str, **facts: Any) -> Callable[[World], Asked]:
    def request(world: World) -> Asked:
        job_id, shown = world.held()
        return Asked("", {name: [{**shown, "id": job_id, **facts}]})

    return request


_JOB, _V1 = "/api/v1/jobs/{job_id}/", "/api/v1/"
_ERROR = {"type": "TimeoutError", "message": "too slow", "code": "T", "stack": "here", "stage": "x", "retryable": True}
_NEW = {
    "type": "t", "payload": {"a": 1}, "contract": "standard", "queue": "q", "tenant_id": "default", "priority": 5,
    "max_attempts": 3, "correlation_id": "c", "trace_id": "d",
}  # fmt: skip
_TIMES = {
    "cron": "0 9 * * 1-5", "tz": "Europe/Berlin", "jitter_seconds": 30, "missed": "all", "overlap": "allow",
}  # fmt: skip
_SCHEDULED = {
    "type": "t", "payload": {"a": 1}, "contract": "standard", "queue": "q", "tenant_id": "default", "priority": 5,
    "max_attempts": 3, "delay_ms": 10, "key": "k", "correlation_id": "c", "trace_id": "d",
}  # fmt: skip
_SCHEDULE = "/api/v1/schedules/{schedule}"
_OPERATION = "/api/v1/operations/{operation_id}"
_FLOW = {
    "name": "nightly", "on_failure": "skip",
    "nodes": [
        {"type": "extract", "queue": "q", "payload": {"day": "2030-01-02"}},
        {"name": "part", "type": "transform", "queue": "q", "inputs": {"row": "extract"}, "each": "row"},
        {"name": "sum", "type": "load", "queue": "q", "inputs": {"rows": "part", "both": ["extract", "part"]}},
        {"name": "last", "type": "t", "after": ["sum"], "on_failure": "continue", "max_attempts": 3, "priority": 1},
        {"name": "alarm", "type": "t", "cleanup": True},
    ],
}  # fmt: skip
_DATASETS, _GENERATION = "/api/v1/datasets", "/api/v1/dataset-generations/{generation_id}"
_DATASET = _DATASETS + "/{dataset}"
_PLACES = {"contracts": ["standard"], "queues": ["q"]}

_REQUESTS: dict[tuple[str, str], Callable[[World], Asked]] = {
    ("POST", "/api/v1/jobs"): lambda w: Asked("", {**_NEW, "tenant_id": w.tenant}),
    ("POST", "/api/v1/jobs/batch"): lambda w: Asked("", {"jobs": [{**_NEW, "tenant_id": w.tenant}]}),
    ("GET", "/api/v1/jobs"): lambda _: Asked(""),
    ("GET", "/api/v1/jobs/count"): lambda _: Asked("?by=worker"),
    ("GET", "/api/v1/jobs/{job_id}"): lambda w: Asked(w.job()),
    ("GET", _JOB + "events"): lambda w: Asked(w.job()),
    ("GET", _JOB + "effects"): lambda w: Asked(w.job()),
    ("POST", _V1 + "claims"): lambda _: Asked("", {"worker_id": "w", "queues": ["q"], "types": ["none"], "limit": 2}),
    ("POST", _V1 + "due"): lambda _: Asked("", _PLACES),
    ("GET", _V1 + "wakeups"): lambda _: Asked(""),
    ("PUT", _V1 + "workers"): lambda _: Asked("", {"worker_id": "w", "queues": ["q"], "types": ["t"], "busy": 1}),
    ("POST", _V1 + "workers/leave"): lambda _: Asked("", {"worker_id": "w", "host": "h", "pid": 1}),
    ("PUT", _V1 + "types"): lambda _: Asked("", {"types": [{"type": "t", "contract": "standard", "max_attempts": 3}]}),
    ("POST", _JOB + "start"): _held("reliability"),
    ("POST", _JOB + "heartbeat"): _held(),
    ("POST", _JOB + "progress"): _held(value=0.5),
    ("POST", _JOB + "checkpoint"): _held(value={"page": 7}),
    ("POST", _JOB + "effect"): _begun("reliability", node="pay", result={"a": 1}, compensable=True),
    ("POST", _JOB + "undone"): _compensating(node="pay"),
    ("POST", _JOB + "succeed"): _completing,
    ("GET", _DATASETS): lambda _: Asked(""),
    ("GET", _DATASET): lambda w: Asked(w.dataset()),
    ("PUT", _DATASET): lambda w: Asked(w.dataset(), {"tenant_id": w.tenant, "shape": {"v": 1}, "keep": 3}),
    ("GET", _DATASET + "/generations"): lambda w: Asked(w.dataset()),
    ("POST", _DATASET + "/generations"): lambda w: Asked(w.dataset(), {"tenant_id": w.tenant}),
    ("GET", _V1 + "dataset-generations"): lambda _: Asked("?flow_id=1"),
    ("POST", _V1 + "dataset-generations/current"): lambda w: Asked(
        "", {"datasets": [w.dataset()], "tenant_id": w.tenant}
    ),
    ("GET", _GENERATION): lambda w: Asked(w.generation()),
    ("GET", _GENERATION + "/rows"): lambda w: Asked(w.generation()),
    ("GET", _GENERATION + "/pointers"): lambda w: Asked(w.generation()),
    ("POST", _V1 + "dataset-cutovers"): lambda w: Asked("", w.cutover()),
    ("POST", _V1 + "dataset-rollbacks"): lambda w: Asked("", w.rollback()),
    ("GET", _V1 + "dataset-switches"): lambda _: Asked(""),
    ("GET", _V1 + "dataset-subscriptions"): lambda _: Asked(""),
    ("PUT", _V1 + "dataset-subscriptions"): lambda w: Asked(
        "", {"subscriptions": [w.subscribed()], "application": "shop"}
    ),
    ("POST", _V1 + "dataset-subscriptions/end"): lambda w: Asked(
        "", {"dataset": w.dataset(), "type": "t", "contract": "standard", "tenant_id": w.tenant}
    ),
    ("GET", _JOB + "datasets"): lambda w: Asked(w.job()),
    ("POST", _JOB + "stage"): _staging,
    ("POST", _JOB + "fail"): _held(error=_ERROR),
    ("POST", _JOB + "snooze"): _held(seconds=5),
    ("POST", _JOB + "hand-back"): _held(seconds=5, reason="a test"),
    ("POST", _JOB + "cancelled"): _held(reason="a test"),
    ("POST", _JOB + "compensated"): _compensating(),
    ("POST", _JOB + "compensation-failed"): _compensating(error=_ERROR),
    ("POST", _V1 + "finishes"): _many("finishes", verb="succeed", result={"a": 1}),
    ("POST", _V1 + "starts"): _many("starts"),
    ("POST", _V1 + "heartbeats"): _many("heartbeats"),
    ("POST", _JOB + "cancel"): lambda w: Asked(w.job(), {"mode": "hard", "reason": "a test"}),
    ("POST", _JOB + "move"): lambda w: Asked(w.job(), {"queue": "mail", "reason": "a test"}),
    ("POST", _JOB + "transition"): lambda w: Asked(w.job(), {"to": "cancelled", "reason": "a test"}),
    ("POST", _JOB + "dead-letter"): lambda w: Asked(w.job(), {"reason_code": "policy", "stage": "x", "message": "m"}),
    ("POST", _JOB + "requeue"): lambda w: Asked(w.done(), {}),
    ("GET", _V1 + "contracts"): lambda _: Asked(""),
    ("GET", _V1 + "contracts/{name}"): lambda _: Asked("standard"),
    ("GET", _V1 + "contracts/{name}/activity"): lambda _: Asked("standard"),
    ("GET", _V1 + "contracts/{name}/verification"): lambda _: Asked("standard"),
    ("GET", _V1 + "queues"): lambda _: Asked(""),
    ("POST", _V1 + "queues/pause"): lambda _: Asked("", {"queue": "paused", "reason": "a test"}),
    ("POST", _V1 + "queues/resume"): lambda _: Asked("", {"queue": "paused"}),
    ("GET", _JOB + "why"): lambda w: Asked(w.job()),
    ("GET", _V1 + "workers"): lambda _: Asked(""),
    ("GET", _V1 + "doctor"): lambda _: Asked(""),
    ("GET", _V1 + "alarms"): lambda w: Asked(w.alarm()),
    ("POST", _V1 + "alarms/mute"): lambda _: Asked(
        "", {"kind": "test", "seconds": 60, "reason": "a test", "person": "Ann"}
    ),
    ("POST", _V1 + "alarms/unmute"): lambda _: Asked("", {"kind": "test"}),
    ("POST", _V1 + "alarms/test"): lambda _: Asked(""),
    ("GET", _V1 + "stats"): lambda _: Asked(""),
    ("GET", "/metrics"): lambda _: Asked(""),
    ("PUT", _V1 + "schedules"): lambda _: Asked(
        "", {"application": "shop", "declared_by": "w", "schedules": [{**_TIMES, "name": "nightly", "job": _SCHEDULED}]}
    ),
    ("GET", _V1 + "schedules"): lambda _: Asked(""),
    ("GET", _SCHEDULE): lambda w: Asked(w.schedule()),
    ("PUT", _SCHEDULE): lambda w: Asked("report", w.put_schedule()),
    ("DELETE", _SCHEDULE): lambda w: Asked(w.schedule()),
    ("GET", _SCHEDULE + "/next"): lambda w: Asked(w.schedule()),
    ("POST", _SCHEDULE + "/pause"): lambda w: Asked(w.schedule(), {"application": "shop", "reason": "a test"}),
    ("POST", _SCHEDULE + "/resume"): lambda w: Asked(w.schedule(), {"application": "shop"}),
    ("POST", _SCHEDULE + "/run"): lambda w: Asked(w.schedule(), {"application": "shop"}),
    ("POST", _V1 + "flows"): lambda w: Asked("", {**_FLOW, "tenant_id": w.tenant}),
    ("GET", _V1 + "flows"): lambda _: Asked(""),
    ("GET", _V1 + "flows/{flow_id}"): lambda w: Asked(w.flow()),
    ("GET", _V1 + "flows/{flow_id}/picture"): lambda w: Asked(w.flow()),
    ("POST", _V1 + "flows/{flow_id}/cancel"): lambda w: Asked(w.flow(), {"mode": "hard", "reason": "a test"}),
    ("POST", _V1 + "flows/{flow_id}/resume"): lambda w: Asked(w.failed_flow(), {"nodes": ["extract"]}),
    ("GET", _V1 + "dlq/items"): lambda _: Asked(""),
    ("GET", _V1 + "dlq/groups"): lambda _: Asked(""),
    ("GET", _V1 + "dlq/groups/{group}"): lambda w: Asked(w.group()),
    ("POST", _JOB + "retry-now"): lambda w: Asked(w.snoozed(), {"reason": "a test"}),
    ("POST", _V1 + "operations"): lambda _: Asked("", {"kind": "jobs", "verb": "cancel", "q": "type:none"}),
    ("GET", _V1 + "operations"): lambda _: Asked(""),
    ("GET", _OPERATION): lambda w: Asked(w.operation()),
    ("GET", _OPERATION + "/items"): lambda w: Asked(w.operation()),
    ("POST", _OPERATION + "/collect"): lambda w: Asked(w.operation()),
    ("POST", _OPERATION + "/start"): lambda w: Asked(w.operation(), {}),
    ("POST", _OPERATION + "/abort"): lambda w: Asked(w.operation("start")),
    ("POST", _OPERATION + "/resume"): lambda w: Asked(w.operation("start", "abort"), {}),
    ("GET", _V1 + "dlq/items/{letter_id}"): lambda w: Asked(w.letter()),
    ("POST", _V1 + "dlq/items/{letter_id}/requeue"): lambda w: Asked(w.letter(), {}),
    ("POST", _V1 + "dlq/items/{letter_id}/discard"): lambda w: Asked(w.letter(), {"reason": "a test", "person": "Ann"}),
    ("POST", _V1 + "dlq/items/{letter_id}/approve"): lambda w: Asked(w.asked_letter(), {"person": "Ben"}),
    ("POST", "/internal/task-claim"): lambda w: Asked("", {"task_id": w.job("dispatcher"), "worker_id": "w1"}),
    ("POST", "/internal/heartbeat"): lambda w: Asked("", w.task()),
    ("POST", "/internal/task-complete"): lambda w: Asked(
        "", {**w.task(), "status": "Completed", "outputs": [{"a": 1}], "events": [{"b": 2}]}
    ),
    ("POST", "/api/v1/internal/jobs/{job_id}/run"): lambda w: Asked(w.job("gate_b2")),
    ("GET", "/openapi.json"): lambda _: Asked(""),
}
