"""JSON values as Python values: what each form of `encode.py` is read back as.

A loader is a function from the JSON value to the Python value. It refuses what does not fit (`Unfit`, with the place)
and guesses nothing: "5" is no whole number, and true is none either. Which loader a hint asks for is `type_hints.py`'s
business.
"""

from __future__ import annotations

import inspect
import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Any, Final
from uuid import UUID

from tenure.jobs.arguments.encode import Unfit, key_place, named

Loader = Callable[[Any], Any]

#: Hints that a value's own class already answers, so that a look at it is enough.
EXACT: Final = (str, int, float, bool, NoneType)


def as_it_is(value: Any) -> Any:
    """The loader of a hint that asks for nothing."""
    return value


def or_none(load: Loader) -> Loader:
    """The same loader, for a value that may be null."""
    return as_it_is if load is as_it_is else lambda value: None if value is None else load(value)


def misfit(expected: str, value: Any) -> Unfit:
    """The refusal of a value that is not what was expected."""
    shown = repr(value)
    return Unfit(f"expected {expected}, not {shown if len(shown) <= 60 else f'{shown[:60]}…'}")


def _exactly(kind: type, expected: str) -> Loader:
    def load(value: Any) -> Any:
        if value.__class__ is not kind:
            raise misfit(expected, value)
        return value

    return load


def _number(value: Any) -> float:
    """A whole number is a number too; JSON does not keep the two apart."""
    if value.__class__ is float:
        return value
    if value.__class__ is not int:
        raise misfit("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise misfit("a number of 64 bits", value) from None


def _from(kinds: tuple[type, ...], make: Callable[[Any], Any], expected: str) -> Loader:
    """Made from a JSON value of these classes, by a function that raises where it cannot."""

    def load(value: Any) -> Any:
        if value.__class__ in kinds:
            try:
                return make(value)
            except (ValueError, OverflowError, InvalidOperation):
                pass
        raise misfit(expected, value)

    return load


def _moment(value: str) -> datetime:
    if len(value) <= 10:
        raise ValueError("a date, and no time")
    return datetime.fromisoformat(value)


LEAVES: Final[Mapping[Any, Loader]] = {
    Any: as_it_is,
    object: as_it_is,
    str: _exactly(str, "a text"),
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "true or false"),
    NoneType: _exactly(NoneType, "null"),
    float: _number,
    datetime: _from((str,), _moment, "a date and time as ISO 8601 writes it"),
    date: _from((str,), date.fromisoformat, "a date as ISO 8601 writes it"),
    time: _from((str,), time.fromisoformat, "a time of day as ISO 8601 writes it"),
    timedelta: _from((int, float), lambda seconds: timedelta(seconds=seconds), "a number of seconds"),
    Decimal: _from((str, int), Decimal, "a decimal number as a text"),
    UUID: _from((str,), UUID, "a UUID"),
    bytes: _from((str,), lambda text: b64decode(text, validate=True), "bytes in base64"),
}


def parts(value: Any, load: Loader) -> list[Any]:
    """The parts of a list, each loaded."""
    if value.__class__ is not list:
        raise misfit("a list", value)
    if load is as_it_is:
        return value
    made: list[Any] = []
    try:
        for part in value:
            made.append(load(part))
    except Unfit as unfit:
        raise unfit.at(f"[{len(made)}]") from None
    return made


def made_by(make: Callable[..., Any], /, *values: Any, **named_values: Any) -> Any:
    """Made by somebody's own class: whatever it raises is its way to say that the values do not fit."""
    try:
        return make(*values, **named_values)
    except Exception as error:
        raise Unfit(f"{getattr(make, '__name__', make)} refused it: {type(error).__name__}: {error}") from error


def places(loads: list[Loader], make: Callable[[list[Any]], Any]) -> Loader:
    """A list of a fixed length, each place with a hint of its own."""

    def load(value: Any) -> Any:
        given = parts(value, as_it_is)
        if len(given) != len(loads):
            raise misfit(f"{len(loads)} values", value)
        turn = iter(loads)
        return make(parts(given, lambda part: next(turn)(part)))

    return load


def is_object(value: Any) -> None:
    """Refuse what is no JSON object."""
    if value.__class__ is not dict:
        raise misfit("an object", value)


def choice(pairs: list[tuple[Any, Any]], otherwise: Loader | None, expected: str) -> Loader:
    """One of these values, found by its JSON form; true is not 1."""

    def load(value: Any) -> Any:
        for form, each in pairs:
            if form.__class__ is value.__class__ and form == value:
                return each
        if otherwise is not None and value.__class__ is not bool:
            try:
                return otherwise(value)
            except Exception:
                pass
        raise misfit(expected, value)

    return load


def fields_of(value: Any, loads: Mapping[str, Loader], required: set[str], *, others: bool) -> dict[str, Any]:
    """The fields of an object, each loaded; `others` says whether it may have more."""
    is_object(value)
    if missing := sorted(required - value.keys()):
        raise Unfit(f"the object lacks {', '.join(missing)}")
    if not others and (strange := sorted(value.keys() - loads.keys())):
        raise Unfit(f"the object has no place for {', '.join(strange)}")
    made: dict[str, Any] = {}
    name = ""
    try:
        for name, part in value.items():
            made[name] = loads[name](part) if name in loads else part
    except Unfit as unfit:
        raise unfit.at(key_place(name)) from None
    return made


def model(kind: Any) -> Loader:
    """A pydantic model, read as the JSON that it is, so that strict models take their own dump again."""
    by_name = {"by_name": True} if "by_name" in inspect.signature(kind.model_validate_json).parameters else {}

    def load(value: Any) -> Any:
        try:
            return kind.model_validate_json(json.dumps(value), **by_name)
        except Exception as error:  # its own ValidationError, or what its validators raise
            raise _refused_by(kind, error) from error

    return load


def _refused_by(kind: type, error: Exception) -> Unfit:
    """What a model says of its first fault, at its place."""
    try:
        fault = error.errors()[0]  # type: ignore[attr-defined]
    except Exception:  # it is no ValidationError of pydantic
        return Unfit(f"{kind.__name__} refused it: {error}")
    unfit = Unfit(f"{kind.__name__}: {fault['msg']}")
    for place in reversed(fault["loc"]):
        unfit.at(f"[{place}]" if isinstance(place, int) else key_place(place))
    return unfit


def instance(value: Any, kind: type) -> Any:
    """The last resort: a class that no JSON value becomes, unless it is one already."""
    try:
        if isinstance(value, kind):
            return value
    except TypeError:  # a protocol that cannot be asked
        return value
    raise misfit(named(kind), value)
