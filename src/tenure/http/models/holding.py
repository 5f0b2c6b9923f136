"""Bodies and answers of the routes for who holds a job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, StrictBool, StrictStr

from tenure.http.models.fields import (
    MOST,
    PROOF,
    Body,
    Count,
    Id,
    JobId,
    Node,
    RepeatKey,
    Seconds,
    Stage,
    Token,
    Why,
    either,
    like,
    shown,
)
from tenure.http.models.moves import MOVE, NOTE, UNMOVED, Move, Note, Unmoved
from tenure.http.models.refusal import RefusedItem
from tenure.job import Failure

_WENT_WRONG = {"type": "TimeoutError", "message": "the mail server did not answer"}
_ONE: dict[str, Any] = {"id": "42", **PROOF}
_LOST: dict[str, Any] = {
    "error": {
        "code": "LEASE_CONFLICT", "message": "job 43 is held by w2 since 12:03:07; nothing was stored",
        "retryable": False, "hint": "drop this work and claim again",
    }
}  # fmt: skip


class Proof(Body):
    """What a holder shows: how often the job was claimed, and the lease's token."""

    model_config = like(**PROOF)
    claims: Count = Field(description="How often the job was claimed, as the claim said.", examples=[1])
    lease_token: Token = Field(description="The lease's token, as the claim gave it.")


class KeyedProof(Proof):
    """A holder's word that can be repeated safely."""

    model_config = like(**PROOF, idempotency_key="start:1")
    idempotency_key: RepeatKey = None


class Saved(Proof):
    """Progress or a checkpoint."""

    model_config = like(**PROOF, value={"page": 7})
    value: Any = Field(description="How far the work is, or what the next attempt begins with: any JSON.")


class Effect(Proof):
    """A side effect that a node has had."""

    model_config = like(**PROOF, node="charge", result={"receipt": "r-17"}, compensable=True)
    node: Node = Field(description="The node: a name for the effect, once per job over all attempts.")
    result: Any = Field(default=None, description="What came of it, any JSON; default null.")
    compensable: StrictBool = Field(
        default=False, description="Whether it is to be undone when the job fails; default false."
    )


class EffectOnRecord(BaseModel):
    """A side effect: recorded by this call, or had before with this result."""

    model_config = shown(recorded=True, result={"receipt": "r-17"})
    recorded: bool = Field(description="Whether this call recorded it; false: it was had before.")
    result: Any = Field(description="What is on record as having come of it.")


class Undone(Proof):
    """A node whose effect is undone."""

    model_config = like(**PROOF, node="charge")
    node: Node = Field(description="The node, as its effect was recorded.")


class EffectUndone(BaseModel):
    """A node's effect is undone."""

    model_config = shown(id="42")
    id: JobId


class EffectsHad(BaseModel):
    """Nodes that have had their effect, newest first."""

    model_config = shown(effects={"charge": {"receipt": "r-17"}})
    effects: dict[str, Any] = Field(description="What came of each node's effect.")


class Succeed(KeyedProof):
    """The handler returned this."""

    model_config = like(**PROOF, result={"sent": True}, idempotency_key="succeed:1")
    result: Any = Field(default=None, description="What it returned, any JSON; default null.")


class FailureFacts(Body):
    """What went wrong: facts, no decision."""

    model_config = like(**_WENT_WRONG)
    message: Annotated[StrictStr, Field(max_length=100_000)] = Field(
        default="failed", description="What went wrong, for people; default failed."
    )
    type: Annotated[StrictStr, Field(min_length=1, max_length=200)] = Field(
        default="Exception", description="The kind of error, by which contracts judge; default Exception."
    )
    code: Annotated[StrictStr, Field(max_length=200)] | None = Field(
        default=None, description="A code of the handler's own; default none."
    )
    stack: Annotated[StrictStr, Field(max_length=1_000_000)] | None = Field(
        default=None, description="Where in the code it happened; default nothing."
    )
    stage: Stage | None = Field(default=None, description="At which stage of the work it happened; default nothing.")
    retryable: StrictBool | None = Field(
        default=None, description="Whether to try again could help; default the contract decides by the type."
    )

    def failure(self) -> Failure:
        """The failure that this is."""
        return Failure(self.message, self.type, self.code, self.stack, self.stage, self.retryable)


