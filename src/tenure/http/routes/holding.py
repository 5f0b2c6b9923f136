"""Routes for the holder of a job: the verbs of `HOLDER_VERBS`, for one job or many, and its effects.

Every call carries the proof of the lease: (job, claims, token).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tenure.errors import BadInput
from tenure.http.application import ApiRequest, parse_job_id
from tenure.http.models import holding as models
from tenure.http.response import FastJsonResponse, outcome
from tenure.jobs.holder_call import HOLDER_VERBS, HolderCall
from tenure.jobs.job import Held
from tenure.jobs.validation import MAX_ID

#: The fields of a body, and the facts of a call that they give.
_FACTS = {
    "result": "result", "error": "failure", "seconds": "delay_ms", "reason": "reason", "value": "value",
    "blocks": "blocks",
}  # fmt: skip


async def report(verb: str, request: ApiRequest, body: models.Proof) -> FastJsonResponse:
    """Report a verb of `HOLDER_VERBS` for one job; what became of the job."""
    key = request.idempotency_key(body.idempotency_key) if isinstance(body, models.KeyedProof) else None
    call = HolderCall(await _held(request, body), key, **_facts(verb, body))
    return FastJsonResponse(outcome(await request.calls.report_patiently(verb, call), call.held.id))


async def report_many(request: ApiRequest, body: models.Batch) -> FastJsonResponse:
    """Report a verb for each of many jobs; an answer or a refusal for each, in the same order."""
    request.refuse_idempotency_key("in finishes and starts give each its idempotency_key; heartbeats need none")
    calls, items = request.calls, body.items()
    numbers = map(int, (one.id for one in items))
    identities = await calls.identities(number for number in numbers if 0 < number <= MAX_ID)

    def begin(one: models.BatchItem) -> asyncio.Future[Any]:
        number = parse_job_id(one.id)
        held = calls.proof(identities[number], number, one.claims, one.lease_token, request.caller)
        verb = one.verb.replace("-", "_")
        key = one.idempotency_key if isinstance(one, models.KeyedProof) else None
        return calls.report(verb, HolderCall(held, key, **_facts(verb, one)))

    answers = zip(await calls.each(items, begin), items, strict=True)
    return FastJsonResponse({"answers": [outcome(answer, int(one.id)) for answer, one in answers]})


def _facts(verb: str, body: models.Proof) -> dict[str, Any]:
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
        facts["failure"] = (facts.get("failure") or models.FailureFacts()).failure()
    return facts


async def _held(request: ApiRequest, body: models.Proof) -> Held:
    return await request.calls.held(request.job_id, body.claims, body.lease_token, request.caller)


async def record_effect(request: ApiRequest, body: models.Effect) -> dict[str, Any]:
    """Record that a node has had its effect: once per job, over all attempts."""
    held = await _held(request, body)
    had = await request.calls.store.effect(held, body.node, body.result, compensable=body.compensable)
    return {"recorded": had.recorded, "result": body.result if had.recorded else json.loads(had.result_json or "null")}


async def record_undone(request: ApiRequest, body: models.Undone) -> dict[str, Any]:
    """Record that a node's effect is undone."""
    await request.calls.store.undone(await _held(request, body), body.node)
    return {"id": request.path_text}


async def list_effects(request: ApiRequest) -> dict[str, Any]:
    """The nodes of a job that have had their effect, newest first, with what came of each."""
    return {"effects": await request.calls.store.effects(await request.own_job_id())}
