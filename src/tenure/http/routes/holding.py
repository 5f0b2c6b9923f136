"""Routes for the holder of a job: the verbs of `HOLDER_VERBS`, for one job or many, and its effects.

Every call carries the proof of the lease: (job, claims, token).
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, RootModel, StrictBool, StrictStr

from tenure.errors import BadInput
from tenure.http.application import ApiRequest, parse_job_id
from tenure.http.models import fields
from tenure.http.models.datasets import Events, Outputs
from tenure.http.models.errors import RefusedItem
from tenure.http.models.fields import RequestBody, described, optional
from tenure.http.models.outcomes import Move, Note, Unmoved
from tenure.http.response import FastJsonResponse, outcome
from tenure.jobs.holder_call import HOLDER_VERBS, HolderCall
from tenure.jobs.job import Failure, Held
from tenure.jobs.validation import MAX_ID


class Proof(RequestBody):
    """The holder's proof: the claim count and the lease token."""

    claims: fields.Count = described("How often the job was claimed, as the claim answered.", examples=[1])
    lease_token: fields.Token = described("The lease token, as the claim answered.")


class KeyedProof(Proof):
    """A holder's call that can be repeated safely."""

    idempotency_key: fields.IdempotencyKey = None


class Saved(Proof):
    """Progress or a checkpoint."""

    value: Any = described("The progress, or the start value of the next attempt: any JSON.", examples=[{"page": 7}])


class Undone(Proof):
    """A node whose effect is undone."""

    node: fields.Node = described("The node, as its effect was recorded.")


class Effect(Proof):
    """A side effect of a node."""

    node: fields.Node = described("The node: a name for the effect, unique per job over all attempts.")
    result: Any = optional("The effect's result, any JSON; default null.", examples=[{"receipt": "r-17"}])
    compensable: StrictBool = described(
        "Whether to undo it when the job fails; default false.", default=False, examples=[True]
    )


class EffectOnRecord(BaseModel):
    """A side effect: recorded by this call, or before."""

    recorded: bool = described("Whether this call recorded it; false: an earlier call did.", examples=[True])
    result: Any = described("The recorded result.", examples=[{"receipt": "r-17"}])


class EffectUndone(BaseModel):
    """A node's effect is undone."""

    id: fields.JobId


class EffectList(BaseModel):
    """Nodes with a recorded effect, newest first."""

    effects: dict[str, Any] = described("The result of each node's effect.", examples=[{"charge": {"receipt": "r-17"}}])


class Succeed(KeyedProof):
    """The handler returned this. Outputs and events of datasets are stored with it, or nothing is."""

    result: Any = optional("The handler's result, any JSON; default null.", examples=[{"sent": True}])
    outputs: Outputs | None = optional("What it adds to the datasets that the job writes; default nothing.")
    dataset_events: Events | None = optional("Events for the tasks that are subscribed to datasets; default none.")


class FailureFacts(RequestBody):
    """What went wrong: facts, no decision."""

    message: Annotated[StrictStr, Field(max_length=100_000)] = described(
        "The error text; default failed.", default="failed", examples=["the mail server did not answer"]
    )
    type: Annotated[StrictStr, Field(min_length=1, max_length=200)] = described(
        "The error type, by which the contract decides; default Exception.",
        default="Exception",
        examples=["TimeoutError"],
    )
    code: Annotated[StrictStr, Field(max_length=200)] | None = optional("The handler's own error code; default none.")
    stack: Annotated[StrictStr, Field(max_length=1_000_000)] | None = optional("The stack trace; default none.")
    stage: fields.Stage | None = optional("The stage of the work; default none.")
    retryable: StrictBool | None = optional("Whether a retry could help; default: the contract decides by the type.")
    release: Annotated[StrictStr, fields.text("release")] | None = optional(
        "The version of the application in which it happened; default none."
    )

    def failure(self) -> Failure:
        """The failure that these facts describe."""
        return Failure(self.message, self.type, self.code, self.stack, self.stage, self.retryable, self.release)


