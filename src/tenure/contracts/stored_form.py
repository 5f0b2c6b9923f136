"""A contract as JSON values, as the registry and `tenure contracts show --json` have it, and back.

Spans of time are written in seconds and stored in whole milliseconds, each under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tenure.contracts.declaration import Contract, Event
from tenure.contracts.numbers import Backoff, Heartbeat, Lease

_SPANS = {"seconds": "default_ms", "minimum_seconds": "minimum_ms", "maximum_seconds": "maximum_ms"}
#: Class → its field in seconds → the stored name, which is also the property in milliseconds.
_IN_MILLISECONDS: Mapping[type, Mapping[str, str]] = {
    Lease: _SPANS, Heartbeat: _SPANS, Backoff: {"base_seconds": "base_ms", "cap_seconds": "cap_ms"},
}  # fmt: skip

#: The parts that every release has stored.
_ALWAYS_STORED = (
    "name", "version", "title", "states", "initial", "paths", "counter", "budget", "backoff", "lease", "retryable",
    "views",
)  # fmt: skip


def to_description(contract: Contract) -> dict[str, Any]:
    """Return a contract as JSON values. Parts that older releases do not know are omitted where they say nothing."""
    described: dict[str, Any] = _stored(contract)
    return described


def _stored(value: Any) -> Any:
    if is_dataclass(value):
        spans = _IN_MILLISECONDS.get(type(value), {})
        names = {field.name: spans.get(field.name, field.name) for field in fields(value)}
        if isinstance(value, Event) and not value.optional:
            del names["optional"]
        if isinstance(value, Contract) and value.early_retry:
            del names["early_retry"]
        return {stored: _stored(getattr(value, stored)) for stored in names.values()}
    if isinstance(value, Mapping):
        return {str(name): _stored(part) for name, part in value.items()}
    return [_stored(part) for part in value] if isinstance(value, (tuple, list)) else value


def from_description(declared: Mapping[str, Any]) -> Contract:
    """Rebuild a contract from its description, as the registry does; a part that is missing gets no default."""
    if missing := [part for part in _ALWAYS_STORED if part not in declared]:
        raise KeyError(f"the description has no {', '.join(missing)}")
    contract: Contract = _rebuild(Contract, declared)
    return contract


def _rebuild(kind: Any, value: Any) -> Any:
    """Return a JSON value as the dataclass, tuple or mapping that its type hint asks for."""
    if is_dataclass(kind):
        hints: Mapping[str, Any] = _type_hints(kind)  # type: ignore[arg-type]
        written = {stored: name for name, stored in _IN_MILLISECONDS.get(kind, {}).items()}  # type: ignore[arg-type]
        fields = {
            written.get(name, name): _seconds(part) if name in written else _rebuild(hints.get(name), part)
            for name, part in value.items()
        }
        return kind(**fields)  # type: ignore[operator]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_rebuild(parts[0], part) for part in value)
    if origin is Mapping:
        return {name: _rebuild(parts[1], part) for name, part in value.items()}
    if origin is UnionType and value is not None:
        return _rebuild(parts[0], value)
    return value


def _seconds(milliseconds: Any) -> Any:
    """Return the seconds; what is no number stays as it is, and the check of soundness refuses it."""
    return milliseconds / 1_000 if isinstance(milliseconds, (int, float)) else milliseconds


_type_hints = cache(get_type_hints)
