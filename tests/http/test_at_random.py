"""Jobs' lives at random over HTTP: everything is said of everything, with proofs that are right, late or made up.

Each answer is within the schema that the OpenAPI has for it, none is a 5xx, and at the end every job's log is sound.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tenure.contracts import BUILT_IN
from tests.harness import Harness
from tests.http.inventory import SCHEMA

pytestmark = pytest.mark.serial


class Held(NamedTuple):
    """What a claim gave: the job, and what its holder shows."""

    job_id: str
    contract: str
    shown: dict[str, Any]


@cache
def _validator(method: str, path: str, status: int) -> Any:
    """Checks an answer against the schema that is documented for it; fails where none is."""
    described = SCHEMA["paths"][path][method.lower()]["responses"]
    assert str(status) in described, f"{method} {path}: {status} is not documented"
    answer = described[str(status)]
    if "$ref" in answer:
        answer = SCHEMA["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    shown = answer["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**shown, "components": SCHEMA["components"]}, validate_formats=True)


_CONTRACTS = st.sampled_from(sorted(BUILT_IN))
_VALUES: st.SearchStrategy[Any] = st.sampled_from([None, 1, "text", {"a": [1, {"b": None}]}, [], 0.5])
_KEYS = st.sampled_from([None, None, None, "k1", "k2"])
_ERRORS = st.sampled_from(
    [
        {},
        {"type": "TimeoutError", "message": "slow", "retryable": True},
        {"type": "PermanentError", "message": "never", "code": "X", "stage": "exec", "retryable": False},
        {"type": "ValidationError", "message": "wrong"},
    ]
)
_STATES = st.sampled_from(sorted({state for contract in BUILT_IN.values() for state in contract.states}))
_PEOPLE = st.sampled_from(["Ann", "Ben", "ann "])
_VERBS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "start": {"idempotency_key": _KEYS},
    "heartbeat": {"idempotency_key": _KEYS},
    "progress": {"value": _VALUES},
    "checkpoint": {"value": _VALUES},
    "effect": {"node": st.sampled_from(["pay", "mail"]), "result": _VALUES, "compensable": st.booleans()},
    "undone": {"node": st.sampled_from(["pay", "mail"])},
    "succeed": {"result": _VALUES, "idempotency_key": _KEYS},
    "fail": {"error": _ERRORS, "idempotency_key": _KEYS},
    "snooze": {"seconds": st.sampled_from([0, 0.5, 60]), "idempotency_key": _KEYS},
    "hand-back": {"seconds": st.sampled_from([0, 1]), "reason": st.sampled_from([None, "over"])},
    "cancelled": {"reason": st.sampled_from([None, "asked"]), "idempotency_key": _KEYS},
    "compensated": {"idempotency_key": _KEYS},
    "compensation-failed": {"error": _ERRORS, "idempotency_key": _KEYS},
}
_SAYING = st.sampled_from(sorted(_VERBS)).flatmap(
    lambda verb: st.tuples(st.just(verb), st.fixed_dictionaries(_VERBS[verb]))
)


class Lives(RuleBasedStateMachine):
    """Clients of one dispatcher, who do whatever they can."""

    url: str
    dsn: str
    jobs: Bundle[str] = Bundle("jobs")
    helds: Bundle[Held] = Bundle("helds")

    def __init__(self) -> None:
        super().__init__()
        self.client, self.db = httpx2.Client(base_url=self.url, timeout=30), Harness(self.dsn)
        self.queue, self.made = uuid4().hex, set[str]()

    def teardown(self) -> None:
        """Whatever happened, the log tells it."""
        self.overlook()
        self.db.log_is_sound(*map(int, self.made))
        self.client.close()
        self.db.connection.close()

    def ask(self, method: str, path: str, body: Any = None, *, params: Any = None, **names: str) -> Any:
        """Call an operation; its answer is within the schema of its status."""
        response = self.client.request(method, path.format(**names), json=body, params=params)
        assert response.status_code < 500, (path, body, response.text)
        problems = [str(error) for error in _validator(method, path, response.status_code).iter_errors(response.json())]
        assert not problems, (method, path, response.text, problems)
        return response.json() if response.is_success else None

    @rule(target=jobs, contract=_CONTRACTS, payload=_VALUES, key=_KEYS, delay=st.sampled_from([None, None, 0, 60]))
    def enqueue(self, contract: str, payload: Any, key: str | None, delay: float | None) -> Any:
        """Make a job, sometimes under a key that was used before."""
        body = {"type": "t", "contract": contract, "payload": payload, "queue": self.queue, "delay_seconds": delay}
        keyed = {"idempotency_key": key and f"{self.queue}:{key}"}
        if (made := self.ask("POST", "/api/v1/jobs", {**body, **keyed})) is None:
            return multiple()
        self.made.add(made["id"])
        return made["id"]

    @rule(target=jobs, count=st.integers(1, 5), contract=_CONTRACTS)
    def enqueue_many(self, count: int, contract: str) -> Any:
        """Make several."""
        job = {"type": "t", "contract": contract, "queue": self.queue}
        made = self.ask("POST", "/api/v1/jobs/batch", {"jobs": [job] * count})["jobs"]
        self.made |= {one["id"] for one in made}
        return multiple(*(one["id"] for one in made))

    @rule(target=helds, contract=_CONTRACTS, limit=st.integers(1, 3), keyed=st.booleans(), begins=st.booleans())
    def claim(self, contract: str, limit: int, keyed: bool, begins: bool) -> Any:
        """Make a job more and claim what there is; with a key ask again."""
        self.enqueue_many(1, contract)
        body = {"contract": contract, "queues": [self.queue], "worker_id": "w", "limit": limit, "record": begins}
        body |= {"claim_key": str(uuid4())} if keyed else {}
        won = self.ask("POST", "/api/v1/claims", body)["claims"]
        assert won
        if keyed:
            again = self.ask("POST", "/api/v1/claims", body)["claims"]
            assert {one["job"]["id"] for one in again} == {one["job"]["id"] for one in won}
        proofs = ({"claims": one["claims"], "lease_token": one["lease_token"]} for one in won)
        found = [Held(one["job"]["id"], contract, shown) for one, shown in zip(won, proofs, strict=True)]
        for held in found if begins else []:
            self.ask("POST", "/api/v1/jobs/{job_id}/start", held.shown, job_id=held.job_id)
        return multiple(*found)

    @rule(held=helds, saying=_SAYING)
    def say(self, held: Held, saying: tuple[str, dict[str, Any]]) -> None:
        """Say something of a job that is, or was, held."""
        verb, facts = saying
        self.ask("POST", f"/api/v1/jobs/{{job_id}}/{verb}", {**held.shown, **facts}, job_id=held.job_id)

    @rule(held=helds, first=_SAYING, second=_SAYING, third=_SAYING)
    def go_on(self, held: Held, first: Any, second: Any, third: Any) -> None:
        """Say several things of one job, one after the other."""
        for saying in (first, second, third):
            self.say(held, saying)

    @rule(
        helds=st.lists(helds, min_size=1, max_size=4), verb=st.sampled_from(["succeed", "fail", "snooze", "cancelled"])
    )
    def finish(self, helds: list[Held], verb: str) -> None:
        """Last words of several, some of them of the same job."""
        words = [{**held.shown, "id": held.job_id, "verb": verb} for held in helds]
        self.ask("POST", "/api/v1/finishes", {"finishes": words})
        for batch in ("starts", "heartbeats"):
            self.ask("POST", f"/api/v1/{batch}", {batch: [{**one.shown, "id": one.job_id} for one in helds]})

    @rule(job=jobs, what=st.sampled_from(["", "/events", "/effects"]))
    def look(self, job: str, what: str) -> None:
        """Look at a job."""
        self.ask("GET", "/api/v1/jobs/{job_id}" + what, job_id=job)

    @rule(
        job=jobs, to=_STATES, key=_KEYS, mode=st.sampled_from(["soft", "hard"]),
        verb=st.sampled_from(["cancel", "transition", "dead-letter", "requeue"]),
    )  # fmt: skip
    def operate(self, job: str, to: str, key: str | None, mode: str, verb: str) -> None:
        """Do to a job what operators do."""
        facts = {"cancel": {"mode": mode}, "transition": {"to": to}, "dead-letter": {"reason_code": "policy"}}
        body = {**facts.get(verb, {}), "idempotency_key": key and f"{self.queue}:{verb}:{key}"}
        self.ask("POST", f"/api/v1/jobs/{{job_id}}/{verb}", body, job_id=job)

    @rule(job=jobs, query=st.sampled_from([{}, {"force_fail": True}, {"transient_fail": True}]))
    def run(self, job: str, query: dict[str, bool]) -> None:
        """Run a job by request."""
        self.ask("POST", "/api/v1/internal/jobs/{job_id}/run", params=query, job_id=job)

    @rule(job=jobs, how=st.sampled_from(["Completed", "Failed", "Canceled"]), events=_VALUES, attempt=st.integers(0, 2))
    def task(self, job: str, how: str, events: Any, attempt: int) -> None:
        """Document 001's three calls, with an attempt that may be another."""
        won = self.ask("POST", "/internal/task-claim", {"task_id": job, "worker_id": "w"})
        body = {"task_id": job, "attempt": attempt, "lease_token": won.get("lease_token", str(uuid4()))}
        self.ask("POST", "/internal/heartbeat", body)
        self.ask("POST", "/internal/task-complete", {**body, "status": how, "outputs": events, "events": [events]})

    @rule(held=helds, person=_PEOPLE, other=_PEOPLE, verb=st.sampled_from(["requeue", "discard", "approve"]))
    def decide(self, held: Held, person: str, other: str, verb: str) -> None:
        """Fail a job for good, and decide about its dead letter, where it has one."""
        error = {"type": "PermanentError", "message": "never", "retryable": False}
        self.ask("POST", "/api/v1/jobs/{job_id}/fail", {**held.shown, "error": error}, job_id=held.job_id)
        letter = self.ask("GET", "/api/v1/jobs/{job_id}", job_id=held.job_id)["dlq_id"]
        bodies = {"requeue": {}, "discard": {"reason": "a test", "person": person}, "approve": {"person": other}}
        for one in ("discard", verb) if letter else ():
            self.ask("POST", f"/api/v1/dlq/items/{{letter_id}}/{one}", bodies[one], letter_id=letter)
            self.ask("GET", "/api/v1/dlq/items/{letter_id}", letter_id=letter)

    @rule(held=helds, what=st.sampled_from(["expire", "due"]))
    def wait(self, held: Held, what: str) -> None:
        """Time goes by."""
        getattr(self.db, what)(int(held.job_id))

    def overlook(self) -> None:
        """Look at everything."""
        for query in ("", "state:dead", "type:t age:<1h", "contract:gate_b2 state:retrying"):
            self.ask("GET", "/api/v1/jobs", params={"q": query, "limit": 3})
        for path in ("queues", "workers", "contracts", "wakeups", "dlq/items"):
            self.ask("GET", f"/api/v1/{path}")
        places = {"contracts": sorted(BUILT_IN), "queues": [self.queue]}
        self.ask("POST", "/api/v1/due", places)
        self.ask("POST", "/api/v1/due", {**places, "types": ["u"]})


def _live(url: str, dsn: str, lives: int, steps: int) -> None:
    machine = type("LivesHere", (Lives,), {"url": url, "dsn": dsn})
    unhurried = settings(
        max_examples=lives, stateful_step_count=steps, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=unhurried)


def test_whatever_clients_do_the_answers_are_within_their_schemas(url: str, dsn: str) -> None:
    _live(url, dsn, 15, 30)


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_whatever_clients_do_at_length_the_answers_are_within_their_schemas(url: str, dsn: str) -> None:
    _live(url, dsn, 150, 50)
