"""Python values as JSON: what an argument or a result becomes when it is stored.

Each kind of value has one form: a datetime is its ISO text, a Decimal its digits, a dataclass the object of its fields.
A value that has none is refused with its place (`order.lines[2].price`) and what to pass instead. Nothing is guessed:
keys that are not texts and bytes have a form only where a type hint turns them back (`loose`), else they would come
back as something else. `decode.py` is the way back.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import isfinite
from pathlib import PurePath
from typing import Any, Final, Self
from uuid import UUID

from tenure.jobs.arguments.node_result import NodeResult

_WHOLE: Final = 2**63
#: Keys that have a form as text where a hint turns it back.
_KEYS: Final = (int, UUID, Enum, date)


class Unfit(Exception):
    """A value without a form, or a form that does not fit its hint: what is wrong, and where in the argument."""

    def __init__(self, what: str, instead: str = "", *, loosely: bool = False) -> None:
        super().__init__(what)
        #: What is wrong, and what to do instead; `loosely`: whether the value has a form where a hint turns it back.
        self.what, self.instead, self.loosely = what, instead, loosely
        #: Where, seen from the argument: `.lines[2].price`.
        self.place = ""

    def at(self, place: str) -> Self:
        """The same, one level further out."""
        self.place = place + self.place
        return self


def stored(value: Any, loose: bool = False) -> Any:
    """The value as JSON has it; raises Unfit where it has no form."""
    kind = value.__class__
    if kind is str:
        return text(value)
    if value is None or kind is bool or (kind is int and -_WHOLE <= value < _WHOLE):
        return value
    return _storer(kind)(value, loose)


def text(value: str) -> str:
    """A text that PostgreSQL can store."""
    if "\x00" in value:
        raise Unfit("it contains a NUL character, which PostgreSQL cannot store", "remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit("it contains a lone surrogate, which is not text", "remove it") from None
    return value


def key_place(key: Any) -> str:
    """How the place of an object's value is written: `.price`, or `['the price']` where that would be unclear."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{str(key)[:60]!r}]"


def _named(kind: type) -> str:
    """A kind of value with its article: a socket, an Order."""
    return f"{'an' if kind.__name__[:1].lower() in 'aeio' else 'a'} {kind.__name__}"


@lru_cache(1_000)  # classes may come and go; those in use stay
def _storer(kind: type) -> Callable[[Any, bool], Any]:
    """How values of this class are stored."""
    for known, storer in _STORERS:
        if issubclass(kind, known):
            return storer
    if callable(getattr(kind, "model_dump", None)):
        return _model
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda value, loose: _object(((name, getattr(value, name)) for name in names), loose)
    return _refuse


def _whole(value: int, _: bool) -> int:
    try:
        str(int(value))
    except ValueError:
        raise Unfit("it has more digits than JSON readers take", "pass it as a text") from None
    return int.__int__(value)


def _number(value: float, _: bool) -> float:
    if not isfinite(value):
        raise Unfit(f"{value} is not a number that JSON has", "pass None, or a finite number")
    return float.__float__(value)


def _time(value: time, _: bool) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Unfit("the zone of a time without a date says no offset", "pass a datetime")
    return value.isoformat()


def _span(value: timedelta, _: bool) -> float:
    seconds = value.total_seconds()
    with suppress(OverflowError):
        if timedelta(seconds=seconds) == value:
            return seconds
    raise Unfit("so long a time cannot be kept to the microsecond", "round it to whole seconds")


def _bytes(value: bytes, loose: bool) -> str:
    if loose:
        return b64encode(value).decode()
    raise Unfit("bytes are not JSON", "annotate them as bytes, or store them elsewhere and pass where", loosely=True)


def _list(value: Iterable[Any], loose: bool) -> list[Any]:
    kept: list[Any] = []
    try:
        for part in value:
            kept.append(stored(part, loose))
    except Unfit as unfit:
        raise unfit.at(f"[{len(kept)}]") from None
    return kept


def _set(value: Iterable[Any], loose: bool) -> list[Any]:
    # In an order of its own, so that equal sets are equal payloads: a repeated enqueue must not look like another.
    return sorted(_list(value, loose), key=repr)


def _object(items: Iterable[tuple[Any, Any]], loose: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    key: Any = None
    try:
        for key, part in items:
            name = text(key) if key.__class__ is str else _key(key, loose)
            if name in kept:
                raise Unfit("two keys have the same form", "keep one of them")
            kept[name] = stored(part, loose)
    except Unfit as unfit:
        raise unfit.at(key_place(key)) from None
    return kept


def _key(key: Any, loose: bool) -> str:
    """A key that is no text: its form as text, where a hint turns it back."""
    if isinstance(key, str) and not isinstance(key, Enum):
        return text(str.__str__(key))
    has_form = isinstance(key, _KEYS)
    if loose and has_form and not isinstance(key, bool):
        return str(stored(key))
    instead = "use texts as keys, or annotate the keys (dict[int, str])"
    raise Unfit(f"{_named(key.__class__)} as a key is not JSON", instead, loosely=has_form)


def _model(value: Any, loose: bool) -> Any:
    try:
        dumped = value.model_dump(mode="json", round_trip=True)
    except RecursionError:
        raise
    except Exception as error:  # whatever its serializers raise
        raise Unfit(f"{_named(value.__class__)} cannot be dumped: {error}", "give the model JSON values") from error
    return stored(dumped, loose)


def _refuse(value: Any, _: bool) -> Any:
    plain = "pass its id or its plain values, and let the task find it"
    instead = "pass str(path), if the worker sees the same files" if isinstance(value, PurePath) else plain
    raise Unfit(f"{_named(value.__class__)} is not JSON", instead)


def _refuse_result(value: NodeResult, _: bool) -> Any:
    whole = "give it to flow.node(task.call(…)) as a whole argument, or in a list of nothing but results"
    raise Unfit(f"{value!r} is not known yet", whole)


# The first that fits: an Enum may be an int, and a datetime is a date. Subclasses are stored as what they are.
_STORERS: Final[tuple[tuple[type | tuple[type, ...], Callable[[Any, bool], Any]], ...]] = (
    (Enum, lambda value, loose: stored(value.value, loose)),
    (str, lambda value, loose: text(str.__str__(value))),
    (int, _whole),
    (float, _number),
    (dict, lambda value, loose: _object(value.items(), loose)),
    ((list, tuple), _list),
    ((set, frozenset), _set),
    ((datetime, date), lambda value, loose: value.isoformat()),
    (time, _time),
    (timedelta, _span),
    ((Decimal, UUID), lambda value, loose: str(value)),
    (bytes, _bytes),
    (NodeResult, _refuse_result),
)
