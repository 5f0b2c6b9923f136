"""The numbers of a contract: its counter, budget, backoff, lease and heartbeat.

Settings may change most of them, within the contract's own ranges. Spans of time are written in seconds; the engine and
the stored form have them in whole milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Counter:
    """The contract's own count of attempts or retries. Views show it; it is never a fence."""

    name: str = "attempt"
    initial: int = 0
    on: tuple[str, ...] = ("claim",)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit under the document's own name. It allows limit + extra executions, at least one."""

    name: str = "max_attempts"
    default: int = 5
    minimum: int = 1
    maximum: int = 1000
    extra: int = 0

    def executions(self, limit: int, raises: int = 0) -> int:
        """Return how often a job with this limit may be claimed."""
        return max(1, limit + self.extra) + raises


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How a delay is spread: multiplied by a number between low and high, or lengthened by so many milliseconds."""

    form: Literal["multiply", "add"] = "multiply"
    low: float = 0.75
    high: float = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Retry delay: base·factor^(n-1), at most cap, spread by the jitter."""

    base_seconds: float
    cap_seconds: float
    jitter: Jitter = Jitter()
    factor: float = 2.0
    cap_after_jitter: bool = False

    @property
    def base_ms(self) -> int:
        """The first delay, in milliseconds."""
        return _milliseconds(self.base_seconds)

    @property
    def cap_ms(self) -> int:
        """The longest delay, in milliseconds."""
        return _milliseconds(self.cap_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The heartbeat interval, and how many missed heartbeats make a job an orphan."""

    seconds: float
    minimum_seconds: float
    maximum_seconds: float
    missed: int

    @property
    def default_ms(self) -> int:
        """The interval, in milliseconds."""
        return _milliseconds(self.seconds)

    @property
    def minimum_ms(self) -> int:
        """The shortest interval that settings may choose, in milliseconds."""
        return _milliseconds(self.minimum_seconds)

    @property
    def maximum_ms(self) -> int:
        """The longest interval that settings may choose, in milliseconds."""
        return _milliseconds(self.maximum_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long a claim lasts, and what happens when it expires."""

    seconds: float
    minimum_seconds: float = 2
    maximum_seconds: float = 86_400
    #: Whether a holder may still write after its lease expired and before the job is claimed again.
    after_expiry: Literal["valid_until_taken", "forfeited"] = "valid_until_taken"
    #: The error that is stored when a lease expires.
    error: Mapping[str, Any] = field(default_factory=lambda: {"type": "LeaseExpired", "message": "the lease expired"})
    heartbeat: Heartbeat | None = None
    #: A heartbeat renews the lease when at most this share of it is left.
    renew_at: float = 0.5
    #: Whether a claim closes the expired leases of its queues before it picks jobs.
    closed_by_claim: bool = False

    @property
    def default_ms(self) -> int:
        """How long a claim lasts, in milliseconds."""
        return _milliseconds(self.seconds)

    @property
    def minimum_ms(self) -> int:
        """The shortest lease that settings may choose, in milliseconds."""
        return _milliseconds(self.minimum_seconds)

    @property
    def maximum_ms(self) -> int:
        """The longest lease that settings may choose, in milliseconds."""
        return _milliseconds(self.maximum_seconds)


def _milliseconds(seconds: Any) -> int:
    """Return a span in whole milliseconds; what is no number stays as it is, and the check of soundness refuses it."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and math.isfinite(seconds)
    milliseconds: int = round(seconds * 1_000) if is_number else seconds
    return milliseconds
