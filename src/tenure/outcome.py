"""What became of a call: a move with where it led, or a refusal. In a batch, each job has its own."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from tenure.errors import Refused


class Moved(NamedTuple):
    """A move that was made: the trigger the engine chose, and where the job stands now."""

    job_id: int
    trigger: str
    from_state: str
    state: str
    role: str
    claims: int
    counter: int
    at: datetime
    due_at: datetime | None = None
    delay_ms: int | None = None
    #: Not moved yet: these nodes' effects are to be undone first, in this order, under the lease that is kept.
    compensate: tuple[str, ...] = ()

    @property
    def will_retry(self) -> bool:
        """Whether the job will run again without anybody asking."""
        return self.role in ("ready", "waiting")


class Noted(NamedTuple):
    """A note that was made: until when the job is held now, and whether its holder is asked to stop."""

    job_id: int
    lease_expires_at: datetime | None
    cancel_requested: bool
    renewed: bool


class Effect(NamedTuple):
    """A side effect of a node: recorded by this call, or had before with this result."""

    recorded: bool
    result_json: str | None


class Enqueued(NamedTuple):
    """A job that exists: made by this call, or by an earlier one with the same key."""

    job_id: int
    made: bool


Outcome = Moved | Refused
