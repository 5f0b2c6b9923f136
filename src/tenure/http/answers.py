"""What the OpenAPI says of answers. They are written by `shown.py`; these models describe them, and a test compares."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

_TOLD = {"code": "LEASE_CONFLICT", "message": "job 42 is held by w2 since 12:03:07; nothing was stored"}


class Told(BaseModel):
    """What happened, whether to try again, and what to do next."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{**_TOLD, "retryable": False, "hint": "drop this work and claim again"}],
        }
    )
    code: str
    message: str
    retryable: bool
    hint: str | None


class Refusal(BaseModel):
    """The envelope of every refusal."""

    error: Told
    trace_id: str


class Failed(BaseModel):
    """One of many that was refused."""

    error: Told


class Made(BaseModel):
    """A job that exists: made by this call, or by an earlier one with the same key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "42", "made": True, "contract": "standard", "state": "queued", "queue": "default",
                    "type": "send", "tenant_id": "default",
                }
            ]
        }
    )  # fmt: skip
    id: str
    made: bool
    contract: str
    state: str
    queue: str
    type: str
    tenant_id: str


class MadeOne(BaseModel):
    """One of many jobs that exist."""

    id: str
    made: bool


class MadeMany(BaseModel):
    """What became of each."""

    jobs: list[MadeOne | Failed]


class Job(BaseModel):
    """A job with all that its row says."""

    id: str
    contract: str
    version: str
    state: str
    role: str
    queue: str
    type: str
    tenant_id: str
    priority: int
    claims: int
    raises: int
    counter: int
    max_attempts: int
    payload: Any
    lease_owner: str | None
    lease_expires_at: datetime | None
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    trace_id: str
    correlation_id: str
    idempotency_key: str | None
    origin_letter: str | None
    last_error: Any
    result: Any
    checkpoint: Any
    pending: Any
    #: The row of its contract's view.
    record: dict[str, Any] | None = None
    progress: Any = None
    dlq_id: str | None = None
    requeued_as: str | None = None


class Listed(BaseModel):
    """A job as a list shows it."""

    id: str
    contract: str
    state: str
    role: str
    queue: str
    type: str
    tenant_id: str
    priority: int
    claims: int
    counter: int
    max_attempts: int
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    last_error: dict[str, Any] | None


class JobPage(BaseModel):
    """Jobs that match, newest first; `stopped` says that so many others were looked at before the page was full."""

    jobs: list[Listed]
    next: str | None
    stopped: bool


class Event(BaseModel):
    """A row of a job's log."""

    job_id: str
    seq: int
    ts: datetime
    hop: bool
    trigger: str
    from_state: str
    to_state: str
    claims: int
    counter: int
    max_attempts: int
    actor: str
    reason: str | None
    facts: Any


class Events(BaseModel):
    """A job's log, in order."""

    events: list[Event]


class Won(BaseModel):
    """A job that was won, and what its holder shows from now on."""

    job: Job
    claims: int
    lease_token: str
    lease_expires_at: datetime
    lease_seconds: float | None
    execution_key: str


class Claims(BaseModel):
    """What was won."""

    claims: list[Won]


class Answer(BaseModel):
    """What became of a word: a move, or a note (`moved` is false)."""

    id: str
    moved: bool
    trigger: str | None = None
    from_state: str | None = None
    state: str | None = None
    role: str | None = None
    claims: int | None = None
    counter: int | None = None
    at: datetime | None = None
    due_at: datetime | None = None
    delay_ms: int | None = None
    will_retry: bool | None = None
    compensate: list[str] = []
    lease_expires_at: datetime | None = None
    lease_token: str | None = None
    cancel_requested: bool | None = None
    renewed: bool | None = None


class Answers(BaseModel):
    """What became of each."""

    answers: list[Answer | Failed]


class EffectOnRecord(BaseModel):
    """A side effect: recorded by this call, or had before with this result."""

    recorded: bool
    result: Any


class EffectUndone(BaseModel):
    """A node's effect is undone."""

    id: str


class Effects(BaseModel):
    """Nodes that have had their effect, newest first."""

    effects: dict[str, Any]


class DueContracts(BaseModel):
    """Contracts that have something to claim."""

    contracts: list[str]


class Stranger(BaseModel):
    """A due job of a type that the worker does not know."""

    id: str
    type: str


