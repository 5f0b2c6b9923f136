"""What a batch of an operation works with: what is to be done, what became of each item, what follows the commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tenure.postgres.bound_contract import BoundContract


class Ended(NamedTuple):
    """What became of an item: done (no code), or skipped with the reason; and the job that was made of it."""

    code: str | None = None
    why: str | None = None
    made: int | None = None


CHANGED = Ended("CHANGED", "it is no longer as it was when the preview was made")
GONE = Ended("GONE", "it is no longer stored")


class Work(NamedTuple):
    """What the operation's row says is to be done."""

    of_letters: bool
    verb: str
    options: Mapping[str, Any]
    actor: str
    reason: str


@dataclass(slots=True)
class Done:
    """What a transaction did, for the steps behind its commit."""

    #: Whether the operation runs and it was this transaction's turn.
    runs: bool = False
    items: int = 0
    last: int | None = None
    moved: list[tuple[BoundContract, list[Any]]] = field(default_factory=list)
    woken: set[tuple[str, str]] = field(default_factory=set)
    flows: set[int] = field(default_factory=set)


def run_again_already(made: int) -> Ended:
    return Ended("REQUEUE_CONFLICT", f"it was already run again as job {made}; --again (again: true) repeats that one")


def unknown_contract(contract: str) -> Ended:
    return Ended("UNKNOWN_VERSION", f"contract {contract} is unknown here")
