"""What clients send: the bodies of requests, with their limits and an example of each.

What is not named here is refused, so that a misspelt field is not silently ignored. Texts, times and numbers that have
a meaning are checked once more where they are used (`intake.py`), with the same words as everywhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from tenure.errors import BadInput
from tenure.intake import LENGTHS, MAX_CLAIMS, MAX_DELAY_MS
from tenure.job import Failure, NewJob

#: So many jobs, finishes or beats go in one request.
MOST = 1_000
#: So long a request may wait for something to happen.
LONGEST_WAIT_S = 60.0

_DIGITS = r"^[0-9]{1,19}$"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def _text(kind: str) -> Any:
    return Field(min_length=1, max_length=LENGTHS[kind])


Id = Annotated[StrictStr, Field(pattern=_DIGITS, examples=["42"])]
Token = Annotated[
    StrictStr,
    Field(pattern=_UUID, json_schema_extra={"format": "uuid"}, examples=["0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"]),
]
Queue = Annotated[StrictStr, _text("queue")]
Type = Annotated[StrictStr, _text("type")]
Contract = Annotated[StrictStr, Field(min_length=1, max_length=100)]
Key = Annotated[StrictStr, _text("key")]
Reason = Annotated[StrictStr, _text("reason")]
Person = Annotated[StrictStr, _text("person")]
Worker = Annotated[StrictStr, _text("worker")]
Number = StrictInt | StrictFloat
Seconds = Annotated[Number, Field(ge=0, le=MAX_DELAY_MS / 1_000, allow_inf_nan=False)]


class Body(BaseModel):
    """A body: no more fields than these."""

    model_config = ConfigDict(extra="forbid")


class Enqueue(Body):
    """A job to be made."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"type": "send", "payload": {"to": "a@b.c"}, "idempotency_key": "welcome:42"}]},
    )
    type: Type
    payload: Any = Field(default_factory=dict)
    contract: Contract = "standard"
    queue: Queue = "default"
    tenant_id: Annotated[StrictStr, _text("tenant_id")] | None = None
    priority: Annotated[StrictInt, Field(ge=0, le=9)] = 5
    run_at: Annotated[StrictStr, Field(json_schema_extra={"format": "date-time"})] | None = None
    delay_seconds: Seconds | None = None
    max_attempts: Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS)] | None = None
    idempotency_key: Key | None = None
    correlation_id: Annotated[StrictStr, _text("correlation_id")] | None = None
    trace_id: Annotated[StrictStr, _text("trace_id")] | None = None

    def job(self, tenant: str | None, key: str | None) -> NewJob:
        """The job that is asked for."""
        return NewJob(
            self.type, self.payload, contract=self.contract, queue=self.queue, tenant_id=tenant or "default",
            priority=self.priority, max_attempts=self.max_attempts, run_at=_moment("run_at", self.run_at),
            delay_ms=_ms(self.delay_seconds), key=key, trace_id=self.trace_id, correlation_id=self.correlation_id,
        )  # fmt: skip


class EnqueueMany(Body):
    """Jobs to be made."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"jobs": [{"type": "send", "payload": {"to": "a@b.c"}}]}]},
    )
    jobs: Annotated[list[Enqueue], Field(min_length=1, max_length=MOST)]


class Claim(Body):
    """What a worker asks for; with a claim key, the same question again gets the same answer."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"contract": "standard", "queues": ["mail"], "worker_id": "w1", "limit": 10, "wait_seconds": 20}
            ]
        },
    )
    worker_id: Worker
    contract: Contract = "standard"
    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)] = ["default"]
    types: Annotated[list[Type], Field(min_length=1, max_length=10_000)] | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=MOST)] = 1
    claim_key: Token | None = None
    wait_seconds: Annotated[Number, Field(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0
    record: StrictBool = True


class Due(Body):
    """Which contracts have something to claim?"""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"contracts": ["standard"], "queues": ["mail"]}]}
    )
    contracts: Annotated[list[Contract], Field(max_length=100)]
    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)]


class Strangers(Due):
    """Which due jobs are of types that this worker does not know?"""

    known: Annotated[list[Type], Field(max_length=10_000)]
    worker_id: Worker


class Types(Body):
    """What an application's tasks want otherwise than their contracts."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"types": [{"type": "send", "contract": "standard", "max_attempts": 3}]}]},
    )
    types: Annotated[list[JobTypeBody], Field(max_length=MOST)]


class JobTypeBody(Body):
    """One task's numbers; what is absent is the contract's."""

    type: Type
    contract: Contract
    max_attempts: Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS)] | None = None
    lease_ttl_sec: Seconds | None = None
    heartbeat_sec: Seconds | None = None
    sla_sec: Seconds | None = None
    renews: StrictBool = True
    backoff_base_ms: Annotated[StrictInt, Field(ge=0, le=MAX_DELAY_MS)] | None = None
    backoff_cap_ms: Annotated[StrictInt, Field(ge=0, le=MAX_DELAY_MS)] | None = None
    on_exhausted: Annotated[StrictStr, Field(min_length=1, max_length=100)] | None = None


class Proof(Body):
    """What a holder shows: how often the job was claimed, and the lease's token."""

    claims: Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS, examples=[1])]
    lease_token: Token


