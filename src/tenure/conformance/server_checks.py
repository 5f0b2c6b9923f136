"""What a server must do for workers and for callers that make jobs, under the contract `standard`."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from tenure.conformance.server_probe import Check, Probe, path_of, proof, require

#: Claims that are sent at the same time.
_AT_ONCE: Final = 8
#: The verbs that a stranger tries, each with its facts.
_FENCED: Final[dict[str, dict[str, Any]]] = {
    "heartbeat": {}, "progress": {"value": 1}, "checkpoint": {"value": 1}, "effect": {"node": "n"}, "succeed": {},
    "fail": {}, "snooze": {"seconds": 1}, "hand-back": {}, "cancelled": {},
}  # fmt: skip


def _key() -> str:
    return str(uuid.uuid4())


async def enqueue(probe: Probe) -> None:
    """One key makes one job."""
    key = _key()
    job_id = await probe.enqueue(payload={"n": 1}, idempotency_key=key)
    again = await probe.enqueue(payload={"n": 1}, idempotency_key=key)
    require(again == job_id, f"the same idempotency_key made two jobs: {job_id} and {again}")
    other = {"type": "conformance", "queue": probe.queue, "payload": {"n": 2}, "idempotency_key": key}
    await probe.refused("/api/v1/jobs", other, 409, "IDEMPOTENCY_CONFLICT", what="it made another job under a used key")
    shown = await probe.show(job_id)
    require(shown["payload"] == {"n": 1} and shown["role"] == "ready", f"job {job_id} is not as it was made: {shown}")


async def claims(probe: Probe) -> None:
    """Limit, types, claim keys, and the fields of a claim."""
    jobs = {await probe.enqueue(payload={"n": n}) for n in range(3)}
    key = _key()
    first = await probe.claim(limit=2, claim_key=key)
    require(len(first) == 2, f"a claim with limit 2 won {len(first)} of 3 due jobs")
    for claim in first:
        wanted = {"job", "claims", "lease_token", "lease_expires_at", "lease_seconds", "execution_key"}
        require(wanted <= set(claim), f"a claim lacks {sorted(wanted - set(claim))}")
        require(claim["lease_token"] == key, "the claim_key did not become the lease token")
        require(claim["claims"] == 1, f"the first claim of a job counts as {claim['claims']}")
    again = await probe.claim(limit=2, claim_key=key)
    require(_ids(again) == _ids(first), f"the same claim_key won other jobs: {_ids(first)} and then {_ids(again)}")
    require(not await probe.claim(types=["someone-elses"], limit=9), "a claim won a job of a type that it did not name")
    rest = await probe.claim("kit-2", limit=9)
    require(_ids(rest) == jobs - _ids(first), f"another worker won {_ids(rest)}, and {jobs - _ids(first)} were due")
    for claim in (*first, *rest):
        await probe.call("POST", path_of(claim, "succeed"), proof(claim))


def _ids(found: list[dict[str, Any]]) -> set[str]:
    return {claim["job"]["id"] for claim in found}


async def one_winner(probe: Probe) -> None:
    """Concurrent claims of one job."""
    job_id = await probe.enqueue()
    found = await asyncio.gather(*(probe.claim(f"kit-{n}", claim_key=_key()) for n in range(_AT_ONCE)))
    winners = [claim for won in found for claim in won]
    require(len(winners) == 1, f"{len(winners)} of {_AT_ONCE} claims at the same time won job {job_id}")
    await probe.call("POST", path_of(winners[0], "succeed"), proof(winners[0]))
    repeated, key = await probe.enqueue(), _key()
    found = await asyncio.gather(*(probe.claim("kit-1", claim_key=key) for _ in range(_AT_ONCE)))
    tokens = {(claim["job"]["id"], claim["claims"]) for won in found for claim in won}
    require(tokens == {(repeated, 1)}, f"{_AT_ONCE} repeats of one claim at the same time won {sorted(tokens)}")
    await probe.call("POST", f"/api/v1/jobs/{repeated}/succeed", {"claims": 1, "lease_token": key})


async def long_poll(probe: Probe) -> None:
    """A waiting claim gets a job that is made later."""
    require(not await probe.claim(), "a claim of an empty queue won something")
    waiting = asyncio.create_task(probe.claim_one(record=False))
    await asyncio.sleep(0.2)  # usually it waits by now; if not, it finds the job at once, and is right too
    job_id = await probe.enqueue()
    claim = await waiting
    require(claim["job"]["id"] == job_id, f"the waiting claim won job {claim['job']['id']}, and {job_id} was made")
    await probe.call("POST", path_of(claim, "succeed"), proof(claim))


async def heartbeat(probe: Probe) -> None:
    """A heartbeat extends the lease."""
    await probe.enqueue()
    claim = await probe.claim_one()
    ends = claim["lease_expires_at"]

    async def extended() -> bool:  # a server may leave out a renewal shortly after the last one
        beat = await probe.call("POST", path_of(claim, "heartbeat"), proof(claim))
        require(beat["cancel_requested"] is False, "a heartbeat said cancel_requested without a cancel")
        require(beat["lease_expires_at"] >= ends, f"a heartbeat moved the lease's end back from {ends}: {beat}")
        return bool(beat["lease_expires_at"] > ends)

    await probe.until(extended, f"heartbeats did not move the lease's end on from {ends}")
    await probe.call("POST", path_of(claim, "succeed"), proof(claim))


async def fence(probe: Probe) -> None:
    """Only the holder's proof counts, for every verb."""
    job_id = await probe.enqueue()
    claim = await probe.claim_one()
    for verb, facts in _FENCED.items():
        for wrong in ({"lease_token": _key()}, {"claims": claim["claims"] + 1}):
            what = f"it accepted {verb} with a wrong {next(iter(wrong))}"
            await probe.refused(
                path_of(claim, verb), {**proof(claim), **facts, **wrong}, 409, "LEASE_CONFLICT", what=what
            )
    shown = await probe.show(job_id)
    is_same = (shown["role"], shown["checkpoint"], shown["claims"]) == ("active", None, 1)
    require(is_same, f"refused calls have changed job {job_id}: {shown}")
    await probe.call("POST", path_of(claim, "succeed"), proof(claim))


