"""Type hints as loaders: which of `decode.py`'s functions a parameter's hint asks for.

A hint is compiled once, because its loader runs for every job. A hint that says nothing to us (Any, a type variable, a
name that cannot be resolved) leaves the value as it is; a class that no JSON value becomes fits nothing.
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
import typing
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin

from tenure.jobs.arguments import decode
from tenure.jobs.arguments.decode import EXACT, LEAVES, Loader, as_it_is, made_by, parts
from tenure.jobs.arguments.encode import Unfit, is_model, is_named_tuple, key_place, stored

Known = dict[Any, Loader]

_QUALIFIERS: Final = (Required, NotRequired, getattr(typing, "ReadOnly", Required))
_LISTS: Final = {
    collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection, collections.abc.Iterable,
    collections.abc.Reversible, collections.abc.Container, list,
}  # fmt: skip
_SETS: Final = {collections.abc.Set: frozenset, collections.abc.MutableSet: set, set: set, frozenset: frozenset}
_OBJECTS: Final = {
    collections.abc.Mapping: dict, collections.abc.MutableMapping: dict, dict: dict, OrderedDict: OrderedDict,
    Counter: Counter,
}  # fmt: skip


def hints_of(thing: Any) -> Mapping[str, Any]:
    """The type hints of a function or class; those that cannot be resolved are left out, each for itself."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:  # a hint is any expression
        found: dict[str, Any] = {}
    owners = reversed(thing.__mro__) if isinstance(thing, type) else [inspect.unwrap(thing)]
    for owner in owners:
        names = getattr(owner, "__globals__", None) or vars(sys.modules.get(owner.__module__, typing))
        for name, hint in inspect.get_annotations(owner).items():
            one = SimpleNamespace(__annotations__={name: hint})
            try:
                found |= typing.get_type_hints(one, names, include_extras=True)
            except Exception:
                found.pop(name, None)
    return found


def loader(hint: Any, known: Known | None = None) -> Loader:
    """How JSON becomes what this hint says; `known` are the loaders made so far, so that a class may contain itself."""
    known = {} if known is None else known
    try:
        if hint not in known:
            # Until it is made, a decoder that needs it looks it up when it runs.
            known[hint] = lambda value: known[hint](value)
            known[hint] = _made(hint, known)
        return known[hint]
    except TypeError:  # unhashable, as Literal[[]] or Annotated[int, []] may be
        return _made(hint, known)


def _made(hint: Any, known: Known) -> Loader:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is None:
        return LEAVES[NoneType]
    if origin is Annotated or origin in _QUALIFIERS:
        return loader(arguments[0], known)
    if origin in (Union, UnionType):
        return _union(arguments, known)
    if origin is Literal:
        return _one_of(arguments, None)
    for inner in ("__supertype__", "__value__"):  # a NewType, a type alias
        if origin is None and not isinstance(hint, type) and hasattr(hint, inner):
            return loader(getattr(hint, inner), known)
    return _of_class(origin or hint, arguments, known)


def _of_class(kind: Any, arguments: tuple[Any, ...], known: Known) -> Loader:
    first = loader(arguments[0], known) if arguments else as_it_is
    if kind in LEAVES:
        return LEAVES[kind]
    if kind in _LISTS:
        return lambda value: parts(value, first)
    if kind in _SETS:
        return lambda value: made_by(_SETS[kind], parts(value, first))
    if kind in _OBJECTS:
        return _object(_OBJECTS[kind], arguments, known)
    if kind is tuple:
        return _tuple(arguments, known)
    if not isinstance(kind, type):
        return as_it_is
    return _of_own_class(kind, known)


def _of_own_class(kind: type, known: Known) -> Loader:
    """The loader of a class that somebody wrote."""
    if issubclass(kind, Enum):
        # The class itself knows combined flags, and what its `_missing_` makes.
        return _one_of(kind, kind)
    if hasattr(kind, "__required_keys__"):
        return _typed_dict(kind, known)
    if is_named_tuple(kind):
        return _named_tuple(kind, known)
    if is_model(kind):
        return decode.model(kind)
    if is_dataclass(kind):
        return _dataclass(kind, known)
    for plain in (str, int, float):
        if issubclass(kind, plain):
            return lambda value: made_by(kind, LEAVES[plain](value))
    return lambda value: decode.instance(value, kind)