class Keyed(Proof):
    """A holder's word that can be repeated safely."""

    idempotency_key: Key | None = None


class Value(Proof):
    """Progress or a checkpoint."""

    value: Any


class Effect(Proof):
    """A side effect that a node has had."""

    node: Annotated[StrictStr, _text("node")]
    result: Any = None
    compensable: StrictBool = False


class Undone(Proof):
    """A node whose effect is undone."""

    node: Annotated[StrictStr, _text("node")]


class Succeed(Keyed):
    """The handler returned this."""

    result: Any = None


class Error(Body):
    """What went wrong: facts, no decision."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"type": "TimeoutError", "message": "the mail server did not answer"}]},
    )
    message: Annotated[StrictStr, Field(max_length=100_000)] = "failed"
    type: Annotated[StrictStr, Field(min_length=1, max_length=200)] = "Exception"
    code: Annotated[StrictStr, Field(max_length=200)] | None = None
    stack: Annotated[StrictStr, Field(max_length=1_000_000)] | None = None
    stage: Annotated[StrictStr, Field(max_length=200)] | None = None
    retryable: StrictBool | None = None

    def failure(self) -> Failure:
        """The failure that this is."""
        return Failure(self.message, self.type, self.code, self.stack, self.stage, self.retryable)


class Fail(Keyed):
    """The handler failed."""

    error: Error = Field(default_factory=Error)


class Snooze(Keyed):
    """The handler wants to go on later."""

    seconds: Seconds = 0


class HandBack(Snooze):
    """The job comes back unfinished."""

    reason: Reason | None = None


class Cancelled(Keyed):
    """The holder has stopped, as it was asked to or by itself."""

    reason: Reason | None = None


class Finish(Keyed):
    """One of many last words; only the verb's own fields may be set."""

    id: Id
    verb: Literal["succeed", "fail", "snooze", "hand-back", "cancelled"]
    result: Any = None
    error: Error | None = None
    seconds: Seconds | None = None
    reason: Reason | None = None


class Finishes(Body):
    """Last words of many jobs."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "finishes": [
                        {
                            "id": "42",
                            "claims": 1,
                            "lease_token": "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c",
                            "verb": "succeed",
                            "result": {"sent": True},
                        }
                    ]
                }
            ]
        },
    )
    finishes: Annotated[list[Finish], Field(min_length=1, max_length=MOST)]


class Start(Keyed):
    """One of many handlers that begin."""

    id: Id


class Starts(Body):
    """Handlers of many jobs that begin."""

    starts: Annotated[list[Start], Field(min_length=1, max_length=MOST)]


class Beat(Proof):
    """One of many heartbeats."""

    id: Id


class Heartbeats(Body):
    """Heartbeats of many jobs."""

    heartbeats: Annotated[list[Beat], Field(min_length=1, max_length=MOST)]


class Cancel(Body):
    """An operator's wish that a job end."""

    mode: Literal["soft", "hard"] = "soft"
    reason: Reason | None = None
    idempotency_key: Key | None = None


class Transition(Body):
    """An operator's wish that a job be in this state."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"to": "cancelled", "reason": "a test"}]})
    to: Annotated[StrictStr, Field(min_length=1, max_length=100)]
    reason: Reason | None = None
    idempotency_key: Key | None = None


class DeadLetter(Body):
    """An operator's wish that a job be set aside."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"reason_code": "policy"}]})
    reason_code: Annotated[StrictStr, _text("reason_code")]
    stage: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    message: Annotated[StrictStr, Field(max_length=8_000)] = ""
    idempotency_key: Key | None = None


class Again(Body):
    """An operator's wish that a finished job run again."""

    idempotency_key: Key | None = None


class Discard(Body):
    """A person's wish that a dead letter be thrown away; the person is the key's, where that names one."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"reason": "a duplicate of 41"}]})
    reason: Reason
    person: Person | None = None
    idempotency_key: Key | None = None


class Approve(Body):
    """Another person's agreement."""

    person: Person | None = None
    idempotency_key: Key | None = None


class TaskClaim(Body):
    """Document 001: a worker was told of a task, and asks for it."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"task_id": "42", "worker_id": "worker-7"}]}
    )
    task_id: Annotated[StrictStr, Field(min_length=1, max_length=100)]
    worker_id: Worker


class TaskHeartbeat(Body):
    """Document 001: the work on a task goes on."""

    task_id: Id
    attempt: Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS)]
    lease_token: Token


class TaskComplete(TaskHeartbeat):
    """Document 001: the attempt has ended so; outputs and events are stored with it, or not at all."""

    status: Literal["Completed", "Failed", "Canceled"]
    outputs: Any = None
    events: Annotated[list[Any], Field(max_length=MOST)] | None = None
    error_message: Annotated[StrictStr, Field(max_length=8_000)] | None = None


def _moment(kind: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{kind} must be a time like 2026-11-15T12:00:00Z, not {text[:100]!r}") from None
    if found.tzinfo is None:
        raise BadInput(f"{kind} must have a time zone, like 2026-11-15T12:00:00Z, and {text[:100]!r} has none")
    return found


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


Types.model_rebuild()
