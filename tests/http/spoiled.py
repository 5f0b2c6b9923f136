"""Requests spoiled in one place: what is generated from a body's own schema, so that a new field is covered at once."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

#: Written as a number that JSON has and no float can hold; and as one that is no JSON at all.
TOO_BIG, NO_NUMBER = "number:1e999", "number:NaN"
#: So many levels are more than a document may have.
DEEP: Any = None
for _ in range(300):
    DEEP = [DEEP]
_SAMPLES: list[tuple[str, Any]] = [
    ("null", None), ("boolean", True), ("integer", 7), ("number", 0.5), ("string", "text"), ("array", []),
    ("object", {}),
]  # fmt: skip


def text(value: Any) -> bytes:
    """A body as JSON; lone surrogates are written as escapes."""
    written = json.dumps(value)
    for number in (TOO_BIG, NO_NUMBER):
        written = written.replace(json.dumps(number), number.partition(":")[2])
    return written.encode()


def spoiled(
    components: dict[str, Any], schema: dict[str, Any], body: Any, most_bytes: int
) -> Iterator[tuple[str, Any]]:
    """A valid body, each time with one wrong value in one place of its schema: where and what, and the body."""
    for path, value in _wrong(components, schema, body, (), most_bytes):
        yield f"{'.'.join(map(str, path))} = {str(value)[:40]!r}", _put(body, path, value)


def _put(body: Any, path: tuple[str | int, ...], value: Any) -> Any:
    made = copy.deepcopy(body)
    inside = made
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    return made


def _variants(components: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What a value may be, with references followed."""
    if "$ref" in schema:
        return _variants(components, components[schema["$ref"].rpartition("/")[2]])
    if (parts := schema.get("anyOf", schema.get("oneOf"))) is None:
        return [schema]
    bounds: dict[str, Any] = {
        name: schema[name] for name in ("minimum", "maximum") if name in schema
    }  # those of all of them
    return [{**one, **bounds} for part in parts for one in _variants(components, part)]


def _wrong(
    components: dict[str, Any], schema: dict[str, Any], value: Any, path: tuple[str | int, ...], most: int
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    variants = _variants(components, schema)
    if path:
        yield from ((path, one) for one in _values(variants, value, most))
    for variant in variants:
        if isinstance(value, dict) and "properties" in variant:
            for name, inner in variant["properties"].items():
                yield from _wrong(components, inner, value.get(name), (*path, name), most)
        if isinstance(value, list) and value and "items" in variant:
            yield from _wrong(components, variant["items"], value[0], (*path, 0), most)


def _values(variants: list[dict[str, Any]], value: Any, most: int) -> Iterator[Any]:
    """Values of the wrong type, and of the right type but out of bounds."""
    types = {variant.get("type") for variant in variants}
    if None in types and not any("const" in one or "enum" in one for one in variants):
        yield from (DEEP, "a\x00b", "a\ud800b", {"\ud800": 1}, {"\x00": 1}, [TOO_BIG], NO_NUMBER, "x" * most)
        return
    if "number" in types:
        types.add("integer")
    yield from (sample for kind, sample in _SAMPLES if kind not in types)
    for variant in variants:
        kind = variant.get("type")
        if kind in ("integer", "number"):
            yield from (TOO_BIG, NO_NUMBER, 10**30, -(10**30), 10**4000)
            yield from (variant[bound] + step for bound, step in (("minimum", -1), ("maximum", 1)) if bound in variant)
        elif kind == "string":
            yield from ("a\x00b", "a\ud800b")
            yield from ["x" * (variant["maxLength"] + 1)] if "maxLength" in variant else ()
            yield from [""] if variant.get("minLength") or "pattern" in variant else ()
            yield from ["nonsense"] if {"enum", "pattern", "format"} & set(variant) else ()
        elif kind == "array":
            first = value[0] if isinstance(value, list) and value else "x"
            yield from [[first] * (variant["maxItems"] + 1)] if "maxItems" in variant else ()
            yield from [[]] if variant.get("minItems") else ()