def _tuple(arguments: tuple[Any, ...], known: Known) -> Loader:
    if not arguments or any(get_origin(each) is typing.Unpack for each in arguments):
        return lambda value: tuple(parts(value, as_it_is))
    if arguments[1:] == (Ellipsis,):
        each = loader(arguments[0], known)
        return lambda value: tuple(parts(value, each))
    return decode.places([loader(argument, known) for argument in arguments if argument != ()], tuple)


def _object(make: Any, arguments: tuple[Any, ...], known: Known) -> Loader:
    hints = arguments if len(arguments) == 2 else (*arguments, int) if arguments else (Any, Any)  # Counter[str]
    load_key, load = _key(hints[0], known), loader(hints[1], known)

    def load_object(value: Any) -> Any:
        decode.is_object(value)
        if load_key is load is as_it_is and make is dict:
            return value
        made, key = {}, ""
        try:
            for key, part in value.items():
                made[load_key(key)] = load(part)
        except Unfit as unfit:
            raise unfit.at(key_place(key)) from None
        return made if make is dict else make(made)

    return load_object


def _key(hint: Any, known: Known) -> Loader:
    """Keys are texts in JSON: a whole number, or an Enum of them, is read from its digits."""
    load = loader(hint, known)
    if hint in (str, Any):
        return as_it_is

    def load_key(key: str) -> Any:
        try:
            return load(key)
        except Unfit:
            if key.isascii() and key.removeprefix("-").isdecimal():
                return load(int(key))
            raise

    return load_key


def _union(members: Iterable[Any], known: Known) -> Loader:
    exact = {member for member in members if member in EXACT}
    loads = [loader(member, known) for member in members if member is not NoneType]
    if as_it_is in loads:
        return as_it_is

    def load(value: Any) -> Any:
        if value.__class__ in exact:
            return value
        refusals = []
        for each in loads:
            try:
                return each(value)
            except Unfit as unfit:
                refusals.append(unfit)
        if len(refusals) == 1:
            raise refusals[0]
        raise Unfit("; ".join(dict.fromkeys(refusal.what for refusal in refusals)))

    return load


def _one_of(values: Iterable[Any], otherwise: Loader | None) -> Loader:
    """One of these values, found by its JSON form."""
    pairs = []
    for value in values:
        with suppress(Unfit):  # what cannot be stored does not come back
            pairs.append((stored(value, True), value))
    shown = [repr(form) for form, _ in pairs]
    return decode.choice(pairs, otherwise, f"one of {', '.join(shown[:10])}{', …' if len(shown) > 10 else ''}")


def _named_tuple(kind: Any, known: Known) -> Loader:
    hints = hints_of(kind)
    loads = [loader(hints.get(name, Any), known) for name in kind._fields]
    return decode.places(loads, lambda values: made_by(kind, *values))


def _typed_dict(kind: Any, known: Known) -> Loader:
    hints = hints_of(kind)
    loads = {name: loader(hint, known) for name, hint in hints.items()}
    required = {
        name
        for name, hint in hints.items()
        if get_origin(hint) is Required or (get_origin(hint) is not NotRequired and name in kind.__required_keys__)
    }
    # Another key is no fault: a TypedDict may be given as one with fewer keys.
    return lambda value: decode.fields_of(value, loads, required, others=True)


def _dataclass(kind: Any, known: Known) -> Loader:
    hints = hints_of(kind)
    loads = {each.name: loader(hints.get(each.name, Any), known) for each in fields(kind)}
    required = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING and each.init}
    computed = [each.name for each in fields(kind) if not each.init]

    def load(value: Any) -> Any:
        made = decode.fields_of(value, loads, required, others=False)
        for name in computed:
            made.pop(name, None)
        return made_by(kind, **made)

    return load
