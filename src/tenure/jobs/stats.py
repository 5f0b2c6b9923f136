"""Statistics: figures of types, states and queues, made of counts of moves. Values without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

#: The upper bounds of the buckets of durations, in seconds, as `tenure.duration_bounds()` has them.
BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1800.0, 3600.0, 14400.0, 86400.0,
)  # fmt: skip
#: Counter of document 002 → the triggers that it counts. `dlq_count` goes by the contracts' dead letters.
COUNTERS: Final[Mapping[str, frozenset[str]]] = {
    "enqueued": frozenset({"enqueue", "requeue"}),
    "claims": frozenset({"claim", "reclaim"}),
    "claim_conflicts": frozenset({"refused_conflict"}),
    "lease_renewals": frozenset({"renew"}),
    "lease_expiries": frozenset({"expire", "expire_at_cap", "reclaim"}),
    "retries": frozenset({"retry"}),
    "failures": frozenset({"retry", "exhaust", "fatal"}),
    "stale_writes": frozenset({"refused_stale"}),
}
#: Triggers that are failures too where they end a run: then its holder reported it, and no operator or upkeep.
_FAILURES_OF_HOLDERS: Final = frozenset({"dead_letter", "compensation_failed"})
DLQ_COUNT: Final = "dlq_count"
#: Combinations of contract, type and tenant that metrics show with labels of their own; later ones count as `(other)`.
MOST_LABELLED: Final = 500
OTHER: Final = "(other)"
#: Triggers that are no hops of jobs.
_NO_MOVE = frozenset({"enqueue", "requeue", "queue_changed", "recount", "renew"})


class Count(NamedTuple):
    """Equal moves of one contract, type and tenant, with the bucket and the sum of their durations."""

    contract: str
    type: str
    tenant_id: str
    trigger: str
    from_state: str
    to_state: str
    bucket: int
    number: int
    seconds: float

    @property
    def is_move(self) -> bool:
        """Whether it is a hop of jobs that live, and no refusal or creation."""
        return self.trigger not in _NO_MOVE and not self.trigger.startswith("refused_")


class PathHops(NamedTuple):
    """Hops of the contracts' paths, each as (contract, trigger, from, to)."""

    #: The first hops of paths that write a dead letter.
    letters: Collection[tuple[str, str, str, str]] = ()
    #: Hops behind the first one of their path.
    later: Collection[tuple[str, str, str, str]] = ()


class Level(NamedTuple):
    """How many live jobs a contract, queue and state have."""

    contract: str
    queue: str
    state: str
    jobs: int


class ContractMove(NamedTuple):
    """Equal hops of the jobs of one contract; `from_state` empty: the jobs were made."""

    trigger: str
    from_state: str
    to_state: str
    number: int


class Figures(NamedTuple):
    """What metrics show beside counts."""

    workers: int
    slots: int
    busy: int
    #: Seconds for which the oldest due wake-up waits to be published; None: none waits.
    outbox_age_s: float | None
    #: Seconds since the oldest count that is not folded; None: all are.
    fold_lag_s: float | None


@dataclass(slots=True)
class Durations:
    """A histogram of durations."""

    numbers: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def number(self) -> int:
        """How many durations."""
        return self.numbers.total()

    def quantile(self, share: float) -> float | None:
        """The duration that this share of them does not exceed, in proportion within its bucket; None without any."""
        rank, below = share * self.number, 0
        if not self.number:
            return None
        for bucket in range(len(BOUNDS)):
            inside = self.numbers[bucket]
            if inside and below + inside >= rank:
                low = BOUNDS[bucket - 1] if bucket else 0.0
                return low + (BOUNDS[bucket] - low) * max(0.0, rank - below) / inside
            below += inside
        return BOUNDS[-1]

    def to_json(self) -> dict[str, Any]:
        """The histogram's figures as JSON shows them."""
        mean = self.seconds / self.number if self.number else None
        return {"count": self.number, "mean_s": mean, "p50_s": self.quantile(0.5), "p95_s": self.quantile(0.95)}


