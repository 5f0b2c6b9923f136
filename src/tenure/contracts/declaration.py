"""A contract declares a job's lifecycle as data: states, paths between them, and numbers.

    states   name → the roles it can have; the engine understands roles, never names
    paths    trigger → hops; one hop is one state change and one log row
    numbers  budget, backoff, lease: settings within the contract's own ranges
    words    the names that the document uses: views, event kinds with their exact keys, error codes

`notation.py` has the short forms in which states, paths, events and views are written. A contract can be stored as JSON
and read back (`stored_form.py`). An unsound one raises `Unsound` at import (`soundness.py`). `tenure migrate` registers
it. The engine has no branch on a contract's name.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tenure.contracts.numbers import Backoff, Budget, Counter, Lease
from tenure.errors import Unsound

Role = Literal["ready", "waiting", "leased", "active", "settling", "done"]
ROLES: tuple[Role, ...] = get_args(Role)
HELD: frozenset[Role] = frozenset({"leased", "active"})

#: What the engine moves a job by. `fail` is not a trigger: budget and error decide between retry, exhaust and fatal.
#: A path with any other trigger is a decision: a person takes it, by a request for the state that it leads to.
Trigger = Literal[
    "claim", "reclaim", "start", "succeed", "retry", "exhaust", "fatal", "expire", "expire_at_cap",
    "promote", "settle", "cancel", "dead_letter", "snooze", "hand_back", "compensation_failed",
]  # fmt: skip
TRIGGERS: frozenset[str] = frozenset(get_args(Trigger))
#: Those that a request for a state may pull besides decisions, in this order if several lead there.
REQUESTABLE_TRIGGERS = ("start", "succeed", "cancel", "dead_letter", "fatal", "promote", "retry", "exhaust")

#: Words that mean something else in the log or in a call, so that no decision may be named so.
RESERVED = frozenset({
    "fail", "reap", "transition", "compensate", "compensating", "compensated", "heartbeat", "renewed",
    "cancel_requested", "queue_changed", "retried_now", "made",
})  # fmt: skip

Due = Literal["keep", "now", "backoff", "given"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One state change: the state and role after it."""

    state: str
    role: Role


@dataclass(frozen=True, slots=True)
class Path:
    """The hops of a trigger from each of its sources; they commit together."""

    trigger: str
    sources: tuple[str, ...]
    hops: tuple[Hop, ...]
    due: Due = "keep"
    #: The reason code of the dead letter that this path writes; None writes none.
    letter: str | None = None
    #: Used instead of the path without a choice when the job type names this end.
    choice: str | None = None

    @property
    def end(self) -> Hop:
        """The last hop."""
        return self.hops[-1]


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """What an error leads to: the trigger, and the dead letter's reason if one is written."""

    trigger: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Retryable:
    """Which errors are retried: `any`, by error `class`, or by the error's own `flag`."""

    rule: Literal["any", "class", "flag"]
    classes: Mapping[str, RetryVerdict] = field(default_factory=dict)

    def verdict(self, error: Mapping[str, Any]) -> RetryVerdict:
        """Return what this error leads to while the budget lasts."""
        if self.rule == "any":
            return RetryVerdict("retry")
        if self.rule == "flag":
            return RetryVerdict("retry" if error.get("retryable") is True else "fatal")
        known = self.classes.get(str(error.get("type")))
        if known is not None:
            return known
        return RetryVerdict("fatal" if error.get("retryable") is False else "retry")


@dataclass(frozen=True, slots=True)
class DeadLetterRules:
    """How dead letters are written: not at all, in the final hop (`record`), or in a second transaction (`staged`)."""

    mode: Literal["none", "record", "staged"] = "none"
    reasons: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    #: How many different people a discard needs.
    reviewers: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A contract event: a hop or a declared fact, shown with exactly these keys."""

    name: str
    on: tuple[str, ...]
    #: Key in the payload → field of the log row (`view_fields.py`).
    keys: Mapping[str, str]
    #: Keys that are omitted if the log row has no value. A later version may add only such keys.
    optional: tuple[str, ...] = ()
    #: The payload is verbose: retention empties it after some days. The event itself stays.
    fades: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A view in the document's own words: which rows it shows, and column → field."""

    name: str
    rows: Literal["jobs", "events", "letters", "finished", "outbox"]
    columns: Mapping[str, str]
    #: Column → {key: field} for columns that are JSON objects with exact keys; a key without a value is omitted.
    objects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


