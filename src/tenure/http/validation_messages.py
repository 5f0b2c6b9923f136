"""Error messages for invalid requests: where the error is, what must be there, and what to do next.

pydantic finds the errors; only their type and place are used. The message says what must be at that place from the
model's own JSON Schema, so a new field has its messages at once. A valid request needs none of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from tenure.errors import BadInput
from tenure.http.models.fields import PATTERN_MEANINGS
from tenure.jobs.formats import to_one_line

#: A message names this many errors of a request at most.
_MAX_ERRORS = 5
#: A message quotes this many characters of a value, and of a field's name.
_MAX_VALUE, _MAX_NAME = 60, 200
Schema = Mapping[str, Any]


class Fault(NamedTuple):
    """One error: pydantic's type of it, its path, the schema there, the value, an unknown field's name, a message."""

    error_type: str
    path: str
    schema: Schema
    value: Any
    name: str
    message: str
    in_body: bool


def faults(error: ValidationError, model: type[BaseModel], *, in_body: bool) -> Iterator[Fault]:
    """The errors that a model has found."""
    root = _schema(model)
    return (_locate(one, root, in_body) for one in error.errors(include_url=False, include_context=False))


def empty_body(model: type[BaseModel]) -> Fault:
    """The error of a request without the body that its route needs."""
    return Fault("missing", "", _schema(model), None, "", "", in_body=True)


def bad_input(found: Iterable[Fault]) -> BadInput:
    """The refusal of an invalid request: its first errors, then what to do about them."""
    messages, hints = dict[str, None](), dict[str, None]()
    for fault in found:
        if len(messages) == _MAX_ERRORS:
            messages["there is more"] = None
            break
        message, hint = _describe(fault)
        messages[message] = None
        if hint:
            hints[hint] = None
    return BadInput("; ".join(messages) + (f". Next: {'; '.join(hints)}" if hints else ""))


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _locate(error: Any, root: Schema, in_body: bool) -> Fault:
    """Follow an error's path through the schema, as far as the schema goes."""
    schema, path, name = root, [], ""
    for part in error["loc"]:
        inner = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
        if inner is None:  # an unknown field, or pydantic's name for one of two number types
            name = to_one_line(_ascii(str(part)), _MAX_NAME)
            break
        schema = _resolve(root, inner)
        path.append(str(part))
    message = to_one_line(_ascii(error["msg"]))
    return Fault(error["type"], ".".join(path), schema, error["input"], name, message, in_body)


def _resolve(root: Schema, schema: Schema) -> Schema:
    """The schema of a value that is present: references followed, null left out."""
    if "$ref" in schema:
        return _resolve(root, root["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return _resolve(root, next(part for part in schema["anyOf"] if part.get("type") != "null"))
    return schema


def _describe(fault: Fault) -> tuple[str, str]:
    """What is wrong, and what to do about it."""
    path, subject, schema = fault.path, fault.path or "the body", fault.schema
    fields = list(schema.get("properties", ()))
    match fault.error_type:
        case "missing" if path:
            return f"{path} is missing", f"give {path}, {_expected(schema)}"
        case "missing":
            return "the body is empty", f"send {_outline(schema)}"
        case "extra_forbidden":
            similar = get_close_matches(fault.name[:_MAX_VALUE], fields, 1)
            message = f"there is no field {fault.name}" + (f" in {path}" if path else "")
            return message, f"did you mean {similar[0]}?" if similar else f"the fields are {', '.join(fields)}"
        case "too_many_fields":
            message = f"in {path} {fault.message}" if path else fault.message
            return message, f"the fields are {', '.join(fields)}"
        case "string_unicode":
            return f"{subject} contains a lone surrogate, which is not text", "remove it"
        case "string_too_short" | "string_too_long" | "too_short" | "too_long":
            return f"{subject} must be {_expected(schema)}, and has {len(fault.value)}", ""
        case error_type if error_type in _WRONG_VALUES:
            hint = f"send {_outline(schema)}" if fault.in_body and not path else ""
            return f"{subject} must be {_expected(schema)}{_actual(fault)}", hint
    return f"{subject}: {fault.message}", ""  # pydantic's message


def _expected(schema: Schema) -> str:
    """What a value must be."""
    if "const" in schema or "enum" in schema:
        return f"one of {', '.join(map(str, schema.get('enum') or [schema['const']]))}"
    if schema.get("pattern") in PATTERN_MEANINGS:
        return PATTERN_MEANINGS[schema["pattern"]]
    noun, low, high, both, one = _KINDS.get(str(schema.get("type")), ("any JSON", "", "", "", ""))
    if high not in schema:
        return noun
    limit = f"{schema[high]:.0f}"
    return f"{noun} {both.format(schema[low], limit) if low in schema else one.format(limit)}"


def _actual(fault: Fault) -> str:
    """What the value is instead, where that helps. A text in the body is not quoted: it may be a token."""
    value = fault.value
    if isinstance(value, str) and fault.in_body and "enum" not in fault.schema:
        return "" if fault.schema.get("type") == "string" else ", not a text"
    if value is None or isinstance(value, bool):
        return f", not {json.dumps(value)}"
    if isinstance(value, (str, int, float)):
        return f", not {to_one_line(_ascii(str(value)), _MAX_VALUE)}"
    return ", not an object" if isinstance(value, dict) else ", not a list" if isinstance(value, list) else ""


def _outline(schema: Schema) -> str:
    """An object with its required fields."""
    return "{" + ", ".join(f'"{name}": …' for name in schema.get("required", ())) + "}"


def _ascii(text: str) -> str:
    return text[: 2 * _MAX_NAME].encode("ascii", "backslashreplace").decode()


#: Of each JSON type: its name, the keywords of its bounds, and how a message states both bounds or the upper one.
_NUMBER = ("minimum", "maximum", "from {} to {}", "up to {}")
_KINDS: Mapping[str, tuple[str, str, str, str, str]] = {
    "integer": ("a whole number", *_NUMBER),
    "number": ("a number", *_NUMBER),
    "string": ("a text", "minLength", "maxLength", "of {} to {} characters", "of at most {} characters"),
    "array": ("a list", "minItems", "maxItems", "of {} to {} items", "of at most {} items"),
    "boolean": ("true or false", "", "", "", ""),
    "object": ("an object", "", "", "", ""),
}
#: pydantic's types of errors about one value.
_WRONG_VALUES = frozenset({
    "string_type", "int_type", "float_type", "bool_type", "list_type", "dict_type", "model_type",
    "model_attributes_type", "int_parsing", "int_parsing_size", "int_from_float", "float_parsing", "bool_parsing",
    "finite_number", "greater_than_equal", "less_than_equal", "literal_error", "string_pattern_mismatch",
})  # fmt: skip
