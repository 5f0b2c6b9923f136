"""The outcome of a call: a move with its result, or a refusal. In a batch, each job has its own."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from tenure.errors import Refused


class Moved(NamedTuple):
    """A completed move: the trigger that the engine chose, and where the job stands now."""

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
    #: Not moved yet: the holder must first compensate these nodes' effects, in this order, under its lease.
    compensate: tuple[str, ...] = ()
    #: The flow that goes on, when this ended a job of a flow.
    flow_id: int | None = None

    @property
    def will_retry(self) -> bool:
        """Whether the job will run again by itself."""
        return self.role in ("ready", "waiting")


class Noted(NamedTuple):
    """A recorded heartbeat or note: the current lease expiry, and whether the holder is asked to stop."""

    job_id: int
    lease_expires_at: datetime | None
    cancel_requested: bool
    renewed: bool


class QueueChange(NamedTuple):
    """A job's queue after and before a change; both are equal if nothing changed."""

    job_id: int
    queue: str
    before: str

    @property
    def changed(self) -> bool:
        """Whether this call changed the queue."""
        return self.queue != self.before


class Effect(NamedTuple):
    """A side effect of a node: recorded by this call, or recorded before with this result."""

    recorded: bool
    result_json: str | None


class Enqueued(NamedTuple):
    """An existing job: created by this call, or by an earlier one with the same key."""

    job_id: int
    made: bool


Outcome = Moved | Refused