class Fail(KeyedProof):
    """The handler failed."""

    error: FailureFacts = described(
        "What went wrong.",
        default_factory=FailureFacts,
        examples=[{"type": "TimeoutError", "message": "the mail server did not answer"}],
    )


class Snooze(KeyedProof):
    """The handler continues later."""

    seconds: fields.Seconds = described("Seconds until the job may be claimed again.", examples=[30])


class Cancelled(KeyedProof):
    """The holder has stopped, because it was asked to or by its own choice."""

    reason: fields.ReasonForLog = None


class HandBack(KeyedProof):
    """The holder gives the job back unfinished."""

    seconds: fields.Seconds = described(
        "Seconds until the job may be claimed again; default 0.", default=0, examples=[5]
    )
    reason: fields.ReasonForLog = None


class Start(KeyedProof):
    """One item of a start batch."""

    verb: ClassVar[str] = "start"
    id: fields.JobId


class Finish(KeyedProof):
    """One item of a finish batch. Only the fields of its verb may be set."""

    id: fields.JobId
    verb: Literal["succeed", "fail", "snooze", "hand-back", "cancelled"] = described("How the job ends.")
    result: Any = optional("With succeed: the handler's result; default null.", examples=[{"sent": True}])
    error: FailureFacts | None = optional("With fail: what went wrong.")
    seconds: fields.Seconds | None = optional(
        "With snooze (required) and hand-back (default 0): seconds until the next claim."
    )
    reason: fields.ReasonForLog = optional("With hand-back and cancelled: why, for the log.")
    outputs: Outputs | None = optional("With succeed: what it adds to the datasets that the job writes.")
    dataset_events: Events | None = optional("With succeed: events for the tasks that are subscribed to datasets.")


class Beat(Proof):
    """One item of a heartbeat batch."""

    verb: ClassVar[str] = "heartbeat"
    id: fields.JobId
    blocks: StrictBool = described(
        "Whether the handler blocks its worker's event loop; later attempts get their own process.", default=False
    )


BatchItem = Start | Finish | Beat


class Batch(RequestBody):
    """Calls about many jobs: the items of its only field."""

    def items(self) -> list[BatchItem]:
        """The calls; each is accepted or refused by itself."""
        (items,) = self.__dict__.values()
        return list(items)


class FinishMany(Batch):
    """A batch of finishes."""

    finishes: fields.Items[Finish] = described("The finishes; each is accepted or refused by itself.")


class StartMany(Batch):
    """A batch of starts."""

    starts: fields.Items[Start] = described("The starts; each is accepted or refused by itself.")


class HeartbeatMany(Batch):
    """A batch of heartbeats."""

    heartbeats: fields.Items[Beat] = described("The heartbeats; each is accepted or refused by itself.")


class StartAnswer(RootModel[Move | Unmoved]):
    """The handler has started, or the job's contract has no such step."""


class HandBackAnswer(RootModel[Move | Note]):
    """The job is given back. A note: this contract's jobs are only taken over when their lease ends."""


class FinishAnswer(RootModel[Move | Note | RefusedItem]):
    """What one finish of a batch did."""


class StartedOrRefused(RootModel[Move | Unmoved | RefusedItem]):
    """What one start of a batch did."""


class NotedOrRefused(RootModel[Note | RefusedItem]):
    """What one heartbeat of a batch did."""


class FinishAnswers(BaseModel):
    """What each finish did."""

    answers: list[FinishAnswer] = described("One answer per finish, in the same order.")


class StartAnswers(BaseModel):
    """What each start did."""

    answers: list[StartedOrRefused] = described("One answer per start, in the same order.")


class HeartbeatAnswers(BaseModel):
    """What each heartbeat did."""

    answers: list[NotedOrRefused] = described("One answer per heartbeat, in the same order.")


