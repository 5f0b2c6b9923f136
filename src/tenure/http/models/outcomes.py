"""What a call did to a job: it moved, something was noted, it was claimed, or nothing changed."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tenure.http.models import fields
from tenure.http.models.fields import described


class Move(BaseModel):
    """The job moved. When `compensate` names nodes, it moves after their effects are undone."""

    id: fields.JobId
    moved: bool = described("Whether the job moved; false while effects must be undone first.", examples=[True])
    trigger: str = described(
        "What moved the job: the call's verb, or what its contract made of it.", examples=["succeed"]
    )
    from_state: str = described("The state before.", examples=["running"])
    state: fields.State = Field(examples=["succeeded"])
    role: fields.StateRole = Field(examples=["done"])
    claims: fields.Claims
    counter: fields.Counter
    at: datetime = described("When it moved, by the database's clock.")
    due_at: datetime | None = described("When it may be claimed again; null: it will not be.")
    delay_ms: int | None = described("Milliseconds until it may be claimed again; null: it will not be.")
    will_retry: bool = described("Whether the job runs again by itself.")
    compensate: list[str] = described("Nodes whose effects must be undone first, in this order.", examples=[[]])


class Note(BaseModel):
    """Something was stored, and the job did not move."""

    id: fields.JobId
    moved: Literal[False] = described("The job did not move.")
    lease_expires_at: fields.LeaseEnd
    cancel_requested: bool = described("Whether the holder must stop: then call `cancelled`.")
    renewed: bool = described("Whether the lease ends later than before.", examples=[True])


class Taken(BaseModel):
    """An operator moved the job to a state with a holder, and holds it now."""

    id: fields.JobId
    moved: Literal[True] = described("The job moved.")
    trigger: Literal["claim"] = described("What moved the job.")
    state: fields.State
    role: fields.StateRole
    claims: fields.Claims
    counter: fields.Counter
    at: datetime = described("When it was claimed, by the database's clock.")
    lease_token: fields.LeaseToken
    lease_expires_at: fields.LeaseEnd


class Unmoved(BaseModel):
    """Nothing to do: the job's contract has no such step."""

    # Closed: Move and Note have these two fields too, and a response must match exactly one of the three.
    model_config = ConfigDict(extra="forbid")
    id: fields.JobId
    moved: Literal[False] = described("The job did not move.")
