"""Bodies and answers of the routes for workers that look for work."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from tenure.http.models import jobs
from tenure.http.models.fields import (
    LONGEST_WAIT_S,
    MOST,
    PROOF,
    TAKEN_AT,
    TOKEN,
    UNTIL,
    Body,
    ClaimKey,
    Claims,
    Contract,
    Count,
    JobId,
    LeaseToken,
    Milliseconds,
    Number,
    Queue,
    Seconds,
    Type,
    TypeName,
    WhoHolds,
    like,
    shown,
    up_to,
)

_TYPE = {"type": "send", "contract": "standard", "max_attempts": 3}
_WON = {
    **PROOF, "lease_expires_at": UNTIL, "lease_seconds": 30.0, "execution_key": "42:1",
    "job": {
        **jobs.JOB, "state": "running", "role": "active", "updated_at": TAKEN_AT, "finished_at": None,
        "lease_owner": "w1", "lease_expires_at": UNTIL, "result": None,
    },
}  # fmt: skip


class Claim(Body):
    """What a worker asks for; with a claim key, the same question again gets the same answer."""

    model_config = like(
        contract="standard", queues=["mail"], worker_id="w1", limit=10, wait_seconds=20, claim_key=TOKEN
    )
    worker_id: WhoHolds
    contract: Contract = Field(default="standard", description="The contract whose jobs to take; default standard.")
    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)] = Field(
        default=["default"], description='The queues to take from, in this order; default ["default"].'
    )
    types: Annotated[list[Type], Field(min_length=1, max_length=10_000)] | None = Field(
        default=None, description="The only types to take; default any."
    )
    limit: Annotated[StrictInt, Field(ge=1, le=MOST)] = Field(default=1, description="How many at the most; default 1.")
    claim_key: ClaimKey | None = Field(
        default=None, description="A new UUID of version 4, which becomes the lease token; default one is made."
    )
    wait_seconds: Annotated[Number, up_to(LONGEST_WAIT_S)] = Field(
        default=0, description="Seconds to wait while there is nothing to take; default 0."
    )
    record: StrictBool = Field(
        default=True, description="Whether each job comes with the row of its contract's view; default true."
    )


class WonClaim(BaseModel):
    """A job that was won, and what its holder shows from now on."""

    model_config = shown(**_WON)
    job: jobs.Job = Field(description="The job.")
    claims: Claims
    lease_token: LeaseToken
    lease_expires_at: datetime = Field(description="When the lease ends, by the database's clock.")
    lease_seconds: float | None = Field(
        description="Seconds by the database's clock from the claim to the lease's end."
    )
    execution_key: str = Field(description="Names this execution for good; to guard effects outside with.")


class ClaimsWon(BaseModel):
    """What was won."""

    model_config = shown(claims=[_WON])
    claims: list[WonClaim] = Field(description="The jobs that were won; none where there was nothing to take in time.")


class Due(Body):
    """Which contracts have something to claim?"""

    model_config = like(contracts=["standard"], queues=["mail"])
    contracts: Annotated[list[Contract], Field(max_length=100)] = Field(description="The contracts to look at.")
    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)] = Field(description="The queues to look at.")


class DueContracts(BaseModel):
    """Contracts that have something to claim."""

    model_config = shown(contracts=["standard"])
    contracts: list[str] = Field(description="Those that have something to claim now; a hint.")


class Strangers(Due):
    """Which due jobs are of types that this worker does not know?"""

    model_config = like(contracts=["standard"], queues=["mail"], known=["send"], worker_id="w1")
    known: Annotated[list[Type], Field(max_length=10_000)] = Field(description="The types that this worker knows.")
    worker_id: WhoHolds


class Stranger(BaseModel):
    """A due job of a type that the worker does not know."""

    model_config = shown(id="43", type="sned")
    id: JobId
    type: TypeName


class StrangersFound(BaseModel):
    """Jobs that wait for a worker that knows them."""

    model_config = shown(jobs=[{"id": "43", "type": "sned"}])
    jobs: list[Stranger] = Field(description="The jobs that nobody here knows.")


class Wakeup(BaseModel):
    """There may be jobs of this contract and queue; under `#` something was done to the job that `queue` names."""

    model_config = shown(contract="standard", queue="mail")
    contract: str = Field(description="The contract; empty: any; #: it is about one job.")
    queue: str = Field(description="The queue, empty for any; under the contract # the job's id.")


class WakeupsHeard(BaseModel):
    """What was heard since the cursor."""

    model_config = shown(wakeups=[{"contract": "standard", "queue": "mail"}], cursor="5c0f.17")
    wakeups: list[Wakeup] = Field(description="Where there may be jobs, and which jobs something was done to.")
    cursor: str = Field(description="Where to go on hearing: give it as `after` next time.")


class JobType(Body):
    """One task's numbers; what is absent is the contract's."""

    model_config = like(**_TYPE)
    type: Type = Field(description="The type whose jobs want this.")
    contract: Contract = Field(description="The contract under which they want it.")
    max_attempts: Count | None = Field(default=None, description="The limit in the contract's own sense.")
    lease_ttl_sec: Seconds | None = Field(default=None, description="Seconds that a claim lasts.")
    heartbeat_sec: Seconds | None = Field(default=None, description="Seconds from one heartbeat to the next.")
    sla_sec: Seconds | None = Field(default=None, description="Seconds that the work may take; default unbounded.")
    renews: StrictBool = Field(default=True, description="Whether heartbeats renew the lease; default true.")
    backoff_base_ms: Milliseconds | None = Field(default=None, description="Milliseconds before the first retry.")
    backoff_cap_ms: Milliseconds | None = Field(default=None, description="Milliseconds before a retry at the most.")
    on_exhausted: Annotated[StrictStr, Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Where a job ends whose budget is spent, where the contract gives the choice."
    )


class DeclareTypes(Body):
    """What an application's tasks want otherwise than their contracts."""

    model_config = like(types=[_TYPE])
    types: Annotated[list[JobType], Field(max_length=MOST)] = Field(description="One entry for each type and contract.")


class Declared(BaseModel):
    """How many types were declared."""

    model_config = shown(declared=1)
    declared: int = Field(description="How many there were.")
