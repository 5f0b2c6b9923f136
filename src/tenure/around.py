"""What stands around a job, for whoever asks why it is (not) running: its neighbours, its queue, what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

#: Neighbours are counted up to here: nobody needs to know more, and a full queue must not make looking slow.
MANY: Final = 1000


@dataclass(frozen=True, slots=True)
class SetAside:
    """A job's dead letter, in short."""

    id: int
    status: str
    reason_code: str
    requeued_as: int | None = None
    discard_asked_by: str | None = None
    discard_approved_by: str | None = None
    discard_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """A queue that nobody claims from: since when, by whom, and why."""

    at: datetime
    by: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around a job; None is what nobody looked for."""

    last_heartbeat_at: datetime | None = None
    #: How often this job's holder beats, where its type wants it otherwise than the contract.
    heartbeat_ms: int | None = None
    #: Its failure is decided, and its holder undoes what was done.
    compensating: bool = False
    #: How many due jobs a claim would take first, and how many of its queue are held; more than MANY is not counted.
    ahead: int | None = None
    held: int | None = None
    letter: SetAside | None = None
    #: The job as which it was run again.
    again: int | None = None
    #: Its queue is paused.
    paused: Paused | None = None
