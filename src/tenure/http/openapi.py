"""The OpenAPI of the dispatcher: what the framework writes from routes and models, made fit for generated clients.

What is the same everywhere (refusals, headers, the key of a repeat) is described once, among the components, and
referenced. Nothing here is asked for while requests are answered; the document is made once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import tenure.http.models
from tenure.http.models.fields import Body
from tenure.http.models.refusal import ANYWHERE, WHY, Refusal
from tenure.http.refusals import RETRY_AFTER_S
from tenure.intake import LENGTHS

ABOUT = """Durable jobs on PostgreSQL: held under a lease, moved by a contract.

Send a key as `Authorization: Bearer tenure_…`; `x-scopes` of an operation names the scopes of which it needs one
(empty: any key). Every answer carries `X-Request-Id` and `X-Trace-Id`. After a lost answer, ask again: with the same
key it is the same.
"""
_HERE = "#/components/schemas/"
#: What the framework describes beside ours, and we never answer.
_UNUSED = ("HTTPValidationError", "ValidationError")
Mode = Literal["validation", "serialization"]
_TEXT: dict[str, Any] = {"type": "string"}
_NAMES = {
    "X-Request-Id": {"description": "The id of the request: the one that came with it, else a new one."},
    "X-Trace-Id": {"description": "The trace: the one that came with the request, else a new one; logs have it."},
}
_ADDS = {
    401: {"WWW-Authenticate": {"description": "How to send a key.", "schema": _TEXT}},
    405: {"Allow": {"description": "The methods that the address takes.", "schema": _TEXT}},
    503: {
        "Retry-After": {
            "description": "Seconds after which to ask again.",
            "schema": {"type": "integer", "minimum": 0, "examples": [RETRY_AFTER_S]},
        }
    },
}
_REPEAT_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A key to repeat the call safely, as `idempotency_key` of the body: give one of them.",
    "schema": {**_TEXT, "minLength": 1, "maxLength": LENGTHS["key"]},
}


#: What generated clients call an operation, where the name of its function would say too little there.
_OPERATIONS = {
    "enqueue": "enqueue_job", "enqueue_many": "enqueue_jobs", "events": "list_job_events", "why": "explain_job",
    "claim": "claim_jobs", "due": "list_due_contracts", "strangers": "find_strangers", "wakeups": "hear_wakeups",
    "declare": "declare_types", "start": "start_job", "heartbeat": "heartbeat_job", "progress": "show_progress",
    "checkpoint": "save_checkpoint", "effect": "record_effect", "undone": "record_undone", "effects": "list_effects",
    "succeed": "succeed_job", "fail": "fail_job", "snooze": "snooze_job", "hand_back": "hand_back_job",
    "cancelled": "end_cancelled_job", "compensated": "end_compensation", "compensation_failed": "fail_compensation",
    "finishes": "finish_jobs", "starts": "start_jobs", "heartbeats": "heartbeat_jobs", "cancel": "cancel_job",
    "transition": "move_job", "dead_letter": "dead_letter_job", "requeue": "requeue_job",
    "contracts": "list_contracts", "contract": "show_contract", "queues": "list_queues", "pause": "pause_queue",
    "resume": "resume_queue", "workers": "list_workers", "run": "run_job",
}  # fmt: skip


def operation_id(name: str) -> str:
    """The id of the operation of a function of this name."""
    return _OPERATIONS.get(name, name)


def described(app: FastAPI, server: str = "/") -> dict[str, Any]:
    """The OpenAPI of an application, for clients of the dispatcher at this address."""
    if app.openapi_schema is None:
        _finish(app.openapi())
    where = "The dispatcher that this document comes from." if server == "/" else "The dispatcher."
    return {**(app.openapi_schema or {}), "servers": [{"url": server, "description": where}]}


def _finish(document: dict[str, Any]) -> None:
    parts = document["components"]
    parts["schemas"] = models = _schemas({*parts["schemas"], Refusal.__name__})
    parts["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key, as `tenure keys create` prints it."}
    }
    document["security"] = [{"key": []}]
    parts["headers"] = {name: {**said, "schema": _TEXT} for name, said in _NAMES.items()}
    parts["parameters"] = {"IdempotencyKey": _REPEAT_KEY}
    parts["responses"] = {
        why.name: {
            "description": why.said,
            "headers": {**_named(), **_ADDS.get(status, {})},
            "content": {"application/json": {"schema": {"$ref": f"{_HERE}{Refusal.__name__}"}}},
        }
        for status, why in WHY.items()
    }
    for operation in _operations(document):
        operation["responses"] = _responses(operation["responses"])
        if "requestBody" in operation:
            inside = operation["requestBody"]["content"]["application/json"]
            inside["schema"] = _given(inside["schema"])  # one that may be left out is left out, and not null
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _given(parameter["schema"])
        if _takes_key(operation, models):
            operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/IdempotencyKey"})


def _schemas(names: Iterable[str]) -> dict[str, Any]:
    """The schemas of these names, from their models: the framework leaves out whatever is null, also in examples."""
    models = [model for model in _below(BaseModel) if model.__module__.startswith(f"{tenure.http.models.__name__}.")]
    modes: list[tuple[type[BaseModel], Mode]] = [
        (model, "validation" if issubclass(model, Body) else "serialization") for model in models
    ]
    _, found = models_json_schema(modes, ref_template=f"{_HERE}{{model}}")
    return {name: _plain(found["$defs"][name]) for name in _with_theirs(names, found["$defs"]) if name not in _UNUSED}


def _with_theirs(names: Iterable[str], found: dict[str, Any]) -> list[str]:
    """These schemas and those that they refer to, which may be no models."""
    wanted, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name not in wanted and name not in _UNUSED:
            wanted.add(name)
            left += re.findall(f'"{_HERE}([^"]+)"', json.dumps(found[name]))
    return sorted(wanted)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema for generators: no titles, and no defaults, which some take for always there, and others send along."""
    for said in schema.get("properties", {}).values():
        said.pop("title", None)
        said.pop("default", None)
    return schema


def _below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in kind.__subclasses__():
        yield model
        yield from _below(model)


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


def _named() -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in _NAMES}


def _responses(answers: dict[str, Any]) -> dict[str, Any]:
    """Each refusal as a reference, with those that may come wherever one asks; what is answered well with its names."""
    said = {status: {**answer, "headers": _named()} for status, answer in answers.items() if "content" in answer}
    for status in {*map(str, ANYWHERE), *answers} - said.keys():
        said[status] = {"$ref": f"#/components/responses/{WHY[int(status)].name}"}
    return dict(sorted(said.items()))


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter as it is when it is there: an address and a header have no null, one leaves them out."""
    kinds = [one for one in schema.get("anyOf", [schema]) if one != {"type": "null"}]
    found = {**schema, **kinds[0]}
    for bound in found.keys() & {"minimum", "maximum"}:
        found[bound] = int(found[bound])
    return {name: said for name, said in found.items() if name not in ("anyOf", "title", "description")}


def _takes_key(operation: dict[str, Any], models: dict[str, Any]) -> bool:
    """Whether an operation heeds the header: where its body may have the key."""
    if "requestBody" not in operation:
        return False
    shown = operation["requestBody"]["content"]["application/json"]["schema"]
    name = (shown.get("anyOf") or [shown])[0]["$ref"].removeprefix(_HERE)
    return "idempotency_key" in models[name]["properties"]
