"""A type hint as a pydantic validator that reads the forms that `encode.py` stores.

pydantic makes the core schema of the hint, and `_adapted` changes the nodes where JSON needs it: a date is made of its
ISO text, a timedelta of a number of seconds, an Enum member of its value, and "5" is no whole number. Pydantic models
are left alone: they read the JSON that they dumped. This module loads pydantic, so `decode.py` imports it at first use.
"""

from __future__ import annotations

import collections.abc as abc
import json
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NotRequired, Required, get_args, get_origin, is_typeddict
from uuid import UUID

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator

from tenure.jobs.arguments.decode import hints_of
from tenure.jobs.arguments.encode import Unfit, key_place, stored

Node = dict[str, Any]

_CONFIG: Final = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True, defer_build=True)
#: Stands in the place of an error for the member of a union; no key in the database has this character.
_MEMBER: Final = "\x00"
_LISTS: Final = (abc.Collection, abc.Container, abc.Reversible)
_JSON_FIRST: Final = {"any": 0, "bool": 1, "int": 1, "str": 1, "none": 1, "float": 2}


def validator(hint: Any) -> Callable[[Any], Any]:
    """The function that reads a JSON value as this hint says, and raises Unfit where it does not fit."""
    try:
        schema = _adapted(_core_schema(list[get_args(hint)] if get_origin(hint) in _LISTS else hint))
        validate = SchemaValidator(schema, {"allow_inf_nan": False}).validate_python
    except (PydanticUserError, SchemaError) as error:
        raise Unfit(f"pydantic cannot read its type hint: {error}") from error

    def read(value: Any) -> Any:
        try:
            return validate(value, by_alias=True, by_name=True)
        except ValidationError as error:
            raise _unfit(error) from error
        except RecursionError:
            raise
        except Exception as error:  # a class of the user can raise anything
            raise Unfit(f"{type(error).__name__}: {error}") from error

    return read


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: Any) -> Any:
        return cls


