"""JSON values as Python values, as a type hint asks.

Most hints are plain (`str`, `int | None`, `dict`), and a look at the value's class is enough; a few more (`datetime`,
`UUID`) have one way to be read (`FORMS`). Every other hint becomes a pydantic validator (`schema.py`) when its first
value comes, so a task with simple hints never loads pydantic. A hint that says nothing (Any, a name that cannot be
resolved) leaves the value as it is.
"""

from __future__ import annotations

import inspect
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Union
from uuid import UUID

_SCALARS: Final[frozenset[type]] = frozenset((str, int, float, bool, NoneType))
_ALL: Final[frozenset[type]] = _SCALARS | {dict, list}
_PLAIN: Final[Mapping[Any, frozenset[type]]] = {
    Any: _ALL, object: _ALL, None: frozenset([NoneType]), dict[str, Any]: frozenset([dict]),
    list[Any]: frozenset([list]), **{kind: frozenset([kind]) for kind in _ALL},
}  # fmt: skip


def _moment(value: str) -> datetime:
    if len(value) <= 10:
        raise ValueError("a date, and no time")
    return datetime.fromisoformat(value)


#: For a hint, the classes of JSON values that it is made of, how it is made of them, and how to say so.
FORMS: Final[Mapping[Any, tuple[tuple[type, ...], Callable[[Any], Any], str]]] = {
    datetime: ((str,), _moment, "a date and time as ISO 8601 writes it"),
    date: ((str,), date.fromisoformat, "a date as ISO 8601 writes it"),
    time: ((str,), time.fromisoformat, "a time of day as ISO 8601 writes it"),
    timedelta: ((int, float), lambda seconds: timedelta(seconds=seconds), "a number of seconds"),
    Decimal: ((str, int), Decimal, "a decimal number as a text"),
    UUID: ((str,), UUID, "a UUID"),
    bytes: ((str,), lambda text: b64decode(text, validate=True), "bytes in base64"),
    float: ((int,), float, "a number"),  # JSON does not keep the two apart
}
#: What making one raises where the value does not fit.
NO_FIT: Final = (ValueError, OverflowError, InvalidOperation)


class Reader:
    """What a type hint makes of JSON values."""

    __slots__ = ("_form", "_hint", "_validate", "as_is")

    def __init__(self, hint: Any, *, or_none: bool = False) -> None:
        self._hint = hint
        self._form = FORMS.get(hint) if isinstance(hint, type) else None
        self._validate: Callable[[Any], Any] | None = None
        #: The classes of JSON values that stay as they are.
        self.as_is = _as_is(hint) | ({NoneType} if or_none else set())

    def read(self, value: Any) -> Any:
        """The Python value; raises Unfit where the JSON value does not fit."""
        if value.__class__ in self.as_is:
            return value
        if self._form is not None and value.__class__ in self._form[0]:
            try:
                return self._form[1](value)
            except NO_FIT:
                pass  # pydantic says what is wrong
        if self._validate is None:
            from tenure.jobs.arguments.schema import validator

            self._validate = validator(self._hint)
        return self._validate(value)


def _as_is(hint: Any) -> frozenset[type]:
    members = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    try:
        known = [_PLAIN.get(member, frozenset()) for member in members]
    except TypeError:  # unhashable, as Literal[[]] or Annotated[int, []] may be
        return frozenset()
    together = frozenset[type]().union(*known)
    # Beside a member that pydantic reads, the order decides which one takes a list or an object.
    return together if all(known) or _ALL in known else together & _SCALARS


def hints_of(thing: Any) -> dict[str, Any]:
    """The type hints of a function or class; those that cannot be resolved are left out, each for itself."""
    with suppress(Exception):  # a hint is any expression
        return typing.get_type_hints(thing, include_extras=True)
    found: dict[str, Any] = {}
    names = getattr(inspect.unwrap(thing), "__globals__", None)
    for name, hint in inspect.get_annotations(inspect.unwrap(thing)).items():
        with suppress(Exception):
            found |= typing.get_type_hints(SimpleNamespace(__annotations__={name: hint}), names, include_extras=True)
    return found
