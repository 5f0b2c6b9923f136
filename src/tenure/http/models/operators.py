"""Bodies and answers of the routes for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, StrictStr

from tenure.http.models.fields import (
    MADE_AT,
    TAKEN_AT,
    UNTIL,
    Body,
    Id,
    JobId,
    LeaseEnd,
    RepeatKey,
    Why,
    either,
    like,
    shown,
    text,
)
from tenure.http.models.fields import Queue as QueueOf
from tenure.http.models.moves import MOVE, NOTE, TAKEN, Move, Note, Taken

_CANCELLED = {**MOVE, "trigger": "cancel", "from_state": "queued", "state": "cancelled"}
_CONTRACT: dict[str, Any] = {
    "name": "standard", "version": "1", "title": "Tenure's own lifecycle",
    "declaration": {"states": {"queued": ["ready"]}},
}  # fmt: skip
_PAUSED = {"at": MADE_AT, "by": "ann", "reason": "the mail server is down"}
_QUEUE: dict[str, Any] = {
    "name": "mail", "ready": 17, "delayed": 3, "waiting": 0, "held": 4, "oldest": MADE_AT, "at_least": [],
    "paused": _PAUSED,
}  # fmt: skip
_WORKER: dict[str, Any] = {
    "worker_id": "w1", "held": 4, "since": TAKEN_AT, "last_heartbeat_at": TAKEN_AT, "lease_expires_at": UNTIL,
}  # fmt: skip


class Cancel(Body):
    """An operator's wish that a job end."""

    model_config = like(mode="soft", reason="the customer has left")
    mode: Literal["soft", "hard"] = Field(
        default="soft", description="Whether a holder is asked to stop (soft, the default) or has its lease revoked."
    )
    reason: Why = None
    idempotency_key: RepeatKey = None


class CancelAnswer(RootModel[Move | Note]):
    """The job is cancelled; or, as a note, its holder is asked to stop."""

    model_config = either(_CANCELLED, {**NOTE, "cancel_requested": True, "renewed": False})


class Transition(Body):
    """An operator's wish that a job be in this state."""

    model_config = like(to="cancelled", reason="a test")
    to: Annotated[StrictStr, text("state")] = Field(description="The state, in the contract's own words.")
    reason: Why = None
    idempotency_key: RepeatKey = None


class TransitionAnswer(RootModel[Move | Taken]):
    """The job is in that state; taken, where it is one in which somebody holds it."""

    model_config = either(_CANCELLED, TAKEN)


class DeadLetter(Body):
    """An operator's wish that a job be set aside."""

    model_config = like(reason_code="policy")
    reason_code: Annotated[StrictStr, text("reason_code")] = Field(
        description="Why, as a code; some contracts know only certain ones."
    )
    stage: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="At which stage of the work; default nothing."
    )
    message: Annotated[StrictStr, Field(max_length=8_000)] = Field(
        default="", description="Why, for people; default nothing."
    )
    idempotency_key: RepeatKey = None


class Requeue(Body):
    """An operator's wish that a finished job, or a dead letter's, run again."""

    model_config = like(idempotency_key="again:42")
    idempotency_key: RepeatKey = None


class JobRequeued(BaseModel):
    """A finished job, and the new one that runs it again."""

    model_config = shown(id="42", requeued_as="43")
    id: JobId
    requeued_as: Id = Field(description="The id of the new job.")


class Contract(BaseModel):
    """A lifecycle, as it is declared."""

    model_config = shown(**_CONTRACT)
    name: str = Field(description="Its name.")
    version: str = Field(description="Its version.")
    title: str = Field(description="What it is, in a line.")
    declaration: dict[str, Any] = Field(description="All of it, with this dispatcher's numbers.")


class ContractList(BaseModel):
    """The registered contracts."""

    model_config = shown(contracts=[_CONTRACT])
    contracts: list[Contract] = Field(description="The contracts, each in its newest version.")


class PausedQueue(BaseModel):
    """A queue that nobody claims from: since when, by whom, and why."""

    model_config = shown(**_PAUSED)
    at: datetime = Field(description="Since when.")
    by: str = Field(description="Who paused it.")
    reason: str | None = Field(description="Why; null where nobody said.")


class Queue(BaseModel):
    """A queue as it is now, over all contracts."""

    model_config = shown(**_QUEUE)
    name: str = Field(description="Its name.")
    ready: int = Field(description="Jobs that are due, and will be claimed next.")
    delayed: int = Field(description="Jobs that are ready, but not due yet.")
    waiting: int = Field(description="Jobs that upkeep is to make ready.")
    held: int = Field(description="Jobs that somebody holds.")
    oldest: datetime | None = Field(description="Since when the oldest ready job is due; null: there is none.")
    at_least: list[str] = Field(description="Those of the counts that are lower bounds: there may be more.")
    paused: PausedQueue | None = Field(description="Since when nobody claims from it; null: it is open.")


class QueueList(BaseModel):
    """Queues that have live jobs or are paused."""

    model_config = shown(queues=[_QUEUE])
    queues: list[Queue] = Field(description="The queues, by name.")


class ResumeQueue(Body):
    """An operator's wish that a queue be claimed from again."""

    model_config = like(queue="mail")
    queue: Annotated[QueueOf, Field(description="The queue's name.")]


class PauseQueue(ResumeQueue):
    """An operator's wish that nobody claim from a queue."""

    model_config = like(queue="mail", reason="the mail server is down")
    reason: Why = None


class QueueChanged(BaseModel):
    """A queue that was paused or resumed."""

    model_config = shown(queue="mail", changed=True, paused=_PAUSED)
    queue: str = Field(description="The queue's name.")
    changed: bool = Field(description="Whether this call changed it.")
    paused: PausedQueue | None = Field(description="Since when nobody claims from it; null: it is open.")


class WorkerAtWork(BaseModel):
    """Who holds jobs now."""

    model_config = shown(**_WORKER)
    worker_id: str = Field(description="What the worker calls itself.")
    held: int = Field(description="How many jobs it holds.")
    since: datetime | None = Field(description="Since when it holds the oldest of them.")
    last_heartbeat_at: datetime | None = Field(description="When it was last heard of; null: not since its claims.")
    lease_expires_at: LeaseEnd


class WorkerList(BaseModel):
    """Those who hold jobs now."""

    model_config = shown(workers=[_WORKER])
    workers: list[WorkerAtWork] = Field(description="The workers, by name.")
