"""What clients send: the bodies of requests, with their limits and an example of each.

What is not named here is refused, so that a misspelt field is not silently ignored. Texts, times and numbers that have
a meaning are checked once more where they are used (`intake.py`), with the same words as everywhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from tenure.errors import BadInput
from tenure.intake import LENGTHS, MAX_CLAIMS, MAX_DELAY_MS
from tenure.job import Failure, NewJob

#: So many jobs, finishes or beats go in one request.
MOST = 1_000
#: So long a request may wait for something to happen.
LONGEST_WAIT_S = 60.0

#: No body has so many fields.
_MOST_FIELDS = 40
_DIGITS = r"^[0-9]{1,19}$"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID4 = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"


_TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"
_SHOWN: dict[str, Any] = {"claims": 1, "lease_token": _TOKEN}
_WENT_WRONG = {"type": "TimeoutError", "message": "the mail server did not answer"}


def _like(**example: Any) -> ConfigDict:
    """No more fields than these, and an example of them."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


def _text(kind: str) -> Any:
    return Field(min_length=1, max_length=LENGTHS[kind])


def _up_to(most: float) -> Any:
    """A number from 0 on; of a union of two kinds of numbers, bounds must be put into JSON Schema's words here."""

    def bounds(schema: dict[str, Any]) -> None:
        for ours in ("ge", "le", "allow_inf_nan"):
            schema.pop(ours, None)
        schema.update(minimum=0, maximum=most)

    return Field(ge=0, le=most, allow_inf_nan=False, json_schema_extra=bounds)


Id = Annotated[StrictStr, Field(pattern=_DIGITS, examples=["42"])]
Token = Annotated[
    StrictStr,
    Field(pattern=_UUID, json_schema_extra={"format": "uuid"}, examples=[_TOKEN]),
]
#: Of the fourth kind, because it becomes the token of what it wins: nobody shall guess it.
ClaimKey = Annotated[
    StrictStr,
    Field(pattern=_UUID4, json_schema_extra={"format": "uuid"}, examples=[_TOKEN]),
]
Queue = Annotated[StrictStr, _text("queue")]
Type = Annotated[StrictStr, _text("type")]
Contract = Annotated[StrictStr, _text("contract")]
Key = Annotated[StrictStr, _text("key")]
Reason = Annotated[StrictStr, _text("reason")]
Person = Annotated[StrictStr, _text("person")]
Worker = Annotated[StrictStr, _text("worker")]
Number = StrictInt | StrictFloat
Seconds = Annotated[Number, _up_to(MAX_DELAY_MS / 1_000)]


class Body(BaseModel):
    """A body: no more fields than these."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        """Refuse a flood of unknown fields as one fault: a million of them, each described, would fill the memory."""
        if type(given) is dict and len(given) > _MOST_FIELDS:
            raise ValueError(f"{len(given)} fields are given, and there are {len(cls.model_fields)}")
        return given


class Enqueue(Body):
    """A job to be made."""

    model_config = _like(type="send", payload={"to": "a@b.c"}, idempotency_key="welcome:42")
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

    model_config = _like(jobs=[{"type": "send", "payload": {"to": "a@b.c"}}])
    jobs: Annotated[list[Enqueue], Field(min_length=1, max_length=MOST)]


class Claim(Body):
    """What a worker asks for; with a claim key, the same question again gets the same answer."""

    model_config = _like(contract="standard", queues=["mail"], worker_id="w1", limit=10, wait_seconds=20)
    worker_id: Worker
    contract: Contract = "standard"
    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)] = ["default"]
    types: Annotated[list[Type], Field(min_length=1, max_length=10_000)] | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=MOST)] = 1
    claim_key: ClaimKey | None = None
    wait_seconds: Annotated[Number, _up_to(LONGEST_WAIT_S)] = 0
    record: StrictBool = True


class Due(Body):
    """Which contracts have something to claim?"""

    model_config = _like(contracts=["standard"], queues=["mail"])
    contracts: Annotated[list[Contract], Field(max_length=100)]
    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)]


class Strangers(Due):
    """Which due jobs are of types that this worker does not know?"""

    model_config = _like(contracts=["standard"], queues=["mail"], known=["send"], worker_id="w1")
    known: Annotated[list[Type], Field(max_length=10_000)]
    worker_id: Worker


class Types(Body):
    """What an application's tasks want otherwise than their contracts."""

    model_config = _like(types=[{"type": "send", "contract": "standard", "max_attempts": 3}])
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

    model_config = _like(**_SHOWN)
    claims: Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS, examples=[1])]
    lease_token: Token


