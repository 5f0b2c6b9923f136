"""The task queue in the words of document 003: tasks, attempts, `max_retries`, `eta`, TaskResult.

    enqueue ─▶ PENDING ─ dequeue ─▶ RUNNING ─ complete_task ─▶ SUCCESS
                  ▲                    └───── fail_task ─────▶ FAILED ─┐
                  └──────── with an eta, while attempts < max_retries ─┘

`fail_task` is the only way in which a failure is written, and it alone decides: a worker reports what happened, and the
queue answers whether and when the task runs again. Workers beside the database and the dispatcher's routes report their
failures through it (`FailureReporter`). A task that ended has one TaskResult, which never changes. The statuses are the
contract's own: under another contract than `simple` they are its document's words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from tenure.client.batching import Batcher
from tenure.contracts.declaration import HELD
from tenure.errors import BadInput, JobNotFound, Refused
from tenure.jobs import validation
from tenure.jobs.expiry import Expires, parse_expires
from tenure.jobs.holder_call import HOLDER_VERBS, HolderCall
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.live_worker import process_name
from tenure.jobs.outcome import Moved, Noted
from tenure.jobs.unique import OnConflict, UniqueOption, unique_rule

if TYPE_CHECKING:
    from tenure.postgres.engine import Pool
    from tenure.postgres.store import Store


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as its row was when it was read."""

    id: int
    type: str
    payload: Any
    status: str
    attempts: int
    max_retries: int
    eta: datetime | None
    #: The last failure, or None.
    error: Mapping[str, Any] | None
    queue: str
    priority: int
    tenant_id: str
    trace_id: str
    correlation_id: str
    created_at: datetime
    updated_at: datetime
    last_attempt_at: datetime | None
    worker: str | None
    lease_expires_at: datetime | None
    #: The proof of the lease that the holder of a RUNNING task gives with every call; None while no worker holds it.
    held: Held | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The queue's decision about a failure; `eta` is the row's, and None if the task does not run again."""

    task_id: int
    will_retry: bool
    eta: datetime | None
    attempts: int
    status: str
    failed_at: datetime
    delay_ms: int | None
    #: The move in the engine's terms.
    moved: Moved
    #: Not failed yet: these nodes' effects are to be undone first, in this order, under the lease that is kept.
    compensate: tuple[str, ...] = ()

    @classmethod
    def of(cls, moved: Moved) -> Self:
        """The decision that a move stands for."""
        return cls(
            task_id=moved.job_id,
            will_retry=moved.will_retry,
            eta=moved.due_at if moved.will_retry else None,
            attempts=moved.claims,
            status=moved.state,
            failed_at=moved.at,
            delay_ms=moved.delay_ms if moved.will_retry else None,
            compensate=moved.compensate,
            moved=moved,
        )


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended: exactly one for each ended task; `error` is the failure that ended it."""

    task_id: int
    status: str
    result: Any
    error: Mapping[str, Any] | None
    finished_at: datetime
    attempts: int
    last_attempt_at: datetime | None


