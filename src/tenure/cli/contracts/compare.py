"""The additions and alterations between two contracts; `tenure.contracts.versions.differences` finds the removals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tenure.contracts.declaration import Contract

#: The parts that `differences` and `additions` compare.
_COMPARED = re.compile(
    r"(name|version|states|initial|paths|counter|views|events|cancel_modes|invalid_transition|facts)\b"
    r"|budget\.(extra|name)|lease\.after_expiry|lease\.heartbeat\Z|dead_letters\.(mode|reasons|stages|reviewers)"
)


def additions(old: Contract, new: Contract) -> Iterator[str]:
    """The states, paths, modes, reasons, facts, columns and events that only the new contract has."""
    for state, roles in new.states.items():
        if more := set(roles) - set(old.states.get(state, ())):
            yield f"state {state} ({', '.join(sorted(more))})"
    for path in new.paths:
        for source in path.sources:
            if old.path(path.trigger, source, path.choice) is None:
                yield f"path {path.trigger}{f' [{path.choice}]' if path.choice else ''} from {source}"
    for kind, before, after in (
        ("cancel mode", old.cancel_modes, new.cancel_modes),
        ("dead letter reason", old.dead_letters.reasons, new.dead_letters.reasons),
        ("dead letter stage", old.dead_letters.stages, new.dead_letters.stages),
        ("fact", old.facts, new.facts),
        ("column", _columns(old), _columns(new)),
        ("event", _events(old), _events(new)),
    ):
        had = set(before)
        yield from (f"{kind} {each}" for each in dict.fromkeys(after) if each not in had)


def alterations(old: Contract, new: Contract) -> Iterator[str]:
    """The other values that differ: numbers, ranges, and rules that do not change what an old row may do."""
    before, after = (dict(_leaves("", contract.describe())) for contract in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name) and not _COMPARED.match(name):
            yield f"{name} is {json.dumps(after.get(name))} instead of {json.dumps(before.get(name))}"


def _columns(contract: Contract) -> Iterable[str]:
    for view in contract.views:
        yield from (f"{view.name}.{column}" for column in view.columns)
        yield from (f"{view.name}.{column}.{key}" for column, keys in view.objects.items() for key in keys)


def _events(contract: Contract) -> Iterable[str]:
    for event in contract.events:
        for on in event.on:
            yield from (f"{name} on {on}" for name in (event.name, *(f"{event.name}.{key}" for key in event.keys)))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, part)
    else:
        yield name, value
