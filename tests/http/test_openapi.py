"""The OpenAPI document is fit to make clients from: everything in it is named, described, and shown by an example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tenure import __version__
from tenure.http.models.fields import RequestBody
from tests.http.conftest import Caller
from tests.http.inventory import BODIES, OPEN, ROUTES, SCHEMA, Route, World

MODELS: dict[str, Any] = SCHEMA["components"]["schemas"]
RESPONSES: dict[str, Any] = SCHEMA["components"]["responses"]
_ROUTES = ("jobs", "claims", "holding", "operators", "dead_letters", "tasks")
_MODULES = (*(f"routes.{one}" for one in _ROUTES), *(f"models.{one}" for one in ("datasets", "dataset_uses", "flows")))
OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    (method.upper(), path): operation for path, there in SCHEMA["paths"].items() for method, operation in there.items()
}


def _parameters(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parameters of an operation, with references followed."""
    for one in operation.get("parameters", ()):
        yield SCHEMA["components"]["parameters"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one


def _examples(schema: Any, name: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every example in a schema, with the schema that it is of; what an example holds is none itself."""
    if isinstance(schema, dict):
        for example in schema.get("examples", ()):
            yield name, schema, example
        for key, part in schema.items():
            if key not in ("examples", "default"):
                yield from _examples(part, f"{name}.{key}")
    elif isinstance(schema, list):
        for part in schema:
            yield from _examples(part, name)


def test_the_document_says_what_it_is() -> None:
    assert SCHEMA["openapi"].startswith("3.1")
    assert SCHEMA["info"]["version"] == __version__
    assert SCHEMA["info"]["license"] == {"name": "MIT", "identifier": "MIT"}
    assert SCHEMA["info"]["description"]
    assert SCHEMA["security"] == [{"key": []}, {}], "while no key exists, a call needs none"
    assert "While no key exists it is optional" in SCHEMA["components"]["securitySchemes"]["key"]["description"]
    assert SCHEMA["servers"] == [{"url": "/", "description": "The dispatcher that this document comes from."}]
    assert not re.search(r'"(ge|le|gt|lt|allow_inf_nan)":', json.dumps(SCHEMA)), "bounds that are no JSON Schema"


def test_it_has_every_route_and_each_says_what_it_does() -> None:
    assert set(OPERATIONS) == {route.key for route in ROUTES} - {("GET", "/openapi.json")} | OPEN
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch("[a-z][a-z_]*", name)] == []
    for key, operation in OPERATIONS.items():
        assert operation["description"], key
        if key in OPEN:
            assert operation["security"] == [], key
        else:
            assert "x-scopes" in operation, key
            assert "security" not in operation, key


def test_the_names_of_schemas_are_words() -> None:
    assert [name for name in MODELS if not re.fullmatch("([A-Z][a-z]+)+", name)] == []
    assert {"ErrorDetail", "RefusedItem", "ClaimedJob", "JobRequeued", "RunAnswer", "Move", "Note"} <= set(MODELS)


def test_every_field_and_parameter_is_described_in_a_line() -> None:
    bare = [
        f"{model}.{name}"
        for model, schema in MODELS.items()
        for name, field in schema.get("properties", {}).items()
        if not re.fullmatch(r"[^\n]{5,130}\.", field.get("description", ""))
    ]
    bare += [model for model, schema in MODELS.items() if not schema.get("description")]
    bare += [
        f"{key} {one['name']}"
        for key, operation in OPERATIONS.items()
        for one in _parameters(operation)
        if not one.get("description")
    ]
    assert bare == []


def test_every_schema_has_an_example_and_every_example_is_valid() -> None:
    assert [name for name, schema in MODELS.items() if not schema.get("examples")] == []
    found = list(_examples(SCHEMA["paths"], "paths"))
    for name, schema in MODELS.items():
        found += _examples(schema, name)
    assert len(found) > 100
    registry = jsonschema_rs.Registry([("urn:api", {"components": SCHEMA["components"]})])
    for name, schema, example in found:
        inside = json.loads(json.dumps(schema).replace('"#/components/', '"urn:api#/components/'))
        validator = jsonschema_rs.validator_for(inside, validate_formats=True, registry=registry)
        assert [f"{name}: {error}" for error in validator.iter_errors(example)] == []


def test_an_example_of_a_body_is_taken_as_it_stands() -> None:
    bodies = {name: model for name in MODELS if (model := _body(name)) is not None}
    assert len(bodies) > 25
    for name, model in bodies.items():
        for example in MODELS[name]["examples"]:
            assert model.model_validate(example).model_fields_set == set(example), name


def _body(name: str) -> type[RequestBody] | None:
    for part in _MODULES:
        found = getattr(import_module(f"tenure.http.{part}"), name, None)
        if isinstance(found, type) and issubclass(found, RequestBody):
            return found
    return None


def test_tokens_and_keys_of_claims_are_uuids_wherever_they_stand() -> None:
    seen = 0
    for name, schema in MODELS.items():
        for field in ("lease_token", "claim_key"):
            if shown := schema.get("properties", {}).get(field):
                seen += 1
                assert '"format": "uuid"' in json.dumps(shown), f"{name}.{field}"
    assert seen > 15


def test_an_answer_that_may_be_several_things_is_exactly_one_of_them() -> None:
    for name, schema in MODELS.items():
        assert "anyOf" not in schema, f"{name} may be several things at once"
        if "oneOf" not in schema:
            continue
        parts = [jsonschema_rs.validator_for({**part, "components": SCHEMA["components"]}) for part in schema["oneOf"]]
        matched = [[one.is_valid(example) for one in parts] for example in schema["examples"]]
        assert [any(column) for column in zip(*matched, strict=True)] == [True] * len(parts), f"{name} lacks an example"
        for part in schema["oneOf"]:
            for example in MODELS[part["$ref"].rpartition("/")[2]]["examples"]:
                assert sum(one.is_valid(example) for one in parts) == 1, (name, example)


def test_refusals_are_described_once_and_referenced_everywhere() -> None:
    for answer in RESPONSES.values():
        assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Refusal"}
        assert {"X-Request-Id", "X-Trace-Id"} <= set(answer["headers"])
    for key, operation in OPERATIONS.items():
        for status, answer in operation["responses"].items():
            if key == ("GET", "/readyz") and status == "503":
                continue
            if int(status) >= 400:
                assert answer["$ref"].rpartition("/")[2] in RESPONSES, (key, status)
            else:
                assert set(answer["headers"]) == {"X-Request-Id", "X-Trace-Id"}, (key, status)
        wanted = {"400", "405", "431", "500"} | (set() if key in OPEN else {"401", "403", "422", "503"})
        assert wanted <= set(operation["responses"]), key
    assert "Retry-After" in RESPONSES["Unavailable"]["headers"]


def _heeds_key(route: Route) -> bool:
    return any(one["name"] == "Idempotency-Key" for one in _parameters(OPERATIONS[route.key]))


def test_the_header_of_a_repeat_is_declared_where_it_is_heeded(client: httpx2.Client) -> None:
    world, heeding = World(Caller(client)), [route for route in BODIES if _heeds_key(route)]
    assert len(heeding) == 21
    for route in heeding:
        asked = world.request(route)
        body = {**(asked.body or {}), "idempotency_key": "one"}
        if route.path == "/internal/task-claim":
            body.pop("idempotency_key")
        answer = client.request(route.method, asked.path, json=body, headers={"Idempotency-Key": "another"})
        assert answer.status_code == 422, (route, answer.text)
        assert "Idempotency-Key" in answer.json()["error"]["message"], route
        long = client.request(route.method, asked.path, json=asked.body, headers={"Idempotency-Key": "x" * 256})
        assert long.status_code == 422, (route, long.text)
        assert "Idempotency-Key" in long.json()["error"]["message"], route


def test_a_dispatcher_tells_the_same(client: httpx2.Client) -> None:
    assert client.get("/openapi.json").json() == SCHEMA


@pytest.mark.parametrize(("_", "path"), sorted(OPEN))
def test_a_probe_answers_as_it_is_described(client: httpx2.Client, _: str, path: str) -> None:
    assert client.get(path).json() == MODELS["Healthy"]["examples"][0]
