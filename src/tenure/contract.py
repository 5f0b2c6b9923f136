"""A contract is a declared lifecycle: the states of a job, the paths between them, and its numbers.

    states   name → the roles it can have; the engine understands roles, never names
    paths    trigger → hops; one hop is one state change and one log row
    numbers  budget, backoff, lease: settings within the contract's own ranges
    words    how the document calls it all: views, event kinds and their exact keys, error codes

A contract is plain data: it survives JSON, is refused at import when it is not sound (`soundness.py`), and is
registered by `tenure migrate`. The engine has no branch on a contract's name.
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

#: What may move a job. `fail` is no trigger: it becomes retry, exhaust or fatal by the budget and the error.
Trigger = Literal[
    "claim", "reclaim", "start", "succeed", "retry", "exhaust", "fatal", "expire", "expire_at_cap",
    "promote", "settle", "cancel", "dead_letter", "snooze", "hand_back", "compensation_failed",
]  # fmt: skip
TRIGGERS: frozenset[str] = frozenset(get_args(Trigger))

Due = Literal["keep", "now", "backoff", "given"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One state change: where it leads, and in which role the job stands there."""

    state: str
    role: Role


@dataclass(frozen=True, slots=True)
class Path:
    """The hops that a trigger makes from any of its sources; they commit together."""

    trigger: str
    sources: tuple[str, ...]
    hops: tuple[Hop, ...]
    due: Due = "keep"
    #: The reason code of the dead letter that this path writes; None writes none.
    letter: str | None = None
    #: Taken instead of the unmarked path when a job type asks for this end by name.
    choice: str | None = None

    @property
    def end(self) -> Hop:
        """Where the path leaves the job."""
        return self.hops[-1]


@dataclass(frozen=True, slots=True)
class Counter:
    """The contract's own count of attempts or retries: shown, never used as a fence."""

    name: str
    initial: int
    on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit in the document's own word, and how many executions it allows: limit + extra, at least one."""

    name: str
    default: int
    minimum: int = 1
    maximum: int = 1000
    extra: int = 0

    def executions(self, limit: int, raises: int = 0) -> int:
        """How often a job with this limit may be claimed."""
        return max(1, limit + self.extra) + raises


