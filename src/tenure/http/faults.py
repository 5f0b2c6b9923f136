"""What is wrong with a request, in our own words: where, what must stand there, and what to do next.

The checks are the models'. Of what they find only its type and place are taken; what must stand at that place is said
from the route's own JSON Schema, so that a new field has its sentence at once. Nothing of this is done for a request
that is well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple

from fastapi.dependencies.models import Dependant
from pydantic import TypeAdapter

from tenure.errors import BadInput
from tenure.http.models.fields import MEANINGS
from tenure.wording import plain

#: So many faults of one request are told; a client mends these first.
_MOST = 5
#: Of a value that a client sent so many characters are said back to it, and of a name so many.
_VALUE, _NAME = 60, 200
Schema = Mapping[str, Any]


class _Fault(NamedTuple):
    """Something that is wrong: where, what its schema is, what was given, and the name that the schema has not."""

    where: str
    schema: Schema
    given: Any
    name: str
    said: str
    #: Whether it stands in the address, where everything is text.
    is_text: bool

    @property
    def here(self) -> str:
        """The place, as a sentence begins with it."""
        return self.where or "the body"


def wanted(needs: Dependant) -> Schema:
    """What a route takes, as one schema: its body, and what stands in the address and the headers."""
    parts: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for kind, fields in (("path", needs.path_params), ("query", needs.query_params), ("header", needs.header_params)):
        parts[kind] = {"properties": {field.alias: _schema(field, definitions) for field in fields}}
    for field in needs.body_params:
        parts["body"] = _schema(field, definitions)
    return {"properties": parts, "$defs": definitions}


def _schema(field: Any, definitions: dict[str, Any]) -> Schema:
    kind: Any = Annotated[field.field_info.annotation, field.field_info]
    found = TypeAdapter(kind).json_schema()
    definitions.update(found.pop("$defs", {}))
    return found


def in_our_words(found: Sequence[Any], schema: Schema, *under: str) -> BadInput:
    """The refusal of a request: the first of its faults, each told once, and then what to do about them."""
    said, hints = dict[str, None](), dict[str, None]()
    for error in found:
        if len(said) == _MOST:
            said["there is more"] = None
            break
        what, hint = _TELL.get(error["type"], _otherwise)(_placed(error, schema, under))
        said[what] = None
        if hint:
            hints[hint] = None
    return BadInput("; ".join(said) + (f". Next: {'; '.join(hints)}" if hints else ""))


def _placed(error: Any, root: Schema, under: tuple[str, ...]) -> _Fault:
    """A fault with its place, as far as the schema knows the way there."""
    inside, way, name = root, [], ""
    for part in (*under, *error["loc"]):
        inner = inside.get("items") if isinstance(part, int) else inside.get("properties", {}).get(part)
        if inner is None:  # a name that is none, or which of two kinds of numbers was tried
            name = plain(_ascii(str(part)), _NAME)
            break
        inside = _resolved(root, inner)
        way.append(str(part))
    said = plain(_ascii(str(error.get("msg", "is wrong"))))
    return _Fault(".".join(way[1:]), inside, error.get("input"), name, said, way[:1] != ["body"])


def _resolved(root: Schema, schema: Schema) -> Schema:
    """What a schema says of a value that is there: references followed, null left out."""
    if "$ref" in schema:
        return _resolved(root, root["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return _resolved(root, next(part for part in schema["anyOf"] if part.get("type") != "null"))
    return schema


def _missing(fault: _Fault) -> tuple[str, str]:
    if fault.where:
        return f"{fault.where} is missing", f"give {fault.where}, {_kind(fault.schema)}"
    return "the body is empty", f"send {_outline(fault.schema)}"


def _unknown(fault: _Fault) -> tuple[str, str]:
    fields = list(fault.schema.get("properties", ()))
    near = get_close_matches(fault.name[:_VALUE], fields, 1)
    what = f"there is no field {fault.name}" + (f" in {fault.where}" if fault.where else "")
    return what, f"did you mean {near[0]}?" if near else f"the fields are {', '.join(fields)}"


def _flood(fault: _Fault) -> tuple[str, str]:
    what = f"in {fault.where} {fault.said}" if fault.where else fault.said
    return what, f"the fields are {', '.join(fault.schema.get('properties', ()))}"


def _size(fault: _Fault) -> tuple[str, str]:
    return f"{fault.here} must be {_kind(fault.schema)}, and has {len(fault.given)}", ""


def _no_text(fault: _Fault) -> tuple[str, str]:
    return f"{fault.here} contains a lone surrogate, which is not text", "remove it"


def _must(fault: _Fault) -> tuple[str, str]:
    hint = "" if fault.where or fault.is_text else f"send {_outline(fault.schema)}"
    return f"{fault.here} must be {_kind(fault.schema)}{_but(fault)}", hint


def _otherwise(fault: _Fault) -> tuple[str, str]:
    """What nobody has thought of, in the words of the library that checks."""
    return f"{fault.here}: {fault.said}", ""


def _kind(schema: Schema) -> str:
    """What a value must be."""
    if "const" in schema or "enum" in schema:
        return f"one of {', '.join(map(str, schema.get('enum') or [schema['const']]))}"
    if schema.get("pattern") in MEANINGS:
        return MEANINGS[schema["pattern"]]
    kind, bounds = schema.get("type"), None
    if kind in ("integer", "number"):
        bounds = _bounds(schema, "minimum", "maximum", "from {} to {}", "up to {}")
    elif kind == "string":
        bounds = _bounds(schema, "minLength", "maxLength", "of {} to {} characters", "of at most {} characters")
    elif kind == "array":
        bounds = _bounds(schema, "minItems", "maxItems", "of {} to {} items", "of at most {} items")
    return _KINDS.get(str(kind), "any JSON") + (f" {bounds}" if bounds else "")


def _bounds(schema: Schema, low: str, high: str, both: str, one: str) -> str | None:
    if high not in schema:
        return None
    most = f"{schema[high]:.0f}"
    return both.format(schema[low], most) if low in schema else one.format(most)


def _but(fault: _Fault) -> str:
    """What was given instead, where to say it helps; a token that is none is nobody else's business."""
    given = fault.given
    if isinstance(given, str) and not (fault.is_text or "enum" in fault.schema):
        return "" if fault.schema.get("type") == "string" else ", not a text"
    if given is None or isinstance(given, bool):
        return f", not {json.dumps(given)}"
    if isinstance(given, (str, int, float)):
        return f", not {plain(_ascii(str(given)), _VALUE)}"
    return ", not an object" if isinstance(given, dict) else ", not a list" if isinstance(given, list) else ""


def _outline(schema: Schema) -> str:
    """An object with the fields that must be there."""
    return "{" + ", ".join(f'"{name}": …' for name in schema.get("required", ())) + "}"


def _ascii(text: str) -> str:
    return text[: 2 * _NAME].encode("ascii", "backslashreplace").decode()


_KINDS = {
    "integer": "a whole number", "number": "a number", "string": "a text", "boolean": "true or false",
    "array": "a list", "object": "an object",
}  # fmt: skip
#: By the types of the library's findings.
_TELL: Mapping[str, Callable[[_Fault], tuple[str, str]]] = {
    "missing": _missing,
    "extra_forbidden": _unknown,
    "too_many_fields": _flood,
    "string_unicode": _no_text,
    **dict.fromkeys(("string_too_short", "string_too_long", "too_short", "too_long"), _size),
    **dict.fromkeys(
        (
            "string_type", "int_type", "float_type", "bool_type", "list_type", "dict_type", "model_type",
            "model_attributes_type", "int_parsing", "int_parsing_size", "int_from_float", "float_parsing",
            "bool_parsing", "finite_number", "greater_than_equal", "less_than_equal", "literal_error",
            "string_pattern_mismatch",
        ),
        _must,
    ),
}  # fmt: skip
