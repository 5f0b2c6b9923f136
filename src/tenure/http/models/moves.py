"""What became of a word about a job: it moved, something was noted, it was taken, or there was nothing to do."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tenure.http.models.fields import (
    DONE_AT,
    TAKEN_AT,
    TOKEN,
    UNTIL,
    Claims,
    Counter,
    InRole,
    JobId,
    LeaseEnd,
    LeaseToken,
    State,
    shown,
)

MOVE: dict[str, Any] = {
    "id": "42", "moved": True, "trigger": "succeed", "from_state": "running", "state": "succeeded", "role": "done",
    "claims": 1, "counter": 1, "at": DONE_AT, "due_at": None, "delay_ms": None, "will_retry": False, "compensate": [],
}  # fmt: skip
NOTE: dict[str, Any] = {
    "id": "42", "moved": False, "lease_expires_at": UNTIL, "cancel_requested": False, "renewed": True,
}  # fmt: skip
TAKEN: dict[str, Any] = {
    "id": "42", "moved": True, "trigger": "claim", "state": "running", "role": "active", "claims": 1, "counter": 1,
    "at": TAKEN_AT, "lease_token": TOKEN, "lease_expires_at": UNTIL,
}  # fmt: skip
_UNDO_FIRST: dict[str, Any] = {
    **MOVE, "moved": False, "trigger": "fail", "state": "running", "role": "active", "compensate": ["charge"],
}  # fmt: skip
UNMOVED: dict[str, Any] = {"id": "42", "moved": False}


class Move(BaseModel):
    """The job moved; or, where `compensate` names nodes, it will as soon as their effects are undone."""

    model_config = ConfigDict(json_schema_extra={"examples": [MOVE, _UNDO_FIRST]})
    id: JobId
    moved: bool = Field(description="Whether the job moved; false while there are effects to be undone first.")
    trigger: str = Field(description="What moved it: the word that was said, or what the contract made of it.")
    from_state: str = Field(description="The state that it was in before.")
    state: State
    role: InRole
    claims: Claims
    counter: Counter
    at: datetime = Field(description="When it moved, by the database's clock.")
    due_at: datetime | None = Field(description="When it may be claimed again; null where it will not be.")
    delay_ms: int | None = Field(description="Milliseconds until it may be claimed again; null where it will not be.")
    will_retry: bool = Field(description="Whether the job will run again without anybody asking.")
    compensate: list[str] = Field(description="Nodes whose effects are to be undone first, in this order.")


class Note(BaseModel):
    """Something was written down, and the job stays where it is."""

    model_config = shown(**NOTE)
    id: JobId
    moved: Literal[False] = Field(description="The job did not move.")
    lease_expires_at: LeaseEnd
    cancel_requested: bool = Field(description="Whether the holder is asked to stop: then say `cancelled`.")
    renewed: bool = Field(description="Whether the lease ends later than before.")


class Taken(BaseModel):
    """The job was taken: by an operator, who moved it to a state in which somebody holds it."""

    model_config = shown(**TAKEN)
    id: JobId
    moved: Literal[True] = Field(description="The job moved.")
    trigger: Literal["claim"] = Field(description="What moved it.")
    state: State
    role: InRole
    claims: Claims
    counter: Counter
    at: datetime = Field(description="When it was taken, by the database's clock.")
    lease_token: LeaseToken
    lease_expires_at: LeaseEnd


class Unmoved(BaseModel):
    """There was nothing to do: the job's contract has no such step."""

    # Closed: a move and a note have these two fields as well, and an answer shall be one of them alone.
    model_config = ConfigDict(extra="forbid", **shown(**UNMOVED))
    id: JobId
    moved: Literal[False] = Field(description="The job did not move.")