@dataclass(frozen=True, slots=True)
class Jitter:
    """How a delay is spread: multiplied by, or lengthened by, something between low and high."""

    form: Literal["multiply", "add"]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Backoff:
    """base·factor^(n-1), at most cap, spread by the jitter."""

    base_ms: int
    cap_ms: int
    jitter: Jitter
    factor: float = 2.0
    cap_after_jitter: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How often a holder beats, and how many missed beats make an orphan."""

    default_ms: int
    minimum_ms: int
    maximum_ms: int
    missed: int


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a claim lasts and what its end means."""

    default_ms: int
    minimum_ms: int = 2_000
    maximum_ms: int = 86_400_000
    #: Whether a holder whose lease ran out, but was not taken yet, may still write.
    after_expiry: Literal["valid_until_taken", "forfeited"] = "valid_until_taken"
    #: What an expired holder's failure looks like.
    error: Mapping[str, Any] = field(default_factory=lambda: {"type": "LeaseExpired", "message": "the lease expired"})
    heartbeat: Heartbeat | None = None
    #: A beat renews the lease when at most this share of it is left.
    renew_at: float = 0.5
    #: A claim closes expired leases of its queues before it picks.
    closed_by_claim: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error leads to: the trigger, and the dead letter's reason where it writes one."""

    trigger: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Retryable:
    """Which errors are tried again: `any`, by `class`, or by the error's own `flag`."""

    rule: Literal["any", "class", "flag"]
    classes: Mapping[str, Verdict] = field(default_factory=dict)

    def verdict(self, error: Mapping[str, Any]) -> Verdict:
        """What this error leads to while the budget lasts."""
        if self.rule == "any":
            return Verdict("retry")
        if self.rule == "flag":
            return Verdict("retry" if error.get("retryable") is True else "fatal")
        known = self.classes.get(str(error.get("type")))
        if known is not None:
            return known
        return Verdict("fatal" if error.get("retryable") is False else "retry")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Whether jobs are set aside: in the final hop (`record`) or in a transaction of its own (`staged`)."""

    mode: Literal["none", "record", "staged"] = "none"
    reasons: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    #: How many different people must agree to a discard.
    reviewers: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A contract event: a projection of a hop (or a declared fact) onto exactly these keys."""

    name: str
    on: tuple[str, ...]
    #: key in the payload → field of the log row (`fields.py` in the postgres room says how each is read).
    keys: Mapping[str, str]
    #: Keys that are left out where the log row has no value for them. A later version may add only such keys.
    optional: tuple[str, ...] = ()
    #: The payload is verbose: it is forgotten after its time to live, and the event stays.
    fades: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A relation in the document's own words: its rows, and column → field."""

    name: str
    rows: Literal["jobs", "events", "letters", "finished", "outbox"]
    columns: Mapping[str, str]
    #: column → {key: field} for columns that are JSON objects with exact keys; absent values have no key.
    objects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contract:
    """A declared lifecycle; raises `Unsound` when it contradicts itself."""

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
    #: Facts that are log rows without being hops (heartbeat, cancel_requested, …).
    facts: tuple[str, ...] = ()
    #: Log rows carry type, reason, correlation and trace ids of their own, and are indexed by type and correlation.
    indexed_log: bool = False
    dead_letters: DeadLetters = DeadLetters()
    cancel_modes: tuple[str, ...] = ()
    #: Triggers that no request may pull, though the engine does (002: only the system opens a new attempt).
    closed_to_requests: tuple[str, ...] = ()
    wakeup: Literal["none", "pointer"] = "none"
    #: What the execution key handed to a handler counts: `job_id:claims`, or the contract's own counter.
    execution_key: Literal["claims", "counter"] = "claims"
    invalid_transition: str = "INVALID_TRANSITION"
    #: environment name → number (`lease_ms`, `heartbeat_ms`, `max_attempts`, `backoff_base_ms`, `backoff_cap_ms`).
    knobs: Mapping[str, str] = field(default_factory=dict)
    alerts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from tenure.soundness import check  # here, because the checks read finished declarations

        check(self)

    def path(self, trigger: str, source: str | None = None, choice: str | None = None) -> Path | None:
        """The path of a trigger (from a state), or None where the contract has none."""
        for path in self.paths:
            if path.trigger == trigger and path.choice == choice and (source is None or source in path.sources):
                return path
        return None

    def triggers(self) -> frozenset[str]:
        """Every trigger that some path of this contract answers."""
        return frozenset(path.trigger for path in self.paths)

    @property
    def compensates(self) -> bool:
        """Whether effects can be undone before a job ends badly."""
        return self.path("compensation_failed") is not None

    def choices(self, trigger: str) -> tuple[str, ...]:
        """The ends that a job type may choose for this trigger; none where there is no choice."""
        ends = [path.end.state for path in self.paths if path.trigger == trigger]
        return tuple(dict.fromkeys(ends)) if any(p.choice for p in self.paths if p.trigger == trigger) else ()

    def successes(self) -> tuple[str, ...]:
        """The states in which a job ended well."""
        return tuple(dict.fromkeys(path.end.state for path in self.paths if path.trigger == "succeed"))

    def edges(self) -> frozenset[tuple[str, str]]:
        """Every pair of states that some hop connects."""
        pairs: set[tuple[str, str]] = set()
        for path in self.paths:
            steps = [hop.state for hop in path.hops]
            pairs |= {(source, steps[0]) for source in path.sources}
            pairs |= set(itertools.pairwise(steps))
        return frozenset(pairs)

    def numbers(self) -> dict[str, int | None]:
        """The numbers that settings may change, by name."""
        heartbeat = self.lease.heartbeat
        return {
            "lease_ms": self.lease.default_ms,
            "heartbeat_ms": heartbeat.default_ms if heartbeat else None,
            "max_attempts": self.budget.default,
            "backoff_base_ms": self.backoff.base_ms,
            "backoff_cap_ms": self.backoff.cap_ms,
        }

    def with_numbers(self, numbers: Mapping[str, int]) -> Contract:
        """The same machine with other numbers; raises `Unsound` outside the contract's ranges."""
        lease, budget, backoff = self.lease, self.budget, self.backoff
        if unknown := sorted(number for number in numbers if self.numbers().get(number) is None):
            raise Unsound(self.name, [f"has no number {number}" for number in unknown])
        if "lease_ms" in numbers:
            lease = replace(lease, default_ms=numbers["lease_ms"])
        if "heartbeat_ms" in numbers and lease.heartbeat:
            lease = replace(lease, heartbeat=replace(lease.heartbeat, default_ms=numbers["heartbeat_ms"]))
        if "max_attempts" in numbers:
            budget = replace(budget, default=numbers["max_attempts"])
        if "backoff_base_ms" in numbers:
            backoff = replace(backoff, base_ms=numbers["backoff_base_ms"])
        if "backoff_cap_ms" in numbers:
            backoff = replace(backoff, cap_ms=numbers["backoff_cap_ms"])
        return replace(self, lease=lease, budget=budget, backoff=backoff)

    def describe(self) -> dict[str, Any]:
        """The whole declaration as JSON values; what an older release cannot know is left out where it says nothing."""
        declared: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for event in declared["events"]:
            if not event["optional"]:
                del event["optional"]
        return declared

    def machine(self) -> dict[str, Any]:
        """What registration freezes: everything but the numbers that settings may change."""
        declared = self.describe()
        for part, number in (
            ("lease", "default_ms"),
            ("budget", "default"),
            ("backoff", "base_ms"),
            ("backoff", "cap_ms"),
        ):
            del declared[part][number]
        if declared["lease"]["heartbeat"]:
            del declared["lease"]["heartbeat"]["default_ms"]
        for words in ("title", "alerts"):
            del declared[words]
        return declared

    def digest(self) -> str:
        """A fingerprint of the machine: equal exactly when the machines are."""
        return hashlib.sha256(json.dumps(self.machine(), sort_keys=True).encode()).hexdigest()


def states(**names: str) -> dict[str, tuple[Role, ...]]:
    """Declare states with their roles: `states(queued="ready", Failed="waiting done")`."""
    return {name: tuple(roles.split()) for name, roles in names.items()}  # type: ignore[arg-type]


def paths(declared: Mapping[str, tuple[Role, ...]], *rows: tuple[Any, ...]) -> tuple[Path, ...]:
    """Declare paths as rows of (trigger, "source|source > state > state:role", options)."""
    return tuple(_path(declared, *row) for row in rows)


def _path(
    declared: Mapping[str, tuple[Role, ...]], trigger: str, way: str, options: Mapping[str, Any] | None = None
) -> Path:
    if "->" in way or "→" in way:
        raise Unsound("being declared", [f"path {trigger}: write {way!r} with > between the states"])
    sources, *steps = [step.strip() for step in way.split(">")]
    hops = []
    for step in steps:
        state, _, role = step.partition(":")
        known = declared.get(state, ())
        # A state with one role needs no `:role`; with several, the hop must say which.
        hops.append(Hop(state, role or (known[0] if len(known) == 1 else "")))  # type: ignore[arg-type]
    return Path(trigger, tuple(source.strip() for source in sources.split("|")), tuple(hops), **(options or {}))