#: What a contract has that does not say otherwise.
_COUNTER, _BUDGET = Counter(), Budget()
_BACKOFF, _LEASE = Backoff(base_seconds=1, cap_seconds=600), Lease(seconds=30)
#: Every error is retried but these two of `tenure.errors`.
_RETRYABLE = Retryable("class", {"PermanentError": RetryVerdict("fatal"), "ValidationError": RetryVerdict("fatal")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A declared lifecycle. Raises `Unsound` if the declaration contradicts itself."""

    name: str
    version: str
    title: str
    states: Mapping[str, tuple[Role, ...]]
    #: The state in which a job begins: ready, or waiting for a decision.
    initial: str
    paths: tuple[Path, ...]
    counter: Counter = _COUNTER
    budget: Budget = _BUDGET
    backoff: Backoff = _BACKOFF
    lease: Lease = _LEASE
    retryable: Retryable = _RETRYABLE
    #: Without any: a view `jobs`, a view `events` and, where there are dead letters, a view `dead_letters`.
    views: tuple[View, ...] = ()
    #: Without any, where a view shows events: one for each trigger and fact, with its name.
    events: tuple[Event, ...] = ()
    #: Facts that are logged without a state change (heartbeat, cancel_requested, …).
    facts: tuple[str, ...] = ()
    #: Log rows store type, reason, correlation id and trace id, and are indexed by type and correlation id.
    indexed_log: bool = False
    dead_letters: DeadLetterRules = DeadLetterRules()
    cancel_modes: tuple[str, ...] = ()
    #: Triggers that only the engine may use, never a request (document 002: only the system opens a new attempt).
    closed_to_requests: tuple[str, ...] = ()
    wakeup: Literal["none", "pointer"] = "none"
    #: The number in a handler's execution key: `job_id:claims`, or the contract's own counter.
    execution_key: Literal["claims", "counter"] = "claims"
    invalid_transition: str = "INVALID_TRANSITION"
    #: Environment variable → number (`lease_ms`, `heartbeat_ms`, `max_attempts`, `backoff_base_ms`, `backoff_cap_ms`).
    knobs: Mapping[str, str] = field(default_factory=dict)
    alerts: Mapping[str, Any] = field(default_factory=dict)
    #: Whether a person may let a job that waits for its retry run before its time.
    early_retry: bool = True

    def __post_init__(self) -> None:
        from tenure.contracts.default_views import default_events, default_views
        from tenure.contracts.soundness import check_soundness

        # A state with one role needs no `:role` in a path.
        object.__setattr__(self, "paths", tuple(_with_roles(path, self.states) for path in self.paths))
        if not self.views:
            object.__setattr__(self, "views", default_views(self))
        if not self.events and any(view.rows == "events" for view in self.views):
            object.__setattr__(self, "events", default_events(self))
        check_soundness(self)

    @property
    def initial_role(self) -> Role:
        """The role in which a job begins: waiting, if its initial state is not ready."""
        roles = self.states.get(self.initial, ())
        return "waiting" if "ready" not in roles and "waiting" in roles else "ready"

    @property
    def decisions(self) -> tuple[str, ...]:
        """The triggers that are the contract's own words; only a request for a state uses them."""
        return tuple(dict.fromkeys(path.trigger for path in self.paths if path.trigger not in TRIGGERS))

    @property
    def requestable(self) -> tuple[str, ...]:
        """The triggers that a request for a state may use, in this order if several lead there."""
        closed = self.closed_to_requests
        return tuple(trigger for trigger in (*self.decisions, *REQUESTABLE_TRIGGERS) if trigger not in closed)

    def decisions_from(self, state: str) -> dict[str, str]:
        """Return the decisions that may be made in a state: trigger → the state that it leads to."""
        own = self.decisions
        paths = [path for path in self.paths if path.trigger in own and state in path.sources and path.hops]
        return {path.trigger: path.end.state for path in paths}

    def path(self, trigger: str, source: str | None = None, choice: str | None = None) -> Path | None:
        """Return the path of a trigger (from a state), or None if the contract has none."""
        for path in self.paths:
            if path.trigger == trigger and path.choice == choice and (source is None or source in path.sources):
                return path
        return None

    def keeps_letters_of(self, state: str) -> bool:
        """Whether each job that has ended in this state has a dead letter; a sound contract has no way around it."""
        return any(path.letter and path.hops and path.end == Hop(state, "done") for path in self.paths)

    def triggers(self) -> frozenset[str]:
        """Return every trigger that has a path in this contract."""
        return frozenset(path.trigger for path in self.paths)

    @property
    def workers_see_database(self) -> bool:
        """Whether workers may reach the database. Where messages wake them, they know the dispatcher only."""
        return self.wakeup != "pointer"

    @property
    def compensates(self) -> bool:
        """Whether effects are compensated before a job ends in failure."""
        return self.path("compensation_failed") is not None

    def choices(self, trigger: str) -> tuple[str, ...]:
        """Return the ends that a job type may choose for this trigger; empty if there is no choice."""
        ends = [path.end.state for path in self.paths if path.trigger == trigger]
        return tuple(dict.fromkeys(ends)) if any(p.choice for p in self.paths if p.trigger == trigger) else ()

    def shown_by_events(self) -> frozenset[str]:
        """Return the fields that the contract's events show, in columns or in payloads."""
        views = [view for view in self.views if view.rows == "events"]
        columns = [field for view in views for field in view.columns.values()]
        objects = [field for view in views for keys in view.objects.values() for field in keys.values()]
        return frozenset([*columns, *objects, *(field for event in self.events for field in event.keys.values())])

    def successes(self) -> tuple[str, ...]:
        """Return the states of jobs that succeeded."""
        return tuple(dict.fromkeys(path.end.state for path in self.paths if path.trigger == "succeed"))

    def edges(self) -> dict[tuple[str, str], list[str]]:
        """Return each pair of states that a hop connects, with its triggers; `[end]` marks an end to choose."""
        found: dict[tuple[str, str], list[str]] = {}
        for path in self.paths:
            label = path.trigger if path.choice is None else f"{path.trigger} [{path.choice}]"
            steps = [hop.state for hop in path.hops]
            for pair in [*((source, steps[0]) for source in path.sources), *itertools.pairwise(steps)]:
                if label not in found.setdefault(pair, []):
                    found[pair].append(label)
        return found

    def numbers(self) -> dict[str, int | None]:
        """Return the numbers that settings may change, by name."""
        heartbeat = self.lease.heartbeat
        return {
            "lease_ms": self.lease.default_ms,
            "heartbeat_ms": heartbeat.default_ms if heartbeat else None,
            "max_attempts": self.budget.default,
            "backoff_base_ms": self.backoff.base_ms,
            "backoff_cap_ms": self.backoff.cap_ms,
        }

    def with_numbers(self, numbers: Mapping[str, int]) -> Contract:
        """Return the same contract with other numbers. Raises `Unsound` outside the contract's ranges."""
        if unknown := sorted(number for number in numbers if self.numbers().get(number) is None):
            raise Unsound(self.name, [f"has no number {number}" for number in unknown])
        values: dict[str, Any] = {**self.numbers(), **numbers}
        seconds = {name: value / 1_000 for name, value in values.items() if name.endswith("_ms") and value is not None}
        heartbeat = self.lease.heartbeat and replace(self.lease.heartbeat, seconds=seconds["heartbeat_ms"])
        return replace(
            self,
            lease=replace(self.lease, seconds=seconds["lease_ms"], heartbeat=heartbeat),
            budget=replace(self.budget, default=values["max_attempts"]),
            backoff=replace(
                self.backoff, base_seconds=seconds["backoff_base_ms"], cap_seconds=seconds["backoff_cap_ms"]
            ),
        )

    def describe(self) -> dict[str, Any]:
        """Return the declaration as JSON values."""
        from tenure.contracts.stored_form import to_description

        return to_description(self)

    def machine(self) -> dict[str, Any]:
        """Return what registration freezes: everything except the numbers that settings may change."""
        declared = self.describe()
        del declared["title"], declared["alerts"]
        declared.pop("early_retry", None)
        del declared["lease"]["default_ms"], declared["budget"]["default"]
        del declared["backoff"]["base_ms"], declared["backoff"]["cap_ms"]
        if declared["lease"]["heartbeat"]:
            del declared["lease"]["heartbeat"]["default_ms"]
        return declared

    def digest(self) -> str:
        """Return a fingerprint of `machine()`: equal exactly when the machines are equal."""
        return hashlib.sha256(json.dumps(self.machine(), sort_keys=True).encode()).hexdigest()


def _with_roles(path: Path, states: Mapping[str, tuple[Role, ...]]) -> Path:
    """Return the path with the role of each hop whose state has only one; "" where the hop must name one."""

    def with_role(hop: Hop) -> Hop:
        named: str = hop.role
        known = states.get(hop.state, ())
        return Hop(hop.state, known[0]) if not named and len(known) == 1 else hop

    return replace(path, hops=tuple(map(with_role, path.hops)))