class StrangersFound(BaseModel):
    """Jobs that wait for a worker that knows them."""

    jobs: list[Stranger]


class Wakeup(BaseModel):
    """There may be jobs of this contract and queue; under `#` something was done to the job that `queue` names."""

    contract: str
    queue: str


class Wakeups(BaseModel):
    """What was heard since the cursor."""

    wakeups: list[Wakeup]
    cursor: str


class Declared(BaseModel):
    """How many types were declared."""

    declared: int


class Rerun(BaseModel):
    """A finished job, and the new one that runs it again."""

    id: str
    requeued_as: str


class Letter(BaseModel):
    """A dead letter, and what was decided about it."""

    model_config = ConfigDict(extra="allow")
    dlq_id: str
    id: str
    job_id: str
    contract: str
    tenant_id: str
    type: str
    reason_code: str
    status: Literal["open", "requeued", "discarded"]
    payload: Any
    last_error: Any


class LetterPage(BaseModel):
    """Dead letters, newest first."""

    items: list[Letter]
    next: str | None


class Requeued(BaseModel):
    """A dead letter that runs again as this job."""

    dlq_id: str
    job_id: str
    status: str


class Contract(BaseModel):
    """A lifecycle, as it is declared."""

    name: str
    version: str
    title: str
    declaration: dict[str, Any]


class Contracts(BaseModel):
    """The registered contracts."""

    contracts: list[Contract]


class Queue(BaseModel):
    """A queue as it is now, over all contracts."""

    name: str
    ready: int
    delayed: int
    waiting: int
    held: int
    oldest: datetime | None
    at_least: list[str]
    paused: dict[str, Any] | None


class Queues(BaseModel):
    """Queues that have live jobs or are paused."""

    queues: list[Queue]


class Worker(BaseModel):
    """Who holds jobs now."""

    worker_id: str
    held: int
    since: datetime | None
    last_heartbeat_at: datetime | None
    lease_expires_at: datetime | None


class Workers(BaseModel):
    """Those who hold jobs now."""

    workers: list[Worker]


class Task(BaseModel):
    """Document 001: what a worker is to do."""

    task_id: str
    attempt: int
    max_attempts: int
    type: str
    queue: str
    tenant_id: str
    payload: Any
    trace_id: str
    correlation_id: str
    created_at: datetime


class Claimed(BaseModel):
    """Document 001: the task is this worker's."""

    status: Literal["Claimed"]
    attempt: int
    lease_token: str
    lease_expires_at: datetime
    task: Task


class NotClaimed(BaseModel):
    """Document 001: the task is not to be had, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "NotClaimed", "reason": "AlreadyRunning"}]})
    status: Literal["NotClaimed"]
    reason: str


class TaskBeat(BaseModel):
    """Document 001: until when the task is held, and whether the worker is asked to stop."""

    lease_expires_at: datetime | None
    cancel_requested: bool


class TaskCompleted(BaseModel):
    """Document 001: what the task's status is now; a Failed one with a time runs again then."""

    status: str
    next_retry_at: datetime | None


class RunData(BaseModel):
    """Document 004: where the job stands after a run."""

    job_id: str
    final_status: str
    retry_count: int
    dlq_id: str | None
    retry_after_ms: int | None
    retry_at: datetime | None


class RunMeta(BaseModel):
    """Document 004: the ids of the request."""

    trace_id: str
    request_id: str


class Ran(BaseModel):
    """Document 004: a run that was made."""

    success: Literal[True]
    data: RunData
    meta: RunMeta


_WHY = {
    401: "No key, or none that is known and live.",
    403: "The key lacks the scope, or the job is another tenant's.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    409: "Refused: the database said no, and changed nothing.",
    413: "The body, or a document in it, is too large.",
    422: "The call itself was wrong; nothing was written.",
    503: "The database is away; ask again after the time that Retry-After says.",
}


def responses(model: Any, *, status: int = 200, refuses: tuple[int, ...] = (), body: bool = True) -> dict[Any, Any]:
    """What a route answers: well with this model, or with a refusal."""
    statuses = {401, 403, 422, 503, *refuses, *((408, 413) if body else ())}
    return {
        status: {"model": model, "description": (model.__doc__ or "").strip() if isinstance(model, type) else "Done."},
        **{code: {"model": Refusal, "description": _WHY[code]} for code in sorted(statuses)},
    }