class AsyncTaskQueue:
    """A queue of tasks on PostgreSQL: give it an address, or an open pool that it uses and leaves open."""

    def __init__(
        self,
        source: str | Pool,
        contract: str = "simple",
        *,
        numbers: Mapping[str, Mapping[str, int]] | None = None,
        max_bytes: int = validation.MAX_BYTES,
        connections: int = 4,
    ) -> None:
        if not isinstance(source, str):
            from tenure.postgres.shared_sessions import check_pool

            source = check_pool(source)
        self.contract = contract
        self._source = source
        self._lent = False
        self._numbers = numbers
        self._max_bytes = max_bytes
        self._connections = connections
        self._store: Store | None = None
        self._closed = False
        self._connecting = asyncio.Lock()
        self._failures: Batcher[HolderCall, Moved] = Batcher(self._report_failures)

    @classmethod
    def _over(cls, store: Store, contract: str) -> Self:
        """A queue on an open store, which stays open when the queue is closed."""
        queue = cls("", contract)
        queue._store, queue._lent = store, True
        return queue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the queue's own connections; a pool given by the caller stays open."""
        async with self._connecting:  # waits for a first use that connects at this moment
            self._closed = True
            if self._store is not None and not self._lent:
                await self._store.close()
            self._store = None

    async def enqueue(
        self,
        type: str,
        payload: Any = None,
        *,
        queue: str = "default",
        priority: int = 5,
        eta: datetime | None = None,
        delay: timedelta | float | None = None,
        max_retries: int | None = None,
        key: str | None = None,
        tenant_id: str = "default",
        trace_id: str | None = None,
        correlation_id: str | None = None,
        notify: bool = True,
        unique: UniqueOption | None = None,
        unique_by: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        expires: Expires | None = None,
    ) -> int:
        """Make a task, PENDING, due at its eta; its id. With a key, at most once. `notify`: tell listening workers.

        A `unique` task returns the id of the one that is in the way. One that has not begun at `expires` is cancelled.
        """
        expires_at, expires_ms = parse_expires(expires)
        job = NewJob(
            type, {} if payload is None else payload, contract=self.contract, queue=queue, priority=priority,
            run_at=eta, delay_ms=validation.to_milliseconds("delay", delay), max_attempts=max_retries, key=key,
            tenant_id=tenant_id, trace_id=trace_id, correlation_id=correlation_id, notify=notify,
            unique=unique_rule(unique, unique_by, on_conflict), expires_at=expires_at, expires_ms=expires_ms,
        )  # fmt: skip
        return (await (await self._opened()).enqueue(job)).job_id

    async def dequeue(
        self,
        worker: str | None = None,
        queues: Sequence[str] = ("default",),
        *,
        lease: timedelta | float | None = None,
        claim_key: UUID | str | None = None,
    ) -> TaskRow | None:
        """Take a task that is due; it is RUNNING under a lease. None when none is due."""
        tasks = await self.dequeue_many(1, worker, queues, lease=lease, claim_key=claim_key)
        return tasks[0] if tasks else None

    async def dequeue_many(
        self,
        limit: int,
        worker: str | None = None,
        queues: Sequence[str] = ("default",),
        *,
        lease: timedelta | float | None = None,
        claim_key: UUID | str | None = None,
    ) -> list[TaskRow]:
        """Take up to `limit` tasks that are due."""
        store = await self._opened()
        name = process_name() if worker is None else worker
        jobs = await store.claim(
            self.contract,
            queues,
            worker=name,
            limit=limit,
            claim_key=claim_key,
            lease_ms=validation.to_milliseconds("lease", lease),
        )
        # Under some contracts the start is a step of its own: a dequeued task is started at once.
        claimed = [n for n, job in enumerate(jobs) if job.role == "leased"]
        started = await store.report("start", [HolderCall(jobs[n].held) for n in claimed])
        for n, moved in zip(claimed, started, strict=True):
            if isinstance(moved, Moved):
                jobs[n] = jobs[n]._replace(state=moved.state, role=moved.role, updated_at=moved.at)
        return [_task(job) for job in jobs if job.role == "active"]

    async def complete_task(self, task: TaskRow | Held, result: Any = None) -> None:
        """End a task well, with its result; refused when the caller does not hold it."""
        held = self._own(task)
        await (await self._opened()).succeed(held, result)

    async def fail_task(
        self,
        task: TaskRow | Held,
        error: BaseException | Failure | str,
        *,
        retry: bool | None = None,
        key: str | None = None,
        events: Sequence[Any] | None = None,
    ) -> Decision:
        """Report that a task failed; the queue decides whether and when it runs again.

        `retry` is a fact about the error, which the contract judges; the queue counts the attempts.
        With a `key`, the same report again gets the same answer. `events` are stored with the failure, or not at all.
        """
        held, failure = self._own(task), _failure(error)
        if retry not in (None, True, False):
            raise BadInput(f"retry says whether the error may pass, True or False, not {retry!r}")
        if retry is not None:
            failure = replace(failure, retryable=retry)
        call = HolderCall(held, key, failure=failure, events=events or ())
        return Decision.of(await self._failures.ask(call))

    async def _report_failures(self, calls: Sequence[HolderCall]) -> Sequence[Moved | Refused]:
        """Report the failures that arrived at the same time, together."""
        store = await self._opened()
        return await store.report("fail", calls)

    async def heartbeat(self, task: TaskRow | Held) -> Noted:
        """Report that the work goes on; renews the lease when half of it is gone. The answer tells whether to stop."""
        held = self._own(task)
        return await (await self._opened()).heartbeat(held)

    async def cancel_task(
        self, task: TaskRow | int, *, mode: str = "soft", reason: str | None = None, actor: str = "unknown"
    ) -> bool:
        """Cancel a task: True when it is cancelled now, False when a worker runs it and was asked to stop."""
        job = await self._job(task)
        answer = await (await self._opened()).cancel(job.id, mode=mode, reason=reason, actor=actor)
        return isinstance(answer, Moved)

    async def move_task(
        self, task: TaskRow | int, queue: str, *, reason: str | None = None, actor: str = "unknown"
    ) -> bool:
        """Move a task that no worker holds to another queue; whether it was in a different one before."""
        job = await self._job(task)
        (answer,) = await (await self._opened()).change_queue([job.id], queue, reason=reason, actor=actor)
        if isinstance(answer, Refused):
            raise answer
        return answer.changed

    async def get_task(self, task: TaskRow | int) -> TaskRow:
        """The task as it is now, finished or not."""
        return _task(await self._job(task))

    async def get_result(self, task: TaskRow | int) -> TaskResult | None:
        """How the task ended; None before its end."""
        job = await self._job(task)
        if job.role != "done" or job.finished_at is None:
            return None
        error = job.last_error
        return TaskResult(
            task_id=job.id,
            status=job.state,
            result=job.result,
            # The failure of an earlier attempt did not end it.
            error=error if error and error.get("terminal") else None,
            finished_at=job.finished_at,
            attempts=job.claims,
            last_attempt_at=job.started_at,
        )

    async def _opened(self) -> Store:
        """The store; the first caller connects."""
        if self._store is not None:
            return self._store
        async with self._connecting:
            if self._closed:
                raise BadInput("this queue is closed. Next: make another one")
            if self._store is None:
                self._store = await self._connect()
            return self._store

    async def _connect(self) -> Store:
        from tenure.postgres.connect import CALL_TIMEOUT_MS
        from tenure.postgres.engine import Engine
        from tenure.postgres.store import Store

        if isinstance(self._source, str):
            return await Store.connect(
                self._source, numbers=self._numbers, max_bytes=self._max_bytes, connections=self._connections,
                statement_ms=CALL_TIMEOUT_MS,
            )  # fmt: skip
        return Store(Engine.on_pool(self._source, self._numbers), self._max_bytes)

    async def _job(self, task: TaskRow | int) -> Job:
        task_id = validation.check_integer(
            "task id", task.id if isinstance(task, TaskRow) else task, 1, validation.MAX_ID
        )
        found = await (await self._opened()).jobs([task_id])
        if not found:
            raise JobNotFound(task_id)
        self._of_this_contract(task_id, found[0].contract)
        return found[0]

    def _own(self, task: TaskRow | Held) -> Held:
        """The proof of a lease; refused for a task that no worker held when it was read."""
        held = task.held if isinstance(task, TaskRow) else task
        if not isinstance(held, Held):
            raise BadInput(f"give a task as dequeue gave it, not {task!r}")
        self._of_this_contract(held.id, held.contract)
        return held

    def _of_this_contract(self, task_id: int, contract: str) -> None:
        if contract != self.contract:
            raise Refused(
                task_id,
                f"task {task_id} is under contract {contract}, and this queue is of {self.contract}. "
                f"Next: ask AsyncTaskQueue(…, contract={contract!r})",
                code="WRONG_CONTRACT",
            )


