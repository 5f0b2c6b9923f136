"""Routes for operators: change jobs and queues, and look at queues and workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, StrictBool, StrictStr

from tenure.http import response
from tenure.http.application import ApiRequest
from tenure.http.models import fields
from tenure.http.models.fields import RequestBody, described, optional
from tenure.http.models.outcomes import Move, Note, Taken
from tenure.postgres.engine import only_answer


class Cancel(RequestBody):
    """An operator cancels a job."""

    mode: Literal["soft", "hard"] = described(
        "soft (the default) asks the holder to stop, hard revokes its lease.", default="soft"
    )
    reason: fields.ReasonForLog = None
    idempotency_key: fields.IdempotencyKey = None


class CancelAnswer(RootModel[Move | Note]):
    """The job is cancelled. A note: its holder is asked to stop."""


class Transition(RequestBody):
    """An operator moves a job to a state."""

    to: Annotated[StrictStr, fields.text("state")] = described(
        "The state, in the contract's words.", examples=["cancelled"]
    )
    reason: fields.ReasonForLog = None
    idempotency_key: fields.IdempotencyKey = None


class TransitionAnswer(RootModel[Move | Taken]):
    """The job is in that state; if that state has a holder, the operator holds it."""


class ResumeQueue(RequestBody):
    """An operator resumes a queue."""

    queue: Annotated[fields.Queue, described("The queue's name.")]


class PauseQueue(ResumeQueue):
    """An operator pauses a queue."""

    reason: fields.ReasonForLog = None


class MoveToQueue(RequestBody):
    """An operator moves a job without a holder to another queue."""

    queue: Annotated[fields.Queue, described("The queue's name.")]
    reason: fields.ReasonForLog = None
    idempotency_key: fields.IdempotencyKey = None


class QueueOfJob(BaseModel):
    """The queue of a job."""

    id: fields.JobId
    queue: fields.QueueName
    before: str = described("The queue before the call.", examples=["mial"])
    changed: bool = described("Whether the call changed it.", examples=[True])


class RetryNow(RequestBody):
    """An operator lets a job that waits for its retry run now."""

    reason: fields.ReasonForLog = None
    idempotency_key: fields.IdempotencyKey = None


class JobDue(BaseModel):
    """A job that is due."""

    id: fields.JobId
    due: Literal[True] = described("It may be claimed.")


class DeadLetter(RequestBody):
    """An operator sets a job aside."""

    reason_code: Annotated[StrictStr, fields.text("reason_code")] = described(
        "Why, as a code; some contracts accept only certain codes.", examples=["policy"]
    )
    stage: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = optional(
        "The stage of the work; default none."
    )
    message: Annotated[StrictStr, Field(max_length=8_000)] = described("Why, for people; default empty.", default="")
    idempotency_key: fields.IdempotencyKey = None


class Requeue(RequestBody):
    """An operator runs a finished job, or a dead letter's job, again."""

    payload: Any = optional("The payload of the new job; default as it was.", examples=[{"to": "a@b.c"}])
    changes: list[tuple[list[StrictStr], Any]] | None = optional(
        "Other values in the payload, each with its path.", examples=[[[["user", "id"], 7]]]
    )
    again: StrictBool = described("If it was run again already: run the newest run of it again.", default=False)
    idempotency_key: fields.IdempotencyKey = None


class JobRequeued(BaseModel):
    """A finished job, and the new job that runs it again."""

    id: fields.JobId
    requeued_as: fields.Id = described("The id of the new job.", examples=["43"])


class PausedQueue(BaseModel):
    """A queue's pause: since when, by whom, and why."""

    at: datetime = described("When it was paused.")
    by: str = described("Who paused it.", examples=["ann"])
    reason: str | None = described("Why; null: no reason was given.")


class UnservedType(BaseModel):
    """A job type in a queue that no live worker claims; its jobs wait."""

    contract: fields.ContractName
    type: fields.TypeName
    jobs: int = described("Its jobs among the first of the queue; there may be more.")
    since: datetime | None = described("Since when the oldest of them is due.")
    why: str = described("Why no worker claims it.", examples=["no live worker knows type send"])
    workers: list[str] = described("Some live workers: of this queue, or of others if it has none.", examples=[["w1"]])