class Fail(KeyedProof):
    """The handler failed."""

    model_config = like(**PROOF, error=_WENT_WRONG, idempotency_key="fail:1")
    error: FailureFacts = Field(default_factory=FailureFacts, description="What went wrong.")


class Snooze(KeyedProof):
    """The handler wants to go on later."""

    model_config = like(**PROOF, seconds=30)
    seconds: Seconds = Field(description="Seconds until the job may be claimed again.")


class HandBack(KeyedProof):
    """The job comes back unfinished."""

    model_config = like(**PROOF, seconds=5, reason="the worker stops")
    seconds: Seconds = Field(default=0, description="Seconds until the job may be claimed again; default 0.")
    reason: Why = None


class Cancelled(KeyedProof):
    """The holder has stopped, as it was asked to or by itself."""

    model_config = like(**PROOF, reason="asked to stop")
    reason: Why = None


class Finish(KeyedProof):
    """One of many last words; only the verb's own fields may be set."""

    model_config = like(**_ONE, verb="succeed", result={"sent": True})
    id: Id = Field(description="The job's id.")
    verb: Literal["succeed", "fail", "snooze", "hand-back", "cancelled"] = Field(description="The last word.")
    result: Any = Field(default=None, description="Of succeed: what the handler returned; default null.")
    error: FailureFacts | None = Field(default=None, description="Of fail: what went wrong.")
    seconds: Seconds | None = Field(
        default=None,
        description="Of snooze (needed) and hand-back (default 0): seconds until the job may be claimed again.",
    )
    reason: Why = Field(default=None, description="Of hand-back and cancelled: why, for who reads the job's log.")


class FinishMany(Body):
    """Last words of many jobs."""

    model_config = like(finishes=[{**_ONE, "verb": "succeed", "result": {"sent": True}}])
    finishes: Annotated[list[Finish], Field(min_length=1, max_length=MOST)] = Field(
        description="The last words; each is answered or refused by itself."
    )


class Start(KeyedProof):
    """One of many handlers that begin."""

    model_config = like(**_ONE)
    id: Id = Field(description="The job's id.")


class StartMany(Body):
    """Handlers of many jobs that begin."""

    model_config = like(starts=[_ONE])
    starts: Annotated[list[Start], Field(min_length=1, max_length=MOST)] = Field(
        description="The jobs; each is answered or refused by itself."
    )


class Beat(Proof):
    """One of many heartbeats."""

    model_config = like(**_ONE)
    id: Id = Field(description="The job's id.")


class HeartbeatMany(Body):
    """Heartbeats of many jobs."""

    model_config = like(heartbeats=[_ONE])
    heartbeats: Annotated[list[Beat], Field(min_length=1, max_length=MOST)] = Field(
        description="The jobs; each is answered or refused by itself."
    )


class StartAnswer(RootModel[Move | Unmoved]):
    """The handler has begun, or the job's contract has no such step."""

    model_config = either({**MOVE, "trigger": "start", "state": "running", "role": "active"}, UNMOVED)


class HandBackAnswer(RootModel[Move | Note]):
    """The job is given back; a note under a contract whose jobs are taken from their holders in place."""

    model_config = either({**MOVE, "trigger": "hand_back", "state": "queued", "role": "ready"}, NOTE)


class FinishAnswer(RootModel[Move | Note | RefusedItem]):
    """What became of one of many last words."""

    model_config = either(MOVE, NOTE, _LOST)


class FinishAnswers(BaseModel):
    """What became of each last word."""

    model_config = shown(answers=[MOVE, _LOST])
    answers: list[FinishAnswer] = Field(description="One answer for each, in the order asked.")


class StartedOrRefused(RootModel[Move | Unmoved | RefusedItem]):
    """What became of one of many beginnings."""

    model_config = either({**MOVE, "trigger": "start", "state": "running", "role": "active"}, UNMOVED, _LOST)


class StartAnswers(BaseModel):
    """What became of each beginning."""

    model_config = shown(answers=[UNMOVED, _LOST])
    answers: list[StartedOrRefused] = Field(description="One answer for each, in the order asked.")


class NotedOrRefused(RootModel[Note | RefusedItem]):
    """What became of one of many heartbeats."""

    model_config = either(NOTE, _LOST)


class HeartbeatAnswers(BaseModel):
    """What became of each heartbeat."""

    model_config = shown(answers=[NOTE, _LOST])
    answers: list[NotedOrRefused] = Field(description="One answer for each, in the order asked.")
