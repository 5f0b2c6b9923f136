"""A contract declares a job's lifecycle as data: states, paths between them, and numbers.

    states   name → the roles it can have; the engine understands roles, never names
    paths    trigger → hops; one hop is one state change and one log row
    numbers  budget, backoff, lease: settings within the contract's own ranges
    words    the names that the document uses: views, event kinds with their exact keys, error codes

A contract can be written as JSON and read back. An unsound one raises `Unsound` at import (`soundness.py`).
`tenure migrate` registers it. The engine has no branch on a contract's name.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from tenure.errors import Unsound

Role = Literal["ready", "waiting", "leased", "active", "settling", "done"]
ROLES: tuple[Role, ...] = get_args(Role)
HELD: frozenset[Role] = frozenset({"leased", "active"})

#: What can move a job. `fail` is not a trigger: budget and error decide between retry, exhaust and fatal.
Trigger = Literal[
    "claim", "reclaim", "start", "succeed", "retry", "exhaust", "fatal", "expire", "expire_at_cap",
    "promote", "settle", "cancel", "dead_letter", "snooze", "hand_back", "compensation_failed",
]  # fmt: skip
TRIGGERS: frozenset[str] = frozenset(get_args(Trigger))
#: Those that a request for a state may pull, in this order if several lead there.
REQUESTABLE_TRIGGERS = ("start", "succeed", "cancel", "dead_letter", "fatal", "promote", "retry", "exhaust")

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
class Counter:
    """The contract's own count of attempts or retries. Views show it; it is never a fence."""

    name: str
    initial: int
    on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit under the document's own name. It allows limit + extra executions, at least one."""

    name: str
    default: int
    minimum: int = 1
    maximum: int = 1000
    extra: int = 0

    def executions(self, limit: int, raises: int = 0) -> int:
        """Return how often a job with this limit may be claimed."""
        return max(1, limit + self.extra) + raises


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How a delay is spread: multiplied by, or lengthened by, a number between low and high."""

    form: Literal["multiply", "add"]
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Retry delay: base·factor^(n-1), at most cap, spread by the jitter."""

    base_ms: int
    cap_ms: int
    jitter: Jitter
    factor: float = 2.0
    cap_after_jitter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The heartbeat interval, and how many missed heartbeats make a job an orphan."""

    default_ms: int
    minimum_ms: int
    maximum_ms: int
    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long a claim lasts, and what happens when it expires."""

    default_ms: int
    minimum_ms: int = 2_000
    maximum_ms: int = 86_400_000
    #: Whether a holder may still write after its lease expired and before the job is claimed again.
    after_expiry: Literal["valid_until_taken", "forfeited"] = "valid_until_taken"
    #: The error that is stored when a lease expires.
    error: Mapping[str, Any] = field(default_factory=lambda: {"type": "LeaseExpired", "message": "the lease expired"})
    heartbeat: Heartbeat | None = None
    #: A heartbeat renews the lease when at most this share of it is left.
    renew_at: float = 0.5
    #: Whether a claim closes the expired leases of its queues before it picks jobs.
    closed_by_claim: bool = False


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


@dataclass(frozen=True, slots=True)
class Contract:
    """A declared lifecycle. Raises `Unsound` if the declaration contradicts itself."""

    name: str
    version: str
    title: str
    states: Mapping[str, tuple[Role, ...]]
    initial: str
    paths: tuple[Path, ...]
    counter: Counter
    budget: Budget
    backoff: Backoff
    lease: Lease
    retryable: Retryable
    views: tuple[View, ...]
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

    def __post_init__(self) -> None:
        from tenure.contracts.soundness import check_soundness

        check_soundness(self)

    def path(self, trigger: str, source: str | None = None, choice: str | None = None) -> Path | None:
        """Return the path of a trigger (from a state), or None if the contract has none."""
        for path in self.paths:
            if path.trigger == trigger and path.choice == choice and (source is None or source in path.sources):
                return path
        return None

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
        heartbeat = self.lease.heartbeat and replace(self.lease.heartbeat, default_ms=values["heartbeat_ms"])
        return replace(
            self,
            lease=replace(self.lease, default_ms=values["lease_ms"], heartbeat=heartbeat),
            budget=replace(self.budget, default=values["max_attempts"]),
            backoff=replace(self.backoff, base_ms=values["backoff_base_ms"], cap_ms=values["backoff_cap_ms"]),
        )

    def describe(self) -> dict[str, Any]:
        """Return the declaration as JSON values. Empty `optional` keys are omitted, so older releases can read it."""
        declared: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for event in declared["events"]:
            if not event["optional"]:
                del event["optional"]
        return declared

    def machine(self) -> dict[str, Any]:
        """Return what registration freezes: everything except the numbers that settings may change."""
        declared = self.describe()
        del declared["title"], declared["alerts"]
        del declared["lease"]["default_ms"], declared["budget"]["default"]
        del declared["backoff"]["base_ms"], declared["backoff"]["cap_ms"]
        if declared["lease"]["heartbeat"]:
            del declared["lease"]["heartbeat"]["default_ms"]
        return declared

    def digest(self) -> str:
        """Return a fingerprint of `machine()`: equal exactly when the machines are equal."""
        return hashlib.sha256(json.dumps(self.machine(), sort_keys=True).encode()).hexdigest()


def view(name: str, rows: Any, columns: str, **objects: str) -> View:
    """Declare a view: `view("tasks", "jobs", "task_id=id type")` shows the field `id` as `task_id`, and `type`."""
    return View(name, rows, _fields(columns), {column: _fields(keys) for column, keys in objects.items()})


def event(name: str, on: str, keys: str = "", *, fades: bool = False) -> Event:
    """Declare an event by its triggers and keys: `event("dead", "exhaust fatal", "reason due_at=due")`."""
    return Event(name, tuple(on.split()), _fields(keys), fades=fades)


def _fields(text: str) -> dict[str, str]:
    """Return name → field of the words `name=field`; a word without a field shows the field of that name."""
    pairs = [word.partition("=") for word in text.split()]
    return {name: field or name for name, _, field in pairs}


def states(**names: str) -> dict[str, tuple[Role, ...]]:
    """Declare states with their roles: `states(queued="ready", Failed="waiting done")`."""
    return {name: tuple(roles.split()) for name, roles in names.items()}  # type: ignore[arg-type]


def paths(declared: Mapping[str, tuple[Role, ...]], *rows: tuple[Any, ...]) -> tuple[Path, ...]:
    """Declare paths as rows of (trigger, "source|source > state > state:role", options)."""
    return tuple(_path(declared, *row) for row in rows)


def _path(
    declared: Mapping[str, tuple[Role, ...]], trigger: str, route: str, options: Mapping[str, Any] | None = None
) -> Path:
    if "->" in route or "→" in route:
        raise Unsound("being declared", [f"path {trigger}: write {route!r} with > between the states"])
    sources, *steps = [step.strip() for step in route.split(">")]
    hops = []
    for step in steps:
        state, _, role = step.partition(":")
        known = declared.get(state, ())
        # A state with one role needs no `:role`. With several roles the hop must name one.
        hops.append(Hop(state, role or (known[0] if len(known) == 1 else "")))  # type: ignore[arg-type]
    return Path(trigger, tuple(source.strip() for source in sources.split("|")), tuple(hops), **(options or {}))