async def completion(probe: Probe) -> None:
    """A job ends once; the same completion again gets the same answer."""
    job_id = await probe.enqueue()
    claim = await probe.claim_one()
    ending = proof(claim, result={"sent": 1}, idempotency_key="succeed:1")
    first = await probe.call("POST", path_of(claim, "succeed"), ending)
    require(first["moved"] is True and first["role"] == "done", f"succeed did not end job {job_id}: {first}")
    again = await probe.call("POST", path_of(claim, "succeed"), ending)
    require(again == first, f"the same completion again got another answer: {first} and then {again}")
    other = {**ending, "result": {"sent": 2}}
    await probe.refused(
        path_of(claim, "succeed"), other, 409, what="it accepted a second completion, with another result"
    )
    await probe.refused(path_of(claim, "fail"), proof(claim), 409, what="it let a finished job fail")
    shown = await probe.show(job_id)
    require(shown["result"] == {"sent": 1}, f"the result of job {job_id} is {shown['result']!r}")


async def failures(probe: Probe) -> None:
    """A failure is tried again while the budget lasts; a permanent one is not."""
    job_id = await probe.enqueue(max_attempts=2)
    claim = await probe.claim_one()
    error = {"type": "TimeoutError", "message": "no answer"}
    moved = await probe.call("POST", path_of(claim, "fail"), proof(claim, error=error))
    require(moved["will_retry"] is True and moved["due_at"], f"the first of two attempts was not retried: {moved}")
    second = await probe.claim_one("kit-2")
    require(second["claims"] == 2, f"the second claim of job {job_id} counts as {second['claims']}")
    moved = await probe.call("POST", path_of(second, "fail"), proof(second, error=error))
    require(moved["will_retry"] is False and moved["role"] == "done", f"the last attempt did not end the job: {moved}")
    await probe.enqueue()
    claim = await probe.claim_one()
    moved = await probe.call("POST", path_of(claim, "fail"), proof(claim, error={**error, "type": "PermanentError"}))
    require(moved["will_retry"] is False, "a PermanentError is tried again")


async def given_back(probe: Probe) -> None:
    """Snoozed and handed back jobs run again, at no cost, with their checkpoint."""
    job_id = await probe.enqueue(max_attempts=1)
    for number, (verb, facts) in enumerate((("snooze", {"seconds": 0}), ("hand-back", {})), start=1):
        claim = await probe.claim_one()
        await probe.call("POST", path_of(claim, "checkpoint"), proof(claim, value={"page": number}))
        await probe.call("POST", path_of(claim, verb), proof(claim, **facts, idempotency_key=f"{verb}:{number}"))
        shown = await probe.show(job_id)
        require(shown["role"] == "ready", f"after {verb} job {job_id} is {shown['state']}: it cost an attempt")
    claim = await probe.claim_one("kit-2")
    require(claim["job"]["checkpoint"] == {"page": 2}, f"the next attempt got checkpoint {claim['job']['checkpoint']}")
    for recorded, result in ((True, "first"), (False, "second")):
        effect = await probe.call("POST", path_of(claim, "effect"), proof(claim, node="charge", result=result))
        is_right = effect["recorded"] is recorded and effect["result"] == "first"
        require(is_right, f"an effect was not recorded exactly once: {effect}")
    await probe.call("POST", path_of(claim, "succeed"), proof(claim))