class _Unresolved(metaclass=_Anything):
    """Takes the place of a name that cannot be resolved, inside of a class."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        return {"type": "any"}


def _core_schema(hint: Any) -> Any:
    """The schema that pydantic makes of a hint; names in its classes that cannot be resolved are Any."""
    unresolved: dict[str, Any] = {}
    while True:
        adapter = TypeAdapter(list[hint], config=_CONFIG)  # a list, because not every class takes a configuration
        try:
            adapter.rebuild(force=True, _types_namespace=unresolved)
            schema: Any = adapter.core_schema
            if schema["type"] != "definitions":
                return schema["items_schema"]
            return {**schema, "schema": schema["schema"]["items_schema"]}
        except PydanticUndefinedAnnotation as error:
            if error.name in unresolved:
                raise
            unresolved[error.name] = _Unresolved
        except PydanticUserError as error:
            if error.code != "typed-dict-version" or not _backport(hint, set()):
                raise


def _backport(hint: Any, seen: set[Any]) -> bool:
    """Before Python 3.12 pydantic refuses `typing.TypedDict`: tell each of this hint how it is read."""
    kind, found = get_origin(hint) or hint, False
    inner = get_args(hint)
    if kind not in seen and (is_typeddict(kind) or is_dataclass(kind) or hasattr(kind, "_fields")):
        seen.add(kind)
        hints = hints_of(kind)
        inner += tuple(hints.values())
        if is_typeddict(kind) and not hasattr(kind, "__get_pydantic_core_schema__"):
            from typing_extensions import TypedDict

            for name, each in hints.items():
                if get_origin(each) not in (Required, NotRequired):
                    hints[name] = (Required if name in kind.__required_keys__ else NotRequired)[each]
            same = TypedDict(kind.__name__, hints)  # type: ignore[operator]
            kind.__get_pydantic_core_schema__ = classmethod(lambda _, source, handler: handler.generate_schema(same))
            found = True
    return any([_backport(each, seen) for each in inner]) or found


def _adapted(node: Any) -> Any:
    """The schema with the nodes changed that JSON needs otherwise."""
    if isinstance(node, (list, tuple)):
        return type(node)(_adapted(each) for each in node)
    if not isinstance(node, dict):
        return node
    inner = node
    while inner["type"].startswith("function-") and "schema" in inner:  # a model with validators of its own
        inner = inner["schema"]
    if inner["type"] == "model":
        return _function("before", json.dumps, node, schema={"type": "json", "schema": {**node, "ref": ""}})
    if branch := {"json-or-python": "json_schema", "lax-or-strict": "lax_schema"}.get(node["type"]):
        return _adapted(node[branch])
    node = {key: _adapted_part(key, value) for key, value in node.items()}
    change = _CHANGES.get(node["type"])
    return change(node) if change else node


def _adapted_part(key: str, value: Any) -> Any:
    if key in ("fields", "choices") and isinstance(value, dict):  # by name
        return {name: _adapted(each) for name, each in value.items()}
    is_schema = key.endswith("schema") or key in ("choices", "definitions", "fields", "steps")
    return _adapted(value) if is_schema else value


def _no_fit(expected: str) -> PydanticCustomError:
    return PydanticCustomError("unfit", "Input should be {expected}", {"expected": expected})  # type: ignore[arg-type]


def _function(where: str, function: Callable[..., Any], node: Node, **more: Any) -> Node:
    """A node that calls this function; references to the node that it replaces stay."""
    reference = {"ref": node["ref"]} if "ref" in node else {}
    return {"type": f"function-{where}", "function": {"type": "no-info", "function": function}, **reference, **more}


def _made_of(kinds: tuple[type, ...], make: Callable[[Any], Any], expected: str) -> Callable[[Node], Node]:
    """The value is made of a JSON value of these classes; what else the hint asks of it is checked then."""

    def read(value: Any) -> Any:
        if value.__class__ in kinds:
            with suppress(ValueError, OverflowError, InvalidOperation):
                return make(value)
        raise _no_fit(expected)

    return lambda node: _function("before", read, {}, schema=_strict(node))


def _strict(node: Node) -> Node:
    return {"strict": True, **node}


def _moment(value: str) -> datetime:
    if len(value) <= 10:
        raise ValueError("a date, and no time")
    return datetime.fromisoformat(value)


def _one_of(node: Node, values: Iterable[Any], otherwise: Callable[[Any], Any] | None = None) -> Node:
    """One of these values, found by its JSON form; true is not 1. An Enum makes combined flags itself: `otherwise`."""
    forms: dict[str, Any] = {}
    for each in values:
        with suppress(Unfit):  # what cannot be stored does not come back
            forms.setdefault(json.dumps(stored(each, True), sort_keys=True), each)
    expected = f"one of {', '.join(list(forms)[:10])}{', …' if len(forms) > 10 else ''}"

    def read(value: Any) -> Any:
        form = json.dumps(value, sort_keys=True)
        if form in forms:
            return forms[form]
        if otherwise is not None and value.__class__ is not bool:
            with suppress(Exception):
                return otherwise(value)
        raise _no_fit(expected)

    return _function("plain", read, node)


def _instance(node: Node) -> Node:
    """A class that pydantic does not know: made of a text or a number if it is one, else no JSON becomes it."""
    kind = node["cls"]
    for plain in (str, int, float):
        if isinstance(kind, type) and issubclass(kind, plain):
            return _function("after", kind, node, schema=_strict({"type": plain.__name__}))
    return node


def _union(node: Node) -> Node:
    """A JSON type first, then the first member that fits."""
    members = [each[0] if isinstance(each, tuple) else each for each in node["choices"]]
    members.sort(key=lambda each: _JSON_FIRST.get(each["type"], 3))
    return {**node, "mode": "left_to_right", "choices": [(each, _MEMBER) for each in members]}


def _object(node: Node) -> Node:
    """Keys are texts in JSON: a whole number, or an Enum of them, is read from its digits."""

    def read(key: str, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(key)
        except ValidationError:
            if key.isascii() and key.removeprefix("-").isdecimal():
                return handler(int(key))
            raise

    keys = node.get("keys_schema", {"type": "any"})
    return node if keys["type"] in ("any", "str") else {**node, "keys_schema": _function("wrap", read, {}, schema=keys)}


def _dataclass(node: Node) -> Node:
    """An object with other fields is refused, except where fields are computed, which are stored as well."""
    computes = any(not each.init for each in fields(node["cls"]))
    if node["schema"]["type"] == "dataclass-args" and "extra_fields_behavior" not in node.get("config", {}):
        node["schema"].setdefault("extra_behavior", "ignore" if computes else "forbid")
    return node


_CHANGES: Final[Mapping[str, Callable[[Node], Node]]] = {
    "datetime": _made_of((str,), _moment, "a date and time as ISO 8601 writes it"),
    "date": _made_of((str,), date.fromisoformat, "a date as ISO 8601 writes it"),
    "time": _made_of((str,), time.fromisoformat, "a time of day as ISO 8601 writes it"),
    "timedelta": _made_of((int, float), lambda seconds: timedelta(seconds=seconds), "a number of seconds"),
    "decimal": lambda node: _decimal({"allow_inf_nan": True, **node}),
    "uuid": _made_of((str,), UUID, "a UUID"),
    "bytes": _made_of((str,), lambda text: b64decode(text, validate=True), "bytes in base64"),
    "enum": lambda node: _one_of(node, node["cls"], node["cls"]),
    "literal": lambda node: _one_of(node, node["expected"]),
    "is-instance": _instance,
    **dict.fromkeys(("bool", "float", "int", "str"), _strict),
    "union": _union,
    "dict": _object,
    "ordered-dict": _object,
    "counter": _object,
    "dataclass": _dataclass,
    # Another key is no fault: a TypedDict may be given as one with fewer keys.
    "typed-dict": lambda node: {"extra_behavior": "allow", **node},
    "generator": lambda node: {**node, "type": "list"},
}
_decimal = _made_of((str, int), Decimal, "a decimal number as a text")


def _unfit(error: ValidationError) -> Unfit:
    """What pydantic says of the first fault, at its place; of a union, what each member says."""
    faults = error.errors(include_url=False, include_context=False)
    place = faults[0]["loc"]
    if _MEMBER in place:
        place = place[: place.index(_MEMBER)]
        faults = [fault for fault in faults if fault["loc"][: len(place) + 1] == (*place, _MEMBER)]
    else:
        faults = faults[:1]
    unfit = Unfit("; ".join(dict.fromkeys(_said(fault["msg"], fault["input"]) for fault in faults)))
    for each in reversed(place[:-1] if place[-1:] == ("[key]",) else place):
        unfit.at(f"[{each}]" if isinstance(each, int) else key_place(each))
    return unfit


def _said(message: str, value: Any) -> str:
    if not message.startswith("Input should"):
        return message
    shown = repr(value)
    return f"{message}, not {shown if len(shown) <= 60 else f'{shown[:60]}…'}"
