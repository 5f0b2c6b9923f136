"""JSON values as Python values, as a type hint asks.

Most hints are plain (`str`, `int | None`, `dict`), and a look at the value's class is enough. Every other hint becomes a
pydantic validator (`schema.py`) when its first value comes, so a task with plain hints never loads pydantic. A hint
that says nothing (Any, a name that cannot be resolved) leaves the value as it is.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Union

_SCALARS: Final = frozenset((str, int, float, bool, NoneType))
_ALL: Final = _SCALARS | {dict, list}
_PLAIN: Final[Mapping[Any, frozenset[type]]] = {
    Any: _ALL, object: _ALL, None: frozenset((NoneType,)),
    **{kind: frozenset((kind,)) for kind in _ALL},
    dict[str, Any]: frozenset((dict,)), list[Any]: frozenset((list,)),
}  # fmt: skip
_FLOATS: Final = frozenset((float, NoneType))


class Reader:
    """What a type hint makes of JSON values."""

    __slots__ = ("_hint", "_validate", "as_is")

    def __init__(self, hint: Any, *, or_none: bool = False) -> None:
        self._hint = hint
        self._validate: Callable[[Any], Any] | None = None
        #: The classes of JSON values that stay as they are.
        self.as_is = _as_is(hint) | ({NoneType} if or_none else set())

    def read(self, value: Any) -> Any:
        """The Python value; raises Unfit where the JSON value does not fit."""
        kind = value.__class__
        if kind in self.as_is:
            return value
        if kind is int and self.as_is and self.as_is <= _FLOATS and float in self.as_is:
            with suppress(OverflowError):
                return float(value)  # JSON does not keep the two apart
        if self._validate is None:
            from tenure.jobs.arguments.schema import validator

            self._validate = validator(self._hint)
        return self._validate(value)


def _as_is(hint: Any) -> frozenset[type]:
    try:
        if hint in _PLAIN:
            return _PLAIN[hint]
    except TypeError:  # unhashable, as Literal[[]] or Annotated[int, []] may be
        return frozenset()
    if typing.get_origin(hint) not in (Union, UnionType):
        return frozenset()
    members = [_as_is(member) for member in typing.get_args(hint)]
    together = frozenset[type]().union(*members)
    # Beside a member that pydantic reads, the order decides which one takes a list or an object.
    return together if all(members) or _ALL in members else together & _SCALARS


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