class Queue(BaseModel):
    """A queue now, over all contracts."""

    name: str = described("Its name.", examples=["mail"])
    ready: int = described("Jobs that are due and will be claimed next.")
    delayed: int = described("Jobs that are ready but not due yet.")
    waiting: int = described("Jobs that upkeep will make ready.")
    held: int = described("Jobs with a holder.")
    quarantined: int = described("Jobs that claims skip, because they cannot be logged.")
    oldest: datetime | None = described("Since when the oldest ready job is due; null: there is none.")
    at_least: list[str] = described("Which of the counts are lower bounds.", examples=[["ready"]])
    paused: PausedQueue | None = described("Its pause; null: it is not paused.")
    unserved_types: list[UnservedType] = described("Types of its due jobs that no live worker claims.")


class QueueList(BaseModel):
    """Queues that have live jobs or are paused."""

    queues: list[Queue] = described("The queues, by name.")


class QueueChanged(BaseModel):
    """A queue that was paused or resumed."""

    queue: str = described("The queue's name.", examples=["mail"])
    changed: bool = described("Whether this call changed it.", examples=[True])
    paused: PausedQueue | None = described("Its pause; null: it is not paused.")


class Worker(BaseModel):
    """A live worker, or another holder of jobs; of the latter only what it holds is known."""

    worker_id: str = described("The worker's name.", examples=["w1"])
    held: int = described("How many jobs it holds.")
    since: datetime | None = described("Since when it holds the oldest of them; null: it holds none.")
    last_heartbeat_at: datetime | None = described("Its last heartbeat for a job that it holds.")
    lease_expires_at: fields.LeaseEnd
    host: str | None = described("The machine that it runs on.", examples=["box-7"])
    pid: int | None = described("Its process id.", examples=[4711])
    version: str | None = described("The version of its software.", examples=["0.1.0"])
    application: str | None = described("The application that it runs.", examples=["shop"])
    queues: list[str] | None = described("The queues that it claims from.", examples=[["mail"]])
    contracts: list[str] | None = described("The contracts whose jobs it claims.", examples=[["standard"]])
    types: list[str] | None = described("The types that it claims; null: any, or unknown.")
    slots: int | None = described("How many jobs it runs at the same time.", examples=[50])
    busy: int | None = described("How many jobs it ran when last seen; 0 if it did not report it.")
    started_at: datetime | None = described("When it was first seen.")
    last_seen_at: datetime | None = described("When it was last seen; null: it only holds jobs.")
    through: str | None = described("The dispatcher that it works through; null: none.")
    release: str | None = described("The version of its application; null: it names none.", examples=["2026.11.2"])
    loop_lag_s: float | None = described(
        "The longest delay of its event loop in the seconds before it was last seen; null: it did not report it.",
        examples=[0.002],
    )
    silent_s: float | None = described("Seconds since it was last seen; null: it only holds jobs.")
    jobs: list[str] = described("The ten jobs that it has held longest, by id.", examples=[["42"]])
    silent: bool = described("Whether it has not been seen for 20 seconds: it died, or has no connection.")


class PastWorker(BaseModel):
    """A worker that is gone."""

    worker_id: str = described("The worker's name.", examples=["w1"])
    ending: Literal["stopped", "lost"] = described("It stopped, or it was not seen any more.")
    started_at: datetime = described("When it was first seen.")
    last_seen_at: datetime = described("When it was last seen.")
    gone_at: datetime = described("When it stopped, or was taken from the list.")
    busy: int = described("How many jobs it ran when it was last seen.")
    host: str | None = described("The machine that it ran on.", examples=["box-7"])
    pid: int | None = described("Its process id.", examples=[4711])
    application: str | None = described("The application that it ran.", examples=["shop"])
    release: str | None = described("The version of its application.", examples=["2026.11.2"])
    queues: list[str] = described("The queues that it claimed from.", examples=[["mail"]])