async def cancels(probe: Probe) -> None:
    """A soft cancel asks the holder; a hard one ends the job at once."""
    job_id = await probe.enqueue()
    claim = await probe.claim_one()
    await probe.call("POST", f"/api/v1/jobs/{job_id}/cancel", {"mode": "soft"})
    beat = await probe.call("POST", path_of(claim, "heartbeat"), proof(claim))
    require(beat["cancel_requested"] is True, "after a soft cancel a heartbeat does not say cancel_requested")
    moved = await probe.call("POST", path_of(claim, "cancelled"), proof(claim, idempotency_key="cancelled:1"))
    require(moved["state"] == "cancelled", f"cancelled brought the job to {moved['state']}")
    hard = await probe.enqueue()
    claim = await probe.claim_one()
    await probe.call("POST", f"/api/v1/jobs/{hard}/cancel", {"mode": "hard"})
    for verb in ("heartbeat", "succeed"):
        await probe.refused(path_of(claim, verb), proof(claim), 409, what=f"it accepted {verb} after a hard cancel")
    shown = await probe.show(hard)
    require(shown["state"] == "cancelled", f"a job that was cancelled at once is {shown['state']}")


async def lost_lease(probe: Probe) -> None:
    """A job whose holder is silent goes to another worker; the old holder can change nothing."""
    job_id = await probe.enqueue()
    old = await probe.claim_one("kit-1")

    async def taken() -> list[dict[str, Any]]:
        return await probe.claim("kit-2", wait_seconds=2)

    (new,) = await probe.until(taken, f"nobody got job {job_id} after its lease of 2 s had ended (does upkeep run?)")
    require(new["claims"] == old["claims"] + 1, f"the claim after a lost lease counts as {new['claims']}")
    late = proof(old, result="late", idempotency_key="succeed:1")
    await probe.refused(
        path_of(old, "succeed"), late, 409, "LEASE_CONFLICT", what="it accepted a completion after the lease was lost"
    )
    await probe.refused(
        path_of(old, "heartbeat"), proof(old), 409, "LEASE_CONFLICT",
        what="it accepted a heartbeat of a worker that lost the lease",
    )  # fmt: skip
    await probe.call("POST", path_of(new, "succeed"), proof(new, result="in time", idempotency_key="succeed:2"))
    shown = await probe.show(job_id)
    require(shown["result"] == "in time", f"the result is {shown['result']!r}, of the worker that lost the lease")


async def batches(probe: Probe) -> None:
    """Each part of a batch has its own answer, in order."""
    for _ in range(2):
        await probe.enqueue()
    first, second = await probe.claim(limit=2)
    beats = [{"id": one["job"]["id"], **proof(one)} for one in (first, second)]
    answers = (await probe.call("POST", "/api/v1/heartbeats", {"heartbeats": beats}))["answers"]
    require(len(answers) == 2 and all("lease_expires_at" in one for one in answers), f"two heartbeats got {answers}")
    ends = [{"verb": "succeed", "idempotency_key": "succeed:1", **beat} for beat in beats]
    ends.insert(1, {**ends[0], "lease_token": _key(), "idempotency_key": "other"})
    answers = (await probe.call("POST", "/api/v1/finishes", {"finishes": ends}))["answers"]
    is_right = len(answers) == 3 and "error" in answers[1] and all("error" not in one for one in answers[::2])
    require(is_right, f"of three finishes only the second is wrong; the answers are {answers}")


async def wrong_calls(probe: Probe) -> None:
    """A wrong call is refused with the error envelope, and writes nothing."""
    misspelt = {"type": "conformance", "queue": probe.queue, "pay_load": {}}
    await probe.refused("/api/v1/jobs", misspelt, 422, "E-BAD-INPUT", what="it ignored an unknown field")
    unknown = {"claims": 1, "lease_token": _key()}
    await probe.refused(
        f"/api/v1/jobs/{2**62}/heartbeat", unknown, 404, "JOB_NOT_FOUND", what="it knows a job that is none"
    )
    short_key = {"worker_id": "kit-1", "queues": [probe.queue], "claim_key": "1"}
    await probe.refused("/api/v1/claims", short_key, 422, "E-BAD-INPUT", what="it took a claim_key that is no UUID")
    await probe.refused("/api/v1/no-such-route", {}, 404, "NOT_FOUND", what="it answered a route that is none")


SERVER_CHECKS: Final = (
    Check("enqueue", "one idempotency_key makes one job", enqueue),
    Check("claims", "limit, types and claim keys", claims),
    Check("one-winner", "one of many claims at the same time wins a job", one_winner),
    Check("long-poll", "a waiting claim gets a job that is made later", long_poll),
    Check("heartbeat", "a heartbeat extends the lease", heartbeat),
    Check("fence", "nobody but the holder changes a job", fence),
    Check("completion", "a job ends once, and a repeat gets the same answer", completion),
    Check("failures", "failures are tried again while the budget lasts", failures),
    Check("given-back", "snoozed and handed back jobs lose nothing", given_back),
    Check("cancels", "soft and hard cancel", cancels),
    Check("lost-lease", "a lost lease moves the job, and late calls are refused", lost_lease),
    Check("batches", "each part of a batch has its own answer", batches),
    Check("wrong-calls", "wrong calls are refused in the common form", wrong_calls),
)
