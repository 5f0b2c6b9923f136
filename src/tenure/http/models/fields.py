"""The kinds of values that bodies and answers are made of, with their limits, and what every body has in common."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from tenure.intake import LENGTHS, MAX_CLAIMS, MAX_DELAY_MS

#: So many jobs, finishes or beats go in one request.
MOST = 1_000
#: So long a request may wait for something to happen.
LONGEST_WAIT_S = 60.0

#: No body has so many fields.
_MOST_FIELDS = 40
_DIGITS = r"^[0-9]{1,19}$"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID4 = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
#: What these patterns stand for, in words.
MEANINGS = {_DIGITS: "a text of 1 to 19 digits", _UUID: "a UUID", _UUID4: "a UUID of version 4"}

#: What examples show: a token, the two fields of a holder's proof, and some moments of a job's life.
TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"
PROOF: dict[str, Any] = {"claims": 1, "lease_token": TOKEN}
MADE_AT, TAKEN_AT, DONE_AT, UNTIL = (f"2026-11-15T12:{at}.123456Z" for at in ("03:07", "03:08", "03:09", "03:38"))


def like(**example: Any) -> ConfigDict:
    """Of a body: no more fields than these, and an example of them."""
    return ConfigDict(extra="forbid", **shown(**example))


def shown(**example: Any) -> ConfigDict:
    """Of an answer: an example of it."""
    return ConfigDict(json_schema_extra={"examples": [example]})


def either(*examples: dict[str, Any]) -> ConfigDict:
    """Of an answer that is one of several, never two at once: an example of each."""

    def one_of(schema: dict[str, Any]) -> None:
        if "anyOf" in schema:
            schema["oneOf"] = schema.pop("anyOf")
        schema["examples"] = list(examples)

    return ConfigDict(json_schema_extra=one_of)


def text(kind: str) -> Any:
    """A text as long as a name of this kind may be."""
    return Field(min_length=1, max_length=LENGTHS[kind])


def up_to(most: float) -> Any:
    """A number from 0 on; of a union of two kinds of numbers, bounds must be put into JSON Schema's words here."""

    def bounds(schema: dict[str, Any]) -> None:
        for ours in ("ge", "le", "allow_inf_nan", "anyOf"):
            schema.pop(ours, None)
        schema.update(type="number", minimum=0, maximum=int(most))

    return Field(ge=0, le=most, allow_inf_nan=False, json_schema_extra=bounds)


Id = Annotated[StrictStr, Field(pattern=_DIGITS, examples=["42"])]
Token = Annotated[StrictStr, Field(pattern=_UUID, json_schema_extra={"format": "uuid"}, examples=[TOKEN])]
#: Of the fourth kind, because it becomes the token of what it wins: nobody shall guess it.
ClaimKey = Annotated[StrictStr, Field(pattern=_UUID4, json_schema_extra={"format": "uuid"}, examples=[TOKEN])]
Queue = Annotated[StrictStr, text("queue")]
Type = Annotated[StrictStr, text("type")]
Contract = Annotated[StrictStr, text("contract")]
Tenant = Annotated[StrictStr, text("tenant_id")]
Key = Annotated[StrictStr, text("key")]
Reason = Annotated[StrictStr, text("reason")]
Person = Annotated[StrictStr, text("person")]
Worker = Annotated[StrictStr, text("worker")]
Node = Annotated[StrictStr, text("node")]
Stage = Annotated[StrictStr, Field(max_length=200)]
Number = StrictInt | StrictFloat
Seconds = Annotated[Number, up_to(MAX_DELAY_MS / 1_000)]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_CLAIMS)]
Milliseconds = Annotated[StrictInt, Field(ge=0, le=MAX_DELAY_MS)]
Role = TypeAliasType(
    "Role",
    Annotated[
        Literal["ready", "waiting", "leased", "active", "settling", "done"],
        Field(description="What a state means to every contract.", examples=["ready"]),
    ],
)

#: Fields that many bodies have.
RepeatKey = Annotated[
    Key | None,
    Field(description="A key to repeat the call safely; of a call about one job also as the header Idempotency-Key."),
]
WhoHolds = Annotated[Worker, Field(description="Who asks: a name of the worker's own, the same for all its calls.")]
Why = Annotated[Reason | None, Field(description="Why, for who reads the job's log.")]

#: Fields that many answers have.
JobId = Annotated[Id, Field(description="The job's id.")]
ContractName = Annotated[str, Field(description="The name of the contract that the job follows.")]
State = Annotated[str, Field(description="The state that the job is in now, in its contract's own words.")]
InRole = Annotated[Role, Field(description="What that state means to every contract.")]
QueueName = Annotated[str, Field(description="The queue that the job is claimed from.")]
TypeName = Annotated[str, Field(description="The type of the job: which handler runs it.")]
TenantId = Annotated[str, Field(description="Whose job it is.")]
Claims = Annotated[int, Field(description="How often the job was claimed; only ever rises.")]
Counter = Annotated[int, Field(description="The contract's own count of attempts or retries.")]
LeaseToken = Annotated[UUID, Field(description="The lease's token, which every word of its holder shows.")]
LeaseEnd = Annotated[datetime | None, Field(description="When the lease ends by the database's clock; null: no lease.")]
DueAt = Annotated[
    datetime | None,
    Field(description="When it may be claimed, or was last to be; null: at once."),
]
TraceId = Annotated[str, Field(description="The trace that the job belongs to: the one given, else made from its id.")]
CorrelationId = Annotated[str, Field(description="What the job belongs to: the id given, else made from the job's.")]


class Body(BaseModel):
    """A body: no more fields than these."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        """Refuse a flood of unknown fields as one fault: a million of them, each described, would fill the memory."""
        if type(given) is dict and len(given) > _MOST_FIELDS:
            counts = {"given": len(given), "known": len(cls.model_fields)}
            raise PydanticCustomError("too_many_fields", "{given} fields are given, and there are {known}", counts)
        return given