class WorkerList(BaseModel):
    """The live workers, and all other holders of jobs."""

    workers: list[Worker] = described("The workers, by name.")
    gone: list[PastWorker] = described("Those that went in the last hour, the last one first; at most 50.")


async def _operate(request: ApiRequest, operation: Callable[..., Awaitable[Any]], body: Any) -> Any:
    """Call an operation of the store with the fields of the body; refuses a job of another tenant."""
    key = request.idempotency_key(body.idempotency_key)
    fields = body.model_dump(exclude={"idempotency_key"})
    return await operation(await request.own_job_id(), **fields, actor=request.caller.actor, key=key)


async def cancel_job(request: ApiRequest, body: Cancel) -> dict[str, Any]:
    """Cancel a job. hard: at once; soft: at once if it has not started, else its holder is asked to stop."""
    return response.outcome(await _operate(request, request.calls.store.cancel, body))


async def move_job(request: ApiRequest, body: Transition) -> dict[str, Any]:
    """Move a job to a state, by the path and guards of the trigger; refused if the contract has no such hop."""
    return response.outcome(await _operate(request, request.calls.store.transition, body))


async def move_job_to_queue(request: ApiRequest, body: MoveToQueue) -> dict[str, Any]:
    """Move a job without a holder to another queue; its state, due time and attempts stay."""

    async def move(job_id: int, queue: str, **options: Any) -> dict[str, Any]:
        change = only_answer(await request.calls.store.change_queue([job_id], queue, **options))
        return {"id": str(job_id), "queue": change.queue, "before": change.before, "changed": change.changed}

    return dict(await _operate(request, move, body))


async def retry_job_now(request: ApiRequest, body: RetryNow) -> dict[str, Any]:
    """Let a job that waits for its retry run now; refused where its contract forbids it."""

    async def retry(job_id: int, **options: Any) -> dict[str, Any]:
        job = only_answer(await request.calls.store.retry_now([job_id], **options))
        return {"id": str(job), "due": True}

    return dict(await _operate(request, retry, body))


async def dead_letter_job(request: ApiRequest, body: DeadLetter) -> dict[str, Any]:
    """Set a job aside, with its reason."""
    return response.outcome(await _operate(request, request.calls.store.dead_letter, body))


async def requeue_job(request: ApiRequest, body: Requeue) -> dict[str, Any]:
    """Run a finished job again, as a new job that points back to it."""
    new_id = await _operate(request, request.calls.store.requeue, body)
    return {"id": str(request.job_id), "requeued_as": str(new_id)}


async def list_queues(request: ApiRequest) -> dict[str, Any]:
    """The queues that have live jobs or are paused, with their counts over all tenants."""
    request.caller.require_all_tenants()
    return {"queues": [response.queue(queue) for queue in await request.calls.store.queues.list()]}


async def pause_queue(request: ApiRequest, body: PauseQueue) -> dict[str, Any]:
    """Stop claims from a queue. Held jobs go on, and a claim by job id still works."""
    request.caller.require_all_tenants()
    actor = request.caller.actor
    paused, is_new = await request.calls.store.queues.pause(body.queue, actor=actor, reason=body.reason)
    return {"queue": body.queue, "changed": is_new, "paused": asdict(paused)}


async def resume_queue(request: ApiRequest, body: ResumeQueue) -> dict[str, Any]:
    """Allow claims from a queue again."""
    request.caller.require_all_tenants()
    changed = await request.calls.store.queues.resume(body.queue, actor=request.caller.actor)
    return {"queue": body.queue, "changed": changed, "paused": None}


async def list_workers(request: ApiRequest) -> dict[str, Any]:
    """The live workers, busy or idle, and all other holders of jobs: what they claim and hold, and when last seen."""
    request.caller.require_all_tenants()
    workers = request.calls.store.workers
    return {
        "workers": [worker.to_json() for worker in await workers.list()],
        "gone": [worker._asdict() for worker in await workers.past()],
    }