class FailureReporter:
    """Reports failures of jobs of any contract by `fail_task` of the contract's queue, on one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queues: dict[str, AsyncTaskQueue] = {}

    async def report(self, call: HolderCall) -> Moved:
        """Report a failure; failures that arrive at the same time go in one statement per contract."""
        contract = call.held.contract
        queue = self._queues.get(contract)
        if queue is None:
            queue = self._queues[contract] = AsyncTaskQueue._over(self._store, contract)
        failure = call.failure or Failure("failed")
        return (await queue.fail_task(call.held, failure, key=call.key, events=call.events)).moved

    async def flush(self) -> None:
        """Wait until every reported failure is answered."""
        for queue in list(self._queues.values()):
            await queue._failures.flush()


class HolderReports:
    """Reports holders' verbs on one open store, in batches with concurrent calls; failures by `fail_task`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failures = FailureReporter(store)
        self._batchers: dict[str, Batcher[HolderCall, Any]] = {
            name: Batcher(partial(store.report, name)) for name, verb in HOLDER_VERBS.items() if verb.is_batched
        }

    def report(self, verb: str, call: HolderCall) -> Awaitable[Any]:
        """Report a verb for one job; the answer, or its refusal."""
        if verb == "fail":
            return self._failures.report(call)
        if call.outputs or call.dataset_events:  # alone: others would wait for its rows
            return self._store.report_one(verb, call)
        return self._batchers[verb].ask(call) if verb in self._batchers else self._store.report_one(verb, call)

    async def flush(self) -> None:
        """Wait until every reported verb is answered."""
        for batcher in self._batchers.values():
            await batcher.flush()
        await self._failures.flush()


def _task(job: Job) -> TaskRow:
    return TaskRow(
        id=job.id, type=job.type, payload=job.payload, status=job.state, attempts=job.claims,
        max_retries=job.max_attempts, eta=job.due_at, error=job.last_error, queue=job.queue, priority=job.priority,
        tenant_id=job.tenant_id, trace_id=job.trace_id, correlation_id=job.correlation_id, created_at=job.created_at,
        updated_at=job.updated_at, last_attempt_at=job.started_at, worker=job.lease_owner,
        lease_expires_at=job.lease_expires_at, held=job.held if job.role in HELD else None,
    )  # fmt: skip


def _failure(error: BaseException | Failure | str) -> Failure:
    if isinstance(error, str):
        return Failure(error)
    if isinstance(error, BaseException):
        return Failure.of(error)
    if not isinstance(error, Failure):
        raise BadInput(f"give the exception that was raised, a Failure or a message, not {error!r}")
    return error
