"""A type hint as a pydantic validator that reads the forms that `encode.py` stores.

pydantic makes the core schema of the hint, and `_adapted` changes the nodes where JSON needs it: a date is made of its
ISO text, a timedelta of a number of seconds, an Enum member of its value, and "5" is no whole number. Pydantic models
are left alone: they read the JSON that they dumped. This module loads pydantic, so `decode.py` imports it at first use.
"""

from __future__ import annotations

import collections.abc as abc
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from threading import Lock
from types import GenericAlias
from typing import Any, Final, get_args, get_origin, is_typeddict

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator

from tenure.jobs.arguments.decode import FORMS, NO_FIT, hints_of
from tenure.jobs.arguments.encode import Unfit, key_place, stored

Node = dict[str, Any]

_CONFIG: Final = ConfigDict(allow_inf_nan=True, arbitrary_types_allowed=True, defer_build=True)
#: Stands in the place of an error for the member of a union; no key in the database has this character.
_MEMBER: Final = "\x00"
#: Threads that meet one TypedDict at once must not both change it.
_ONE_AT_A_TIME: Final = Lock()
_LISTS: Final = (abc.Collection, abc.Container, abc.Reversible)
_JSON_FIRST: Final = {"any": 0, "bool": 1, "int": 1, "str": 1, "none": 1, "float": 2}


def validator(hint: Any) -> Callable[[Any], Any]:
    """The function that reads a JSON value as this hint says, and raises Unfit where it does not fit."""
    try:
        with _ONE_AT_A_TIME:
            schema = _adapted(_core_schema(GenericAlias(list, get_args(hint)) if get_origin(hint) in _LISTS else hint))
        validate = SchemaValidator(schema, {"allow_inf_nan": True}).validate_python
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


def _core_schema(hint: Any) -> Any:
    """The schema that pydantic makes of a hint; names in its classes that cannot be resolved say nothing."""
    unresolved: dict[str, Any] = {}
    while True:
        adapter = TypeAdapter(list[hint], config=_CONFIG)  # a list, because not every class takes a configuration
        try:
            adapter.rebuild(force=True, _types_namespace=unresolved)
        except PydanticUndefinedAnnotation as error:
            unresolved[str(error.name)] = _Unresolved
        except PydanticUserError as error:
            if error.code != "typed-dict-version" or not _let_read(hint, set()):
                raise
        else:
            schema: Any = adapter.core_schema
            if schema["type"] != "definitions":
                return schema["items_schema"]
            return {**schema, "schema": schema["schema"]["items_schema"]}


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: Any) -> Any:
        return cls


class _Unresolved(metaclass=_Anything):
    """Takes the place of a name that cannot be resolved: of a type, or of a module with types."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        return {"type": "any"}


def _let_read(hint: Any, seen: set[Any]) -> bool:
    """Let pydantic read the TypedDicts of this hint: before Python 3.12 it refuses those of the module typing."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    found = is_typeddict(kind) and type(kind).__module__ == "typing"
    if found:
        kind.__class__ = type("TypedDict", (type(kind),), {"__module__": __name__})
    if isinstance(kind, type) and kind not in seen:
        seen.add(kind)
        if is_typeddict(kind) or is_dataclass(kind) or hasattr(kind, "_fields"):
            inner += tuple(hints_of(kind).values())
    return found | any([_let_read(each, seen) for each in inner])  # noqa: C419 - every one, not only the first


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
        return _function("before", json.dumps, node, schema={"type": "json", "schema": _nameless(node)})
    if branch := {"json-or-python": "json_schema", "lax-or-strict": "lax_schema"}.get(node["type"]):
        return _adapted(node[branch])
    node = {key: _adapted_part(key, value) for key, value in node.items()}
    change = _CHANGES.get(node["type"])
    return change(node) if change else node


def _adapted_part(key: str, value: Any) -> Any:
    if key in ("fields", "choices") and isinstance(value, dict):
        return {name: _adapted(each) for name, each in value.items()}
    return _adapted(value) if key.endswith(("schema", "choices", "definitions", "fields", "steps")) else value


def _no_fit(expected: str) -> PydanticCustomError:
    return PydanticCustomError("unfit", "Input should be {expected}", {"expected": expected})


def _function(where: str, function: Callable[..., Any], node: Node, **more: Any) -> Node:
    """A node that calls this function in place of another node, whose name it keeps."""
    name = {"ref": node["ref"]} if "ref" in node else {}
    return {"type": f"function-{where}", "function": {"type": "no-info", "function": function}, **name, **more}


def _nameless(node: Node) -> Node:
    return {key: value for key, value in node.items() if key != "ref"}


def _strict(node: Node) -> Node:
    return {"strict": True, **node}


def _made_of(kinds: tuple[type, ...], make: Callable[[Any], Any], expected: str) -> Callable[[Node], Node]:
    """The value is made of a JSON value of these classes; what else the hint asks of it is checked then."""

    def read(value: Any) -> Any:
        if value.__class__ in kinds:
            with suppress(*NO_FIT):
                return make(value)
        raise _no_fit(expected)

    return lambda node: _function("before", read, {}, schema=_strict(node))


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
    if kind in _LISTS:
        raise SchemaError(f"{kind.__name__} inside of another hint. Next: write Sequence")
    plain = next((each for each in (str, int, float) if isinstance(kind, type) and issubclass(kind, each)), None)
    return node if plain is None else _function("after", kind, node, schema=_strict({"type": plain.__name__}))


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
    return {**node, "keys_schema": keys if keys["type"] in ("any", "str") else _function("wrap", read, {}, schema=keys)}


def _dataclass(node: Node) -> Node:
    """An object with other fields is refused; computed fields are stored as well, and computed again."""
    computed = {each.name for each in fields(node["cls"]) if not each.init}

    def read(value: Any) -> Any:
        return {name: value[name] for name in value if name not in computed} if value.__class__ is dict else value

    if node["schema"]["type"] == "dataclass-args" and "extra_fields_behavior" not in node.get("config", {}):
        node["schema"].setdefault("extra_behavior", "forbid")
    return _function("before", read, node, schema=_nameless(node)) if computed else node


_CHANGES: Final[Mapping[str, Callable[[Node], Node]]] = {
    **{kind.__name__.lower(): _made_of(*form) for kind, form in FORMS.items()},
    **dict.fromkeys(("bool", "float", "int", "str"), _strict),
    **dict.fromkeys(("dict", "ordered-dict", "counter"), _object),
    "dataclass": _dataclass,
    "enum": lambda node: _one_of(node, node["cls"], node["cls"]),
    "generator": lambda node: {**node, "type": "list"},
    "is-instance": _instance,
    "literal": lambda node: _one_of(node, node["expected"]),
    # Another key is no fault: a TypedDict may be given as one with fewer keys.
    "typed-dict": lambda node: {"extra_behavior": "allow", **node},
    "union": _union,
}


def _unfit(error: ValidationError) -> Unfit:
    """What pydantic says of the first fault, at its place; of a union, what each member says."""
    faults = error.errors(include_url=False, include_context=False)
    first = faults[0]["loc"]
    end = first.index(_MEMBER) if _MEMBER in first else len(first)
    here = [fault for fault in faults if fault["loc"][: end + 1] == first[: end + 1]]
    unfit = Unfit("; ".join(dict.fromkeys(_said(fault["msg"], fault["input"]) for fault in here)))
    for place in reversed(first[: end - (first[-1:] == ("[key]",))]):
        unfit.at(f"[{place}]" if isinstance(place, int) else key_place(place))
    return unfit


def _said(message: str, value: Any) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return f"{message}, not {shown}" if message.startswith("Input should") else message
