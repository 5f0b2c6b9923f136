"""Requests and responses of the routes for workers that look for jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from tenure.http.models import fields, jobs
from tenure.http.models.fields import MAX_BATCH, MAX_WAIT_S, RequestBody, WorkerId, described, optional

_Application = Annotated[StrictStr, fields.text("application")] | None
_Host = Annotated[StrictStr, fields.text("host")] | None


class JobType(RequestBody):
    """The settings of one job type. The contract gives the settings that are absent."""

    type: fields.Type = described("The job type.")
    contract: fields.Contract = described("The contract of these jobs.")
    max_attempts: fields.Count | None = optional("The limit of attempts, as the contract counts them.", examples=[3])
    lease_ttl_sec: fields.Seconds | None = optional("Seconds that a lease lasts.")
    heartbeat_sec: fields.Seconds | None = optional("Seconds between two heartbeats.")
    sla_sec: fields.Seconds | None = optional("Seconds that a run may take; default unbounded.")
    renews: StrictBool = described("Whether heartbeats renew the lease; default true.", default=True)
    backoff_base_ms: fields.Milliseconds | None = optional("Milliseconds before the first retry.")
    backoff_cap_ms: fields.Milliseconds | None = optional("The longest wait before a retry, in milliseconds.")
    on_exhausted: Annotated[StrictStr, Field(min_length=1, max_length=100)] | None = optional(
        "Where a job without attempts left ends, if the contract gives a choice."
    )


class WorkerInfo(RequestBody):
    """What a worker reports about itself, for the list of live workers."""

    application: _Application = optional("The application that it runs.", examples=["shop"])
    version: Annotated[StrictStr, fields.text("version")] | None = optional(
        "The version of its software.", examples=["0.1.0"]
    )
    host: _Host = optional("The machine that it runs on.", examples=["box-7"])
    pid: fields.SmallCount | None = optional("Its process id.", examples=[4711])
    slots: fields.SmallCount | None = optional("How many jobs it runs at the same time.", examples=[50])


class Claim(RequestBody):
    """A worker's claim. The same claim key again gets the same jobs."""

    worker_id: WorkerId
    contract: fields.Contract = described("The contract of the jobs; default standard.", default="standard")
    queues: fields.Queues = described(
        'The queues to claim from, in this order; default ["default"].', default=["default"]
    )
    types: Annotated[fields.Types, Field(min_length=1)] | None = optional("Claim only these types; default any.")
    options: Annotated[list[JobType], Field(max_length=MAX_BATCH)] | None = optional(
        "Type settings of the worker's code, used for its claims; default the stored ones."
    )
    worker: WorkerInfo | None = optional("What the worker reports about itself; default none.")
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_BATCH), fields.AS_WHOLE] = described(
        "The largest number of jobs; default 1.", default=1, examples=[10]
    )
    claim_key: fields.ClaimKey | None = optional(
        "A new UUID of version 4, which becomes the lease token; default one is made."
    )
    wait_seconds: Annotated[fields.Number, fields.up_to(MAX_WAIT_S)] = described(
        "Seconds to wait while there is no job; default 0.", default=0, examples=[20]
    )
    record: StrictBool = described(
        "Whether each job comes with the row of its contract's view; default true.", default=True
    )


class ClaimedJob(BaseModel):
    """A claimed job, and the proof that its holder sends with every call."""

    job: jobs.Job = described("The job.")
    claims: fields.Claims
    lease_token: fields.LeaseToken
    lease_expires_at: datetime = described("When the lease ends, by the database's clock.")
    lease_seconds: float | None = described("Seconds from the claim to the lease's end.", examples=[30.0])
    execution_key: str = described(
        "Names this execution for good; use it to make outside effects idempotent.", examples=["42:1"]
    )


class ClaimedJobs(BaseModel):
    """The claimed jobs."""

    claims: list[ClaimedJob] = described("The claimed jobs; empty when no job was due in time.")


class WorkerHeartbeat(RequestBody):
    """A live worker: what it is, and everything that it claims."""

    worker_id: WorkerId
    queues: fields.Queues = described('The queues that it claims from; default ["default"].', default=["default"])
    contracts: fields.Contracts = described(
        'The contracts whose jobs it claims; default ["standard"].', default=["standard"]
    )
    types: fields.Types | None = optional("The only types that it claims; default any.")
    options: Annotated[list[JobType], Field(max_length=10_000)] | None = optional(
        "The type settings of its code; default none."
    )
    worker: WorkerInfo | None = optional("What it reports about itself; default none.")
    busy: fields.SmallCount | None = optional("How many jobs it runs now; default unknown.")
    schedules: Annotated[dict[fields.ScheduleName, fields.Fingerprint], Field(max_length=MAX_BATCH)] = described(
        "The schedules of its code: name and fingerprint, as the declaration answered; default none.", default={}
    )


class WorkerExit(RequestBody):
    """A worker that stops; host and process id as it reported them before."""

    worker_id: WorkerId
    host: _Host = optional("The machine that it ran on; default unknown.", examples=["box-7"])
    pid: fields.SmallCount | None = optional("Its process id; default unknown.", examples=[4711])


class WorkerName(BaseModel):
    """The worker that the call was about."""

    worker_id: str = described("The worker's name.", examples=["w1"])


class Due(RequestBody):
    """A question: which contracts have jobs to claim?"""

    contracts: fields.Contracts = described("The contracts to look at.")
    queues: fields.Queues = described("The queues to look at.")
    types: Annotated[fields.Types, Field(min_length=1)] | None = optional("Look only for these types; default any.")


class DueContracts(BaseModel):
    """Contracts that have jobs to claim."""

    contracts: list[str] = described("The contracts with due jobs now; a hint.", examples=[["standard"]])


class WakeupsAfter(BaseModel):
    """The query of the wake-ups since a cursor."""

    after: str | None = optional("The cursor of the last answer.", max_length=64)
    wait_seconds: float = described(
        "Seconds to wait for one; default 0.", default=0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False
    )


class Wakeup(BaseModel):
    """There may be jobs of this contract and queue. With the contract `#`, the job that `queue` names has changed."""

    contract: str = described("The contract; empty: any; #: it is about one job.", examples=["standard"])
    queue: str = described("The queue; empty: any; with the contract #: the job's id.", examples=["mail"])


class Wakeups(BaseModel):
    """The wake-ups since the cursor."""

    wakeups: list[Wakeup] = described("Where there may be jobs, and which jobs have changed.")
    cursor: str = described("Where to continue: send it as `after` next time.", examples=["5c0f.17"])


class DeclareTypes(RequestBody):
    """The settings of an application's job types that differ from their contracts."""

    types: Annotated[list[JobType], Field(max_length=MAX_BATCH)] = described("One entry for each type and contract.")
    application: _Application = optional("The application of these settings; those of another live one are left alone.")
    declared_by: Annotated[StrictStr, fields.text("worker")] | None = optional(
        "The worker or process that declares them."
    )


class TypesDeclared(BaseModel):
    """How many types were declared."""

    declared: int = described("The number of types.")
