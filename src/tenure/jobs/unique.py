"""Unique jobs: which jobs count as the same, when the first one is in the way of another, and what happens then.

    mode      "waiting": while one waits; "active": while one waits or runs; "period": for a time from its creation
    by        the arguments that must be equal; None: all
    conflict  "return" the first job; "replace" its payload and time till it begins; "refuse" with DuplicateJob

Jobs are compared within their tenant, type and contract, and only with jobs that were enqueued as unique by the same
arguments. The queue does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, get_args

from tenure.errors import BadInput

OnConflict = Literal["return", "replace", "refuse"]
ON_CONFLICT: Final[tuple[str, ...]] = get_args(OnConflict)
#: How an application says it: `unique="waiting"`, `unique="active"`, `unique=timedelta(minutes=5)`.
UniqueOption = Literal["waiting", "active"] | timedelta
MAX_PERIOD_MS: Final = 10 * 366 * 86_400_000


class Unique(NamedTuple):
    """How a job is unique among others of its tenant, type and contract."""

    mode: Literal["waiting", "active", "period"]
    #: The names of the arguments that must be equal; None: all arguments.
    by: tuple[str, ...] | None = None
    on_conflict: OnConflict = "return"
    #: Of mode "period": its length, from the creation of the first job.
    period_ms: int | None = None


def unique_rule(
    unique: UniqueOption | None, by: Sequence[str] | None = None, on_conflict: OnConflict | None = None
) -> Unique | None:
    """Return the rule that these options give; None without `unique`, which the other two need."""
    if unique is None:
        if by is not None or on_conflict is not None:
            option = "unique_by" if by is not None else "on_conflict"
            raise BadInput(f'{option} is for unique jobs. Next: give unique="waiting", "active" or a timedelta too')
        return None
    given: Any = by  # callers without a type checker may pass anything
    if isinstance(given, str):
        raise BadInput(f"unique_by is a sequence of names, not {by!r}. Next: write unique_by=({by!r},)")
    mode: Any = "period" if isinstance(unique, timedelta) else unique
    period_ms = round(unique.total_seconds() * 1_000) if isinstance(unique, timedelta) else None
    names = None if by is None else tuple(dict.fromkeys(by))
    return check_unique(Unique(mode, names, "return" if on_conflict is None else on_conflict, period_ms))


def changed_rule(
    rule: Unique | None, unique: UniqueOption | None, by: Sequence[str] | None, on_conflict: OnConflict | None
) -> Unique | None:
    """Return the rule with the given options in place of its own; those that are None stay."""
    if rule is None:
        return unique_rule(unique, by, on_conflict)
    new = unique_rule(unique or "waiting", by, on_conflict)
    if new is None:
        raise AssertionError("a rule was given")
    return Unique(
        rule.mode if unique is None else new.mode, rule.by if by is None else new.by,
        rule.on_conflict if on_conflict is None else new.on_conflict,
        rule.period_ms if unique is None else new.period_ms,
    )  # fmt: skip


def check_unique(rule: Unique) -> Unique:
    """Return the rule; refuses one that makes no sense."""
    if rule.mode not in ("waiting", "active", "period"):
        raise BadInput(f'unique must be "waiting", "active" or a timedelta, not {rule.mode!r}')
    if (rule.mode == "period") != (rule.period_ms is not None):
        raise BadInput("a unique period needs its length, and only a period has one")
    if rule.period_ms is not None and not 1 <= rule.period_ms <= MAX_PERIOD_MS:
        raise BadInput("a unique period must be at least a millisecond and at most ten years")
    if rule.on_conflict not in ON_CONFLICT:
        raise BadInput(f"on_conflict must be one of {', '.join(ON_CONFLICT)}, not {rule.on_conflict!r}")
    names: tuple[Any, ...] | None = rule.by
    if names is not None and (not names or not all(isinstance(name, str) and name for name in names)):
        raise BadInput("unique_by needs the names of one or more arguments. Next: leave it out to compare all of them")
    return rule


def unique_scope(rule: Unique, payload: Any, without: str) -> str:
    """Return a hash of the arguments that count; `without`: the payload key that is no argument.

    Refuses a payload that lacks an argument of `unique_by`.
    """
    if rule.by is None:
        chosen = payload
        if isinstance(payload, Mapping):
            chosen = {name: value for name, value in payload.items() if name != without}
    else:
        if not isinstance(payload, Mapping):
            raise BadInput("unique_by names arguments, and the payload is no object. Next: leave unique_by out")
        if missing := [name for name in rule.by if name not in payload]:
            raise BadInput(
                f"unique_by names {missing[0]!r}, which the payload lacks. Next: give it, or correct the name"
            )
        chosen = {name: payload[name] for name in rule.by}
    text = json.dumps([rule.by and sorted(rule.by), chosen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
