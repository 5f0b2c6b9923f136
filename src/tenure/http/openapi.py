"""The OpenAPI document of the dispatcher, made from the table of routes for client generators.

pydantic describes the models. Error responses, headers and the Idempotency-Key parameter are described once, among the
components. Every schema has an example, put together from the examples of its fields. The document is made once, and
no other request needs this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tenure import __version__
from tenure.http.error_response import RETRY_AFTER_S
from tenure.http.models.errors import ERROR_STATUSES, Refusal
from tenure.http.route import Route
from tenure.jobs.validation import LENGTHS

DESCRIPTION = """Durable jobs on PostgreSQL: held under a lease, moved by a contract.

Send a key as `Authorization: Bearer tenure_…`. `x-scopes` of an operation lists the scopes of which it needs one
(empty: any key). While no key exists, none is needed. Every answer has the headers `X-Request-Id` and `X-Trace-Id`.
After a lost answer, repeat the call: with the same idempotency key the answer is the same.
"""
_KEY = "A key, as `tenure keys create` prints it. While no key exists it is optional: leave it out."
_SCHEMAS = "#/components/schemas/"
_TEXT: dict[str, Any] = {"type": "string"}
_ID_HEADERS = {
    "X-Request-Id": {"description": "The request's id: the one that came with it, or a new one.", "schema": _TEXT},
    "X-Trace-Id": {"description": "The trace id: the one that came with the request, or a new one.", "schema": _TEXT},
}
_ID_HEADER_REFS = {name: {"$ref": f"#/components/headers/{name}"} for name in _ID_HEADERS}
_ERROR_HEADERS = {
    401: {"WWW-Authenticate": {"description": "How to send a key.", "schema": _TEXT}},
    405: {"Allow": {"description": "The methods of the path.", "schema": _TEXT}},
    503: {
        "Retry-After": {
            "description": "Seconds after which to try again.",
            "schema": {"type": "integer", "minimum": 0, "examples": [RETRY_AFTER_S]},
        }
    },
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A key to repeat the call safely, as `idempotency_key` of the body: give one of them.",
    "schema": {**_TEXT, "minLength": 1, "maxLength": LENGTHS["key"]},
}
#: Examples of values whose field has none.
_EXAMPLES: dict[str, Any] = {
    "date-time": "2026-11-15T12:03:07.123456Z", "uuid": "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c", "integer": 1,
    "number": 1.5, "boolean": False, "object": {}, "null": None,
}  # fmt: skip


def openapi_document(routes: tuple[Route, ...], server: str = "/") -> dict[str, Any]:
    """The OpenAPI of these routes, for clients of the dispatcher at this address."""
    where = "The dispatcher that this document comes from." if server == "/" else "The dispatcher."
    return {**_document(routes), "servers": [{"url": server, "description": where}]}


@lru_cache(maxsize=1)
def _document(routes: tuple[Route, ...]) -> dict[str, Any]:
    shown = [route for route in routes if route.answer is not None]
    schemas = _schemas(shown)
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    info = {"title": "Tenure", "version": __version__, "summary": "Durable jobs on PostgreSQL."}
    return {
        "openapi": "3.1.0",
        "info": {**info, "description": DESCRIPTION, "license": {"name": "MIT", "identifier": "MIT"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                error.name: {
                    "description": error.description,
                    "headers": {**_ID_HEADER_REFS, **_ERROR_HEADERS.get(status, {})},
                    "content": _json_content(_reference(Refusal)),
                }
                for status, error in ERROR_STATUSES.items()
            },
            "parameters": {"IdempotencyKey": _IDEMPOTENCY_KEY},
            "headers": _ID_HEADERS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": _KEY}},
        },
        "security": [{"key": []}, {}],  # while no key exists, none is needed
    }


def _schemas(routes: Sequence[Route]) -> dict[str, Any]:
    """The schemas of all bodies and answers, each with an example."""
    bodies = [(route.body, "validation") for route in routes if route.body is not None]
    answers = [(model, "serialization") for route in routes for model in _answers(route).values()]
    models: Any = dict.fromkeys((*bodies, *answers, (Refusal, "serialization")))
    schemas: dict[str, Any] = models_json_schema(list(models), ref_template=f"{_SCHEMAS}{{model}}")[1]["$defs"]
    for schema in schemas.values():
        _simplify(schema)
    for schema in schemas.values():
        parts = schema.get("oneOf", [schema])
        schema["examples"] = schema.get("examples") or [_example(part, schemas) for part in parts]
    return schemas


def _answers(route: Route) -> dict[int, type[BaseModel]]:
    return {200: route.answer, **route.other_answers} if route.answer is not None else {}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [route.tag], "summary": route.name.replace("_", " ").title(), "description": route.description,
        "operationId": route.name, "responses": _responses(route, schemas),
    }  # fmt: skip
    operation |= {"security": []} if route.scopes is None else {"x-scopes": list(route.scopes)}
    parameters = [*_parameters(route.path_model, "path"), *_parameters(route.query, "query")]
    if route.header is not None:
        parameters.append(route.header)
    if route.body is not None:
        required = {"required": True} if route.needs_body else {}
        operation["requestBody"] = {**required, "content": _json_content(_reference(route.body))}
        if "idempotency_key" in route.body.model_fields:
            parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    return {**operation, "parameters": parameters} if parameters else operation


def _responses(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    errors = {400, 405, 431, 500, *route.errors}
    if route.scopes is not None:
        errors |= {401, 403, 422, 503}
    if route.path_model is not None:
        errors |= {404} if route.method == "GET" else {404, 409}
    if route.body is not None:
        errors |= {408, 413}
    found: dict[str, Any] = {str(one): {"$ref": f"#/components/responses/{ERROR_STATUSES[one].name}"} for one in errors}
    for status, model in _answers(route).items():
        found[str(status)] = {
            "description": schemas[model.__name__]["description"],
            "content": {route.media_type: {"schema": _reference(model)}},
            "headers": _ID_HEADER_REFS,
        }
    return dict(sorted(found.items()))


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"{_SCHEMAS}{model.__name__}"}


def _parameters(model: type[BaseModel] | None, place: str) -> Iterator[dict[str, Any]]:
    schema = {} if model is None else model.model_json_schema()
    for name, field in schema.get("properties", {}).items():
        # An optional parameter is left out, never null.
        present = next(part for part in field.pop("anyOf", [{}]) if part != {"type": "null"})
        field = {**present, **{key: value for key, value in field.items() if key != "title" and value is not None}}
        description = field.pop("description")
        required = name in schema.get("required", ())
        yield {"name": name, "in": place, "required": required, "schema": field, "description": description}


def _simplify(schema: dict[str, Any]) -> None:
    """Drop titles and defaults, which generators misread; a model of one of several kinds is exactly one of them."""
    if "anyOf" in schema:
        schema["oneOf"] = schema.pop("anyOf")
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
        field.pop("default", None)


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """An example: the schema's own, or one of its parts' examples. Optional fields need an example of their own."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].removeprefix(_SCHEMAS)], schemas)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return None if {"type": "null"} in kinds else _example(kinds[0], schemas)
    if "properties" in schema:
        required = schema.get("required", ())
        fields = schema["properties"].items()
        return {name: _example(field, schemas) for name, field in fields if name in required or "examples" in field}
    if schema.get("type") == "array":
        return [_example(schema["items"], schemas)] if schema["items"] else []
    return _EXAMPLES[schema.get("format") or schema.get("type") or "null"]