@dataclass(slots=True)
class Slice:
    """What the jobs of one type (None: of all) did in one minute or hour."""

    start: datetime
    contract: str | None
    type: str | None
    enqueued: int = 0
    claimed: int = 0
    ended: int = 0
    failures: int = 0
    wait: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)

    def add(self, other: Slice) -> None:
        """Add what jobs of another type did."""
        self.enqueued += other.enqueued
        self.claimed += other.claimed
        self.ended += other.ended
        self.failures += other.failures
        self.wait.numbers += other.wait.numbers
        self.run.numbers += other.run.numbers

    def to_json(self) -> dict[str, Any]:
        """The slice as JSON shows it."""
        names = ("start", "contract", "type", "enqueued", "claimed", "ended", "failures")
        return {
            **{name: getattr(self, name) for name in names},
            "wait_p50_s": self.wait.quantile(0.5), "wait_p95_s": self.wait.quantile(0.95),
            "run_p50_s": self.run.quantile(0.5), "run_p95_s": self.run.quantile(0.95),
        }  # fmt: skip


def totals(slices: Iterable[Slice]) -> list[Slice]:
    """What all types did, by time."""
    found: dict[datetime, Slice] = {}
    for one in slices:
        found.setdefault(one.start, Slice(one.start, None, None)).add(one)
    return [found[start] for start in sorted(found)]


@dataclass(slots=True)
class TypeStats:
    """The figures of a contract, type and tenant (None: all tenants)."""

    contract: str
    type: str
    tenant_id: str | None
    counters: Counter[str] = field(default_factory=Counter)
    #: From due to claimed, and from claimed to the holder's end of the run.
    wait: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)

    def add(self, count: Count, hops: PathHops) -> None:
        """Add equal moves. A path of several hops counts once, by its first one; so does its dead letter."""
        hop = count.contract, count.trigger, count.from_state, count.to_state
        if hop not in hops.later:
            for name, triggers in COUNTERS.items():
                if count.trigger in triggers:
                    self.counters[name] += count.number
            if count.trigger in _FAILURES_OF_HOLDERS and count.bucket >= 0:
                self.counters["failures"] += count.number
        if hop in hops.letters:
            self.counters[DLQ_COUNT] += count.number
        if count.bucket >= 0:
            durations = self.wait if count.trigger == "claim" else self.run
            durations.numbers[count.bucket] += count.number
            durations.seconds += count.seconds

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON shows them."""
        names = (*COUNTERS, DLQ_COUNT)
        return {
            "contract": self.contract, "type": self.type, "tenant_id": self.tenant_id,
            **{name: self.counters[name] for name in names}, "wait": self.wait.to_json(), "run": self.run.to_json(),
        }  # fmt: skip


def by_type(counts: Iterable[Count], hops: PathHops, *, tenants: bool = False) -> list[TypeStats]:
    """The figures of each contract and type, in order of names; with `tenants`, of each tenant too."""
    found: dict[tuple[str, str, str | None], TypeStats] = {}
    for count in counts:
        key = (count.contract, count.type, count.tenant_id if tenants else None)
        stats = found.get(key) or found.setdefault(key, TypeStats(*key))
        stats.add(count, hops)
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1], key[2] or ""))]


class Snapshot(NamedTuple):
    """What one answer of `/metrics` shows."""

    #: Since ever, and of the last hour.
    counts: Sequence[Count]
    recent: Sequence[Count]
    hops: PathHops
    levels: Sequence[Level]
    #: Queue → seconds; None where the caller may not see queues.
    oldest: Mapping[str, float]
    figures: Figures | None
    #: (contract, type, tenant) with labels of their own.
    labelled: Collection[tuple[str, str, str]]
    process_refusals: Mapping[tuple[str, str], int]
    loop_lag_s: float | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of a time: the counts of its types and the slices, and what lives now."""

    since_s: float
    types: list[TypeStats]
    slices: list[Slice]
    levels: list[Level]
    figures: Figures | None

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON shows them."""
        return {
            "since_seconds": self.since_s,
            "types": [one.to_json() for one in self.types],
            "slices": [one.to_json() for one in self.slices],
            "totals": [one.to_json() for one in totals(self.slices)],
            "live": [one._asdict() for one in self.levels],
            "now": None if self.figures is None else self.figures._asdict(),
        }