#: The fields of a body, and the facts of a call that they give.
_FACTS = {
    "result": "result", "error": "failure", "seconds": "delay_ms", "reason": "reason", "value": "value",
    "blocks": "blocks", "outputs": "outputs", "dataset_events": "dataset_events",
}  # fmt: skip


async def report(verb: str, request: ApiRequest, body: Proof) -> FastJsonResponse:
    """Report a verb of `HOLDER_VERBS` for one job; what became of the job."""
    key = request.idempotency_key(body.idempotency_key) if isinstance(body, KeyedProof) else None
    call = HolderCall(await _held(request, body), key, **_facts(verb, body))
    return FastJsonResponse(outcome(await request.calls.report_patiently(verb, call), call.held.id))


async def report_many(request: ApiRequest, body: Batch) -> FastJsonResponse:
    """Report a verb for each of many jobs; an answer or a refusal for each, in the same order."""
    request.refuse_idempotency_key("in finishes and starts give each its idempotency_key; heartbeats need none")
    calls, items = request.calls, body.items()
    job_ids = map(int, (one.id for one in items))
    identities = await calls.identities(job_id for job_id in job_ids if 0 < job_id <= MAX_ID)

    def begin(one: BatchItem) -> asyncio.Future[Any]:
        job_id = parse_job_id(one.id)
        held = calls.proof(identities[job_id], job_id, one.claims, one.lease_token, request.caller)
        verb = one.verb.replace("-", "_")
        key = one.idempotency_key if isinstance(one, KeyedProof) else None
        return calls.report(verb, HolderCall(held, key, **_facts(verb, one)))

    answers = zip(await calls.each(items, begin), items, strict=True)
    return FastJsonResponse({"answers": [outcome(answer, int(one.id)) for answer, one in answers]})


def _facts(verb: str, body: Proof) -> dict[str, Any]:
    """The facts of a call; refuses a field that its verb does not carry."""
    carried, given, facts = HOLDER_VERBS[verb].facts, vars(body), dict[str, Any]()
    for name, fact in _FACTS.items():
        value = given.get(name)
        if value is None:
            continue
        if fact not in carried:
            raise BadInput(f"a finish of the verb {verb.replace('_', '-')} takes no {name}. Next: leave it out")
        facts[fact] = value
    if verb == "snooze" and "delay_ms" not in facts:
        raise BadInput("a finish of the verb snooze says for how many seconds. Next: give seconds")
    if "delay_ms" in facts:
        facts["delay_ms"] = round(facts["delay_ms"] * 1_000)
    if "failure" in carried:
        facts["failure"] = (facts.get("failure") or FailureFacts()).failure()
    if "outputs" in facts:
        facts["outputs"] = [one.output() for one in facts["outputs"]]
    if "dataset_events" in facts:
        facts["dataset_events"] = [one.event() for one in facts["dataset_events"]]
    return facts


async def _held(request: ApiRequest, body: Proof) -> Held:
    return await request.calls.held(request.job_id, body.claims, body.lease_token, request.caller)


async def record_effect(request: ApiRequest, body: Effect) -> dict[str, Any]:
    """Record that a node has had its effect: once per job, over all attempts."""
    held = await _held(request, body)
    had = await request.calls.store.effect(held, body.node, body.result, compensable=body.compensable)
    return {"recorded": had.recorded, "result": body.result if had.recorded else json.loads(had.result_json or "null")}


async def record_undone(request: ApiRequest, body: Undone) -> dict[str, Any]:
    """Record that a node's effect is undone."""
    await request.calls.store.undone(await _held(request, body), body.node)
    return {"id": request.path_text}


async def list_effects(request: ApiRequest) -> dict[str, Any]:
    """The nodes of a job that have had their effect, newest first, with what came of each."""
    return {"effects": await request.calls.store.effects(await request.own_job_id())}
