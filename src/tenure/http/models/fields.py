"""Field types that request and response models share, with their limits and examples, and the base of all requests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from tenure.jobs.validation import LENGTHS, MAX_CLAIMS, MAX_DELAY_MS

#: The largest number of items in one request: jobs, claims, finishes, heartbeats.
MAX_ITEMS = 1_000
#: The longest time that a request may wait for jobs or wake-ups, in seconds.
MAX_WAIT_S = 60

#: More fields than any request has. A request with more is refused before its fields are checked.
_MAX_FIELDS = 40
DIGITS = r"^[0-9]{1,19}$"
#: The cursor of a job search: it continues among the live or among the finished jobs.
JOB_CURSOR = r"^(live|finished)-[0-9]{1,19}$"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID4 = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
#: Error texts describe these patterns in words.
PATTERN_MEANINGS = {
    DIGITS: "a text of 1 to 19 digits", JOB_CURSOR: "like live-41 or finished-41", _UUID: "a UUID",
    _UUID4: "a UUID of version 4",
}  # fmt: skip
_TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"


def text(name: str, **options: Any) -> Any:
    """A text with the length limit of this name."""
    return Field(min_length=1, max_length=LENGTHS[name], **options)


def described(description: str, **options: Any) -> Any:
    """A field with its description."""
    return Field(description=description, **options)


def optional(description: str, **options: Any) -> Any:
    """A field that may be left out or null."""
    return Field(default=None, description=description, **options)


def up_to(limit: float) -> Any:
    """A number from 0 to the limit. A union of two number types needs its bounds rewritten for JSON Schema."""

    def bounds(schema: dict[str, Any]) -> None:
        for name in ("ge", "le", "allow_inf_nan", "anyOf"):
            schema.pop(name, None)
        schema.update(type="number", minimum=0, maximum=int(limit))

    return Field(ge=0, le=limit, allow_inf_nan=False, json_schema_extra=bounds)


def _whole_float_to_int(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


#: The last annotation of a whole number: JSON has one number type, so 1.0 is accepted for 1.
AS_WHOLE = BeforeValidator(_whole_float_to_int)

# Types of query parameters.
Limit = Annotated[int, described("The largest number of items.", ge=1, le=1_000)]
Cursor = Annotated[str | None, described("Where an earlier page ended: its `next`.", pattern=DIGITS)]

# Types of request fields.
Id = Annotated[StrictStr, Field(pattern=DIGITS, examples=["42"])]
Token = Annotated[StrictStr, Field(pattern=_UUID, json_schema_extra={"format": "uuid"}, examples=[_TOKEN])]
Uuid = Annotated[StrictStr, Field(pattern=_UUID, json_schema_extra={"format": "uuid"})]
#: Version 4, because the key becomes the lease token, which must not be guessable.
ClaimKey = Annotated[StrictStr, Field(pattern=_UUID4, json_schema_extra={"format": "uuid"}, examples=[_TOKEN])]
Queue = Annotated[StrictStr, text("queue", examples=["mail"])]
Type = Annotated[StrictStr, text("type", examples=["send"])]
Contract = Annotated[StrictStr, text("contract", examples=["standard"])]
Tenant = Annotated[StrictStr, text("tenant_id")]
Reason = Annotated[StrictStr, text("reason")]
Person = Annotated[StrictStr, text("person")]
ScheduleName = Annotated[StrictStr, text("schedule", examples=["report"])]
Fingerprint = Annotated[StrictStr, Field(min_length=1, max_length=64, examples=["9f2c41d07ab1e635"])]
Application = Annotated[StrictStr, text("application", examples=["shop"])]
Node = Annotated[StrictStr, text("node", examples=["charge"])]
Stage = Annotated[StrictStr, Field(max_length=200)]
Number = StrictInt | StrictFloat
Seconds = Annotated[Number, up_to(MAX_DELAY_MS / 1_000)]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS), AS_WHOLE]
Milliseconds = Annotated[StrictInt, Field(ge=0, le=MAX_DELAY_MS), AS_WHOLE]
SmallCount = Annotated[StrictInt, Field(ge=0, le=2**31 - 1), AS_WHOLE]
Queues = Annotated[list[Queue], Field(min_length=1, max_length=100)]
Contracts = Annotated[list[Contract], Field(max_length=100)]
Types = Annotated[list[Type], Field(max_length=10_000)]
Item = TypeVar("Item")
#: The items of a batch.
Items = Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]

# Whole request fields, with their descriptions.
IdempotencyKey = Annotated[
    Annotated[StrictStr, text("key")] | None,
    described("A key to repeat the call safely; for a call about one job also the header Idempotency-Key."),
]
WorkerId = Annotated[
    StrictStr, text("worker", description="The worker's name, the same in all of its calls.", examples=["w1"])
]
ReasonForLog = Annotated[Reason | None, described("The reason, which the job's log shows.")]

# Whole response fields, with their descriptions.
Role = TypeAliasType(
    "Role",
    Annotated[
        Literal["ready", "waiting", "leased", "active", "settling", "done"],
        described("What a state means in every contract.", examples=["active"]),
    ],
)
JobId = Annotated[Id, described("The job's id.")]
LetterId = Annotated[Id, described("The dead letter's id.", examples=["7"])]
ContractName = Annotated[str, described("The contract that the job follows.", examples=["standard"])]
State = Annotated[str, described("The job's state now, in its contract's words.", examples=["running"])]
StateRole = Annotated[Role, described("What that state means in every contract.")]
QueueName = Annotated[str, described("The queue that the job is claimed from.", examples=["mail"])]
TypeName = Annotated[str, described("The job's type: which handler runs it.", examples=["send"])]
TenantId = Annotated[str, described("The tenant that owns the job.", examples=["default"])]
Claims = Annotated[int, described("How often the job was claimed; it never falls.")]
Counter = Annotated[int, described("The contract's own count of attempts or retries.")]
MaxAttempts = Annotated[int, described("The limit of attempts, as the contract counts them.", examples=[5])]
LeaseToken = Annotated[UUID, described("The lease token; every call of the holder must carry it.")]
LeaseEnd = Annotated[
    datetime | None,
    described(
        "When the lease ends, by the database's clock; null: no lease.", examples=["2026-11-15T12:03:38.123456Z"]
    ),
]
DueAt = Annotated[datetime | None, described("When the job may be claimed, or last might; null: at once.")]
TraceId = Annotated[
    str,
    described(
        "The job's trace id: the given one, or one made from its id.", examples=["4bf92f3577b34da6a3ce929d0e0e4736"]
    ),
]
CorrelationId = Annotated[
    str,
    described("The job's correlation id: the given one, or one made from its id.", examples=["order:17"]),
]


class RequestBody(BaseModel):
    """A request body. It refuses unknown fields, so that a misspelt field is never ignored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many_fields(cls, value: Any) -> Any:
        """Refuse a flood of unknown fields with one error: an error per field would fill the memory."""
        if type(value) is dict and len(value) > _MAX_FIELDS:
            counts = {"given": len(value), "known": len(cls.model_fields)}
            raise PydanticCustomError("too_many_fields", "{given} fields are given, and there are {known}", counts)
        return value