class Keyed(Proof):
    """A holder's word that can be repeated safely."""

    idempotency_key: Key | None = None


class Value(Proof):
    """Progress or a checkpoint."""

    model_config = _like(**_SHOWN, value={"page": 7})
    value: Any


class Effect(Proof):
    """A side effect that a node has had."""

    model_config = _like(**_SHOWN, node="charge", result={"receipt": "r-17"}, compensable=True)
    node: Annotated[StrictStr, _text("node")]
    result: Any = None
    compensable: StrictBool = False


class Undone(Proof):
    """A node whose effect is undone."""

    model_config = _like(**_SHOWN, node="charge")
    node: Annotated[StrictStr, _text("node")]


class Succeed(Keyed):
    """The handler returned this."""

    model_config = _like(**_SHOWN, result={"sent": True})
    result: Any = None


class Error(Body):
    """What went wrong: facts, no decision."""

    model_config = _like(**_WENT_WRONG)
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

    model_config = _like(**_SHOWN, error=_WENT_WRONG)
    error: Error = Field(default_factory=Error)


class Snooze(Keyed):
    """The handler wants to go on later."""

    model_config = _like(**_SHOWN, seconds=30)
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

    model_config = _like(finishes=[{**_SHOWN, "id": "42", "verb": "succeed", "result": {"sent": True}}])
    finishes: Annotated[list[Finish], Field(min_length=1, max_length=MOST)]


class Start(Keyed):
    """One of many handlers that begin."""

    id: Id


class Starts(Body):
    """Handlers of many jobs that begin."""

    model_config = _like(starts=[{**_SHOWN, "id": "42"}])
    starts: Annotated[list[Start], Field(min_length=1, max_length=MOST)]


class Beat(Proof):
    """One of many heartbeats."""

    id: Id


class Heartbeats(Body):
    """Heartbeats of many jobs."""

    model_config = _like(heartbeats=[{**_SHOWN, "id": "42"}])
    heartbeats: Annotated[list[Beat], Field(min_length=1, max_length=MOST)]


class Cancel(Body):
    """An operator's wish that a job end."""

    model_config = _like(mode="soft", reason="the customer has left")
    mode: Literal["soft", "hard"] = "soft"
    reason: Reason | None = None
    idempotency_key: Key | None = None


class Transition(Body):
    """An operator's wish that a job be in this state."""

    model_config = _like(to="cancelled", reason="a test")
    to: Annotated[StrictStr, _text("state")]
    reason: Reason | None = None
    idempotency_key: Key | None = None


class DeadLetter(Body):
    """An operator's wish that a job be set aside."""

    model_config = _like(reason_code="policy")
    reason_code: Annotated[StrictStr, _text("reason_code")]
    stage: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    message: Annotated[StrictStr, Field(max_length=8_000)] = ""
    idempotency_key: Key | None = None


class Again(Body):
    """An operator's wish that a finished job run again."""

    model_config = _like(idempotency_key="again:42")
    idempotency_key: Key | None = None


class Discard(Body):
    """A person's wish that a dead letter be thrown away; the person is the key's, where that names one."""

    model_config = _like(reason="a duplicate of 41")
    reason: Reason
    person: Person | None = None
    idempotency_key: Key | None = None


class Approve(Body):
    """Another person's agreement."""

    model_config = _like(idempotency_key="agreed:7")
    person: Person | None = None
    idempotency_key: Key | None = None


class TaskClaim(Body):
    """Document 001: a worker was told of a task, and asks for it."""

    model_config = _like(task_id="42", worker_id="worker-7")
    task_id: Annotated[StrictStr, Field(min_length=1, max_length=100)]
    worker_id: Worker


class TaskHeartbeat(Body):
    """Document 001: the work on a task goes on."""

    model_config = _like(task_id="42", attempt=1, lease_token=_TOKEN)
    task_id: Id
    attempt: Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS)]
    lease_token: Token


class TaskComplete(TaskHeartbeat):
    """Document 001: the attempt has ended so; outputs and events are stored with it, or not at all."""

    model_config = _like(task_id="42", attempt=1, lease_token=_TOKEN, status="Completed", outputs=[{"rows": 17}])
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
