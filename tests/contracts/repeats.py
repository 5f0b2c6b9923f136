"""What the tests of repeated requests share: jobs in hand, a holder's verbs with a key, and every row there is."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from uuid import uuid4

from tenure.contracts import BUILT_IN
from tenure.errors import Refused
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

#: Every contract takes this failure for one that may work next time.
TRANSIENT = Failure("no answer", type="TransientError", retryable=True)
#: Under every contract this one ends a job whose budget is spent.
FATAL = Failure("broken for good", type="PermanentError", code="BROKEN", retryable=False)

#: What ends a job, and what gives it back, under each contract; `end` is a failure that leads to no retry.
ENDS = {
    "standard": ("succeed", "end", "cancelled"),
    "phase27": ("succeed", "end"),
    "dispatcher": ("succeed", "end", "cancelled"),
    "reliability": ("succeed", "end", "cancelled", "compensated", "compensation_failed"),
    "simple": ("succeed", "end", "cancelled"),
    "gate_b2": ("succeed", "end"),
}
GIVES_BACK = {
    "standard": ("fail", "snooze", "hand_back"),
    "phase27": ("fail",),
    "dispatcher": ("fail", "hand_back"),
    "reliability": ("fail", "hand_back"),
    "simple": ("fail", "hand_back"),
    "gate_b2": ("fail", "hand_back"),
}
#: What a holder says and holds on.
HOLDS_ON = {"reliability": ("start", "heartbeat")}

KEYED = {contract: (*HOLDS_ON.get(contract, ()), *GIVES_BACK[contract], *ENDS[contract]) for contract in BUILT_IN}


def new_job(contract: str, verb: str = "", **given: Any) -> NewJob:
    """A job alone in a queue of its own; one that is to end by a failure has a single run, where that is allowed."""
    if verb == "end" and BUILT_IN[contract].budget.minimum <= 1:
        given = {"max_attempts": 1, **given}
    return NewJob("t", contract=contract, queue=uuid4().hex, **given)


async def hold(store: Store, contract: str, verb: str = "", **given: Any) -> Job:
    """A job in the hands of a holder who may say this verb next."""
    new = new_job(contract, verb, **given)
    await store.enqueue(new)
    (job,) = await store.claim(contract, [new.queue], worker="w1")
    if verb != "start":
        await store.start(job.held)
    if verb.startswith("compensat"):
        await store.effect(job.held, "charge", compensable=True)
        assert (await store.fail(job.held, FATAL)).compensate == ("charge",)
    return job


async def next_holder(store: Store, db: Harness, job: Job, worker: str = "w2") -> Job:
    """Somebody else takes the job, whose lease is over or was given back; where the contract has that step, starts."""
    db.sql(
        "update tenure.job set lease_expires_at = now() - interval '1 s' where id = %s and lease_token notnull", job.id
    )
    await store.reap(job.contract)
    db.due(job.id)
    await store.promote(job.contract)
    (taken,) = await store.claim(job.contract, [job.queue], worker=worker)
    assert (taken.id, taken.claims) == (job.id, job.claims + 1)
    await store.start(taken.held)
    return taken


def say(store: Store, verb: str, held: Held, key: str | None = None, *, other: bool = False) -> Awaitable[Any]:
    """One call of a holder; `other` gives the same verb another body."""
    failure = Failure("something else", type="PermanentError", retryable=False)
    match verb:
        case "start":
            return store.start(held, key=key)
        case "heartbeat":
            return store.heartbeat(held, key=key)
        case "succeed":
            return store.succeed(held, {"n": 2 if other else 1}, key=key)
        case "fail":
            return store.fail(held, failure if other else TRANSIENT, key=key)
        case "end":
            return store.fail(held, failure if other else FATAL, key=key)
        case "snooze":
            return store.snooze(held, 9_000 if other else 5_000, key=key)
        case "hand_back":
            return store.hand_back(held, 9_000 if other else 5_000, key=key)
        case "cancelled":
            return store.cancelled(held, "tired" if other else "asked to", key=key)
        case "compensated":
            return store.compensated(held, key=key)
        case "compensation_failed":
            return store.compensation_failed(held, failure if other else FATAL, key=key)
    raise AssertionError(verb)


async def refusal_of(call: Awaitable[Any]) -> Refused:
    """The refusal that a call raises."""
    try:
        answer = await call
    except Refused as refusal:
        return refusal
    raise AssertionError(f"the call was answered {answer!r}")


def everything(db: Harness) -> list[Any]:
    """Every row that a call could have written, with the transaction that wrote it."""
    tables = ("job", "job_done", "event", "key", "claim", "dead_letter", "rerun", "effect", "outbox")
    return [db.sql(f"select xmin::text, r.* from tenure.{table} as r order by r::text") for table in tables]
