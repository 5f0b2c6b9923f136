"""Answers are as the OpenAPI describes them: of every operation, and of what a holder and an operator say under every
contract; where an answer may be one of several things, each of them is seen.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx2
import jsonschema_rs

from tenure.contracts import BUILT_IN
from tests.http.conftest import Caller
from tests.http.inventory import OPEN, ROUTES, SCHEMA, World

_JOB = "/api/v1/jobs/{job_id}/"
_ERROR = {"type": "PermanentError", "message": "no", "retryable": False}


@cache
def _validator(name: str) -> Any:
    whole = {"$ref": f"#/components/schemas/{name}", "components": SCHEMA["components"]}
    return jsonschema_rs.validator_for(whole, validate_formats=True)


class Witness:
    """Asks, compares every answer with its schema, and remembers which of several things it was."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client, self.world = client, World(Caller(client))
        self.seen: set[tuple[str, str]] = set()

    def ask(self, method: str, path: str, where: str, body: Any = None) -> Any:
        """The answer of an operation, which is as described."""
        response = self.client.request(method, where, json=body)
        described = SCHEMA["paths"][path][method.lower()]["responses"][str(response.status_code)]
        if "$ref" in described:
            described = SCHEMA["components"]["responses"][described["$ref"].rpartition("/")[2]]
        ((media, content),) = described["content"].items()
        assert response.headers["content-type"].partition(";")[0] == media
        name = content["schema"]["$ref"].rpartition("/")[2]
        if media != "application/json":
            assert _validator(name).is_valid(response.text)
            return response.text
        problems = [f"{path}: {error}" for error in _validator(name).iter_errors(response.json())]
        assert problems == [], response.text
        kinds = SCHEMA["components"]["schemas"][name].get("oneOf", ())
        for kind in (one["$ref"].rpartition("/")[2] for one in kinds):
            if _validator(kind).is_valid(response.json()):
                self.seen.add((name, kind))
        return response.json()

    def say(self, held: tuple[str, dict[str, Any]], verb: str, **facts: Any) -> Any:
        """What a holder says, or what is done to a job that somebody holds."""
        job_id, shown = held
        return self.ask("POST", _JOB + verb, f"/api/v1/jobs/{job_id}/{verb}", {**shown, **facts})


def test_every_operation_answers_as_it_is_described(client: httpx2.Client) -> None:
    witness = Witness(client)
    for route in ROUTES:
        if route.path != "/openapi.json":
            asked = witness.world.request(route)
            assert "error" not in witness.ask(route.method, route.path, asked.path, asked.body)
    for method, path in OPEN:
        witness.ask(method, path, path)


def test_under_every_contract_it_is_one_of_what_is_described(client: httpx2.Client) -> None:
    witness = Witness(client)
    world = witness.world
    for contract in BUILT_IN:
        for ending, facts in (
            ("succeed", {"result": 1}), ("fail", {"error": _ERROR}), ("snooze", {"seconds": 1}), ("hand-back", {}),
            ("cancelled", {}),
        ):  # fmt: skip
            held = world.held(contract)
            for verb, more in (
                ("start", {}),
                ("heartbeat", {}),
                ("progress", {"value": 1}),
                ("checkpoint", {"value": 1}),
            ):
                witness.say(held, verb, **more)
            witness.say(held, ending, **facts)
            finish = {**held[1], "id": held[0]}
            for batch, one in (("starts", {}), ("heartbeats", {}), ("finishes", {"verb": ending, **facts})):
                witness.ask("POST", f"/api/v1/{batch}", f"/api/v1/{batch}", {batch: [{**finish, **one}]})
        for mode in ("soft", "hard"):
            job_id, _ = world.begun(contract)
            witness.say((job_id, {}), "cancel", mode=mode)
        for state in BUILT_IN[contract].states:
            witness.say((world.job(contract), {}), "transition", to=state)
        witness.say((world.job(contract), {}), "dead-letter", reason_code="policy")
    kinds = {
        ("StartAnswer", "Move"), ("StartAnswer", "Unmoved"), ("HandBackAnswer", "Move"), ("HandBackAnswer", "Note"),
        ("CancelAnswer", "Move"), ("CancelAnswer", "Note"), ("TransitionAnswer", "Move"), ("TransitionAnswer", "Taken"),
    }  # fmt: skip
    assert witness.seen == kinds


def test_each_of_a_batch_is_one_of_what_is_described(client: httpx2.Client) -> None:
    witness = Witness(client)
    contracts = ("standard", "phase27", "reliability")
    held = {contract: witness.world.held(contract) for contract in contracts}
    ones = [{**shown, "id": job_id} for job_id, shown in held.values()] + [{**held["standard"][1], "id": "999999"}]
    started, beaten, ended = (
        witness.ask("POST", f"/api/v1/{batch}", f"/api/v1/{batch}", {batch: [{**one, **more} for one in ones]})[
            "answers"
        ]
        for batch, more in (("starts", {}), ("heartbeats", {}), ("finishes", {"verb": "hand-back"}))
    )
    for kinds, answers in (
        (("Unmoved", "Unmoved", "Move", "RefusedItem"), started),
        (("Note", "Note", "Note", "RefusedItem"), beaten),
        (("Move", "Note", "Move", "RefusedItem"), ended),
    ):
        assert [_validator(kind).is_valid(answer) for kind, answer in zip(kinds, answers, strict=True)] == [True] * 4
    job_id, shown = witness.world.begun("reliability")
    witness.say((job_id, shown), "effect", node="pay", compensable=True)
    assert witness.say((job_id, shown), "fail", error=_ERROR)["moved"] is False
