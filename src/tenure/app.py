"""An application: its declared tasks, and access to their jobs.

    App()        connects to nothing; the first enqueue, result or worker does
    @app.task    makes a task of a function (`app_tasks.py`)
    @app.every   enqueues a task again and again (`app_schedules.py`)
    app.flow     orders jobs by their dependencies (`app_flows.py`)
    app.dataset  versioned output of jobs (`app_datasets.py`)
    app.run_worker() or `tenure worker module:app`

Without DATABASE_URL the app starts the embedded PostgreSQL in `.tenure/`, creates its schema and logs a WARNING;
`embedded=False` or TENURE_REQUIRE_DATABASE=1 refuses this. With TENURE_DISPATCHER_URL all calls go through that
dispatcher; the process needs no database and no driver.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from tenure.app_datasets import DatasetVerbs
from tenure.app_flows import FlowVerbs
from tenure.app_operations import OperationVerbs
from tenure.app_schedules import ScheduleVerbs, declare_as_worker, declare_regularly, fingerprints
from tenure.app_tasks import TaskVerbs
from tenure.client.bulk_enqueue import BulkEnqueue, SendBatch
from tenure.client.connections import Connections
from tenure.client.garbage_collection import collect_seldom
from tenure.client.own_contracts import contracts_by_name, import_target
from tenure.client.polling import poll
from tenure.client.seen_workers import SeenWorkers
from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput, JobFailed, TenureError
from tenure.jobs import validation
from tenure.jobs.job import Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.keyword_options import only_known_options
from tenure.jobs.live_worker import LiveWorker, host_and_pid, module_name
from tenure.jobs.outcome import Enqueued
from tenure.middleware import Middleware, enqueue_through, run_without_waiting
from tenure.settings import Settings
from tenure.settings.parsers import parse_release
from tenure.task import CHILD, Call, Task, Ticket

if TYPE_CHECKING:
    from tenure.client.connections import JobClient
    from tenure.client.transaction_calls import TransactionCalls
    from tenure.jobs.connection_types import AsyncConnection, SyncConnection
    from tenure.jobs.holder_call import HolderCall
    from tenure.jobs.outcome import Moved, Noted
    from tenure.schedules.declaration import Schedule
    from tenure.worker import Worker

_log = logging.getLogger("tenure")
R = TypeVar("R")
T = TypeVar("T")

_AFTER_COMMIT = "Next: enqueue after the commit, with options(key=…) so that it can be repeated"
#: What to do instead of a call in the caller's own transaction when there is a dispatcher.
_REMOTE_NEXT = {
    "enqueue_in": _AFTER_COMMIT, "enqueue_many_in": _AFTER_COMMIT,
    "start_in": "Next: start the flow after the commit, with key=… so that it can be repeated",
    "complete_in": "Next: commit, then return the result from the handler",
}  # fmt: skip


class App(TaskVerbs, ScheduleVerbs, FlowVerbs, DatasetVerbs, OperationVerbs):
    """Tasks, and the database or the dispatcher that keeps their jobs."""

    @only_known_options("App")
    def __init__(
        self,
        database_url: str | None = None,
        *,
        dispatcher_url: str | None = None,
        key: str | None = None,
        name: str | None = None,
        contract: str = "standard",
        contracts: Iterable[Contract] = (),
        queue: str = "default",
        middleware: Sequence[Middleware] = (),
        settings: Settings | None = None,
        embedded: bool = True,
        release: str | None = None,
    ) -> None:
        own = contracts_by_name(contracts)
        #: The contracts that this application knows, by name: the built-in ones and its own.
        self.contracts: Mapping[str, Contract] = {**BUILT_IN, **own}
        settings = Settings.load(contracts=self.contracts) if settings is None else settings
        settings = settings.with_dispatcher(dispatcher_url, key)
        settings = settings if embedded else replace(settings, require_database=True)
        self.settings = settings if release is None else replace(settings, release=parse_release("release", release))
        self.name = None if name is None else _namespace(name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.middleware = tuple(middleware)
        self._contract, self._queue = contract, queue
        self._declared: set[JobType] = set()
        self._schedules: dict[str, Schedule] = {}
        self._init_datasets()
        self._seen_workers = SeenWorkers()
        self._module = module_name(sys._getframe(2).f_globals)  # behind the check of the options
        self._transaction_calls: TransactionCalls | None = None
        self._connections = Connections(
            database_url or self.settings.database_url, self.settings, self._forget, self._seen_workers.close,
            contracts=own, import_target=lambda: import_target(self, self._module),
        )  # fmt: skip

    @property
    def application(self) -> str:
        """The owner of options, workers and warnings: the app's name, else the module that created it."""
        return getattr(self, "name", None) or self._module

    async def enqueue_many(
        self,
        calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]],
        *,
        batch: int = 1_000,
        progress: Callable[[int], None] | None = None,
    ) -> list[int]:
        """Enqueue any number of calls, batch by batch; returns their ids and calls `progress` with the count so far."""
        validation.check_integer("batch", batch, 1, validation.MAX_BATCH)
        bulk, waiting = BulkEnqueue(self._ready_to_make, progress), list[NewJob]()
        try:
            async for call in _each(calls):
                waiting.append(_job_of(call))
                if len(waiting) == batch:
                    await bulk.send(waiting)
                    waiting = []
            if waiting:
                await bulk.send(waiting)
            await bulk.wait()
        except BaseException as error:
            await bulk.add_notes(error)
            raise
        return bulk.ids

    @overload
    def enqueue_many_in(
        self, connection: SyncConnection, calls: Iterable[Call[Any]], *, batch: int = 1_000,
        progress: Callable[[int], None] | None = None,
    ) -> list[int]: ...  # fmt: skip
    @overload
    def enqueue_many_in(
        self, connection: AsyncConnection, calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]], *, batch: int = 1_000,
        progress: Callable[[int], None] | None = None,
    ) -> Awaitable[list[int]]: ...  # fmt: skip
    def enqueue_many_in(
        self, connection: Any, calls: Any, *, batch: int = 1_000, progress: Callable[[int], None] | None = None
    ) -> Any:
        """Enqueue any number of calls in the caller's own transaction, batch by batch; returns their ids.

        With an asynchronous connection the result must be awaited. A key that stands for other work raises
        IdempotencyConflict; jobs that were made before it stay in the transaction.
        """
        validation.check_integer("batch", batch, 1, validation.MAX_BATCH)

        async def jobs() -> AsyncIterator[NewJob]:
            async for call in _each(calls):
                yield _job_of(call)

        return self._in_transaction(
            connection, "enqueue_many_in", lambda known: known.enqueue_many(connection, jobs(), batch, progress)
        )

    @overload
    async def result(self, job: Ticket[R], *, timeout: float | None = None) -> R: ...
    @overload
    async def result(self, job: int, *, timeout: float | None = None) -> Any: ...
    async def result(self, job: Ticket[Any] | int, *, timeout: float | None = None) -> Any:
        """Wait for a job's end and return its result; raises JobFailed without success, TimeoutError when late.

        For a task of this app it is the value that the return annotation says, or ResultDoesNotFit is raised.
        """
        found = await poll(lambda: self.job(job), lambda found: found.role == "done", timeout)
        contract = await self._contract_of(found)
        if found.state not in contract.successes():
            raise JobFailed(found.id, found.state, found.last_error)
        task = self.tasks.get(found.type)
        return found.result if task is None else task.signature.read_result(found.id, found.result)

    @overload
    def result_sync(self, job: Ticket[R], *, timeout: float | None = None) -> R: ...
    @overload
    def result_sync(self, job: int, *, timeout: float | None = None) -> Any: ...
    def result_sync(self, job: Ticket[Any] | int, *, timeout: float | None = None) -> Any:
        """`result`, from synchronous code."""
        return self._connections.wait(self.result(job, timeout=timeout))

    async def job(self, job: Ticket[Any] | int) -> Job:
        """Return a job as it is now, live or finished."""
        job_id = validation.check_integer("job", _id(job), 1, validation.MAX_ID)
        return await (await self._client()).job(job_id)

    async def cancel(
        self,
        job: Ticket[Any] | int,
        *,
        mode: Literal["soft", "hard"] = "soft",
        reason: str | None = None,
        actor: str = "app",
    ) -> Moved | Noted:
        """Cancel a job: hard at once; soft at once unless it runs, then its handler is asked to stop.

        The log names the actor, or the owner of the API key if the call goes through a dispatcher.
        """
        return await (await self._client()).cancel(_id(job), mode=mode, reason=reason, actor=actor)

    async def transition(
        self, job: Ticket[Any] | int, state: str, *, reason: str | None = None, actor: str = "app"
    ) -> Moved:
        """Move a job to a state by a path of its contract, as a person's decision does: `"approved"`.

        The log names the reason, and the actor or the owner of the API key if the call goes through a dispatcher.
        Refused when the contract has no such path from the job's state, and for a claim, which is a worker's.
        """
        found = await self.job(job)
        contract = await self._contract_of(found)
        if any(path.trigger == "claim" and path.end.state == state for path in contract.paths):
            raise BadInput(f"a job becomes {state} by a claim, which a worker makes. Next: run a worker")
        return await (await self._client()).transition(found.id, state, reason=reason, actor=actor)

    def transition_sync(
        self, job: Ticket[Any] | int, state: str, *, reason: str | None = None, actor: str = "app"
    ) -> Moved:
        """`transition`, from synchronous code."""
        return self._connections.wait(self.transition(job, state, reason=reason, actor=actor))

    async def _contract_of(self, job: Job) -> Contract:
        """Return the contract of a job: as this application knows it, else the newest one, which has all of it."""
        known = self.contracts.get(job.contract)
        if known is not None and known.version == job.version:
            return known
        return (await (await self._client()).contracts())[job.contract]

    @only_known_options("app.run_worker")
    def run_worker(
        self,
        *,
        until_idle: bool = False,
        queues: Sequence[str] | None = None,
        concurrency: int = 50,
        contracts: Sequence[str] | None = None,
        name: str | None = None,
        poll: float = 1.0,
        grace: float = 30.0,
        upkeep: bool = True,
        wakeups: bool = True,
        sqs: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> None:
        """Run a worker until SIGTERM or Ctrl-C.

        until_idle      True: end when no job is due

        The other options are those of `app.worker`.
        """
        options = {option: value for option, value in locals().items() if option not in ("self", "until_idle")}
        if CHILD in os.environ:
            raise BadInput(
                "a worker process loaded this module to find a task, and the module started another worker. "
                'Next: put app.run_worker() under `if __name__ == "__main__":`'
            )
        from tenure.worker.standalone import run_standalone

        collect_seldom()
        run_standalone(self.worker(**options), until_idle=until_idle)

    @only_known_options("app.worker")
    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 50,
        contracts: Sequence[str] | None = None,
        name: str | None = None,
        poll: float = 1.0,
        grace: float = 30.0,
        upkeep: bool = True,
        wakeups: bool = True,
        sqs: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> Worker:
        """Return a worker for this app's tasks, to run in your own event loop: `await worker.run()`.

        queues          the queues to take jobs from, in this order; default: those of the tasks
        concurrency     how many jobs run at the same time
        contracts       take only jobs under these contracts; default: all
        name            the worker's name in leases and lists; default: host:pid
        poll            seconds between two looks for jobs when nothing wakes the worker
        grace           seconds that running jobs get to end when the worker stops
        upkeep          False: run no upkeep beside it
        wakeups         False: do not listen for wake-ups, only poll
        sqs             the address of a message queue that names its tasks; needs a dispatcher, excludes contracts
        metrics_port    serve metrics of this worker at this port, 0: a free one; needs the extra `metrics`
        metrics_host    the address of that port; default: this machine alone
        """
        from tenure.worker import Worker

        metrics: WorkerMetrics | None = None
        if metrics_port is not None:
            from tenure.metrics.worker import WorkerMetrics

            metrics = WorkerMetrics(metrics_host, metrics_port)
        inbox = None if sqs is None else self._connections.inbox(sqs)

        async def source() -> JobClient:
            client = await self._connections.open(inbox=inbox)
            try:
                await client.may_work()
                await self._declare_as_worker(client, worker.name)
            except BaseException:
                await client.close()
                raise
            return client

        async def service_source() -> JobClient:
            # One for heartbeats, one for the worker's row, five for upkeep's loops.
            return await self._connections.open(connections=7, service=True, inbox=inbox)

        async def run_upkeep(client: Any) -> None:
            from tenure.upkeep import Upkeep

            upkeep = Upkeep.configured(client.store, self.settings, self._connections.url())
            if metrics is not None:
                metrics.upkeep = upkeep
            await upkeep.run()

        async def listen(client: Any) -> None:
            await client.listen(worker.wake_up)

        async def declare_schedules(client: Any) -> None:
            await declare_regularly(self, client, worker.name)

        services = [listen] if wakeups and self.settings.wakeups else []
        if self._schedules:
            services.append(declare_schedules)
        if upkeep and not self._connections.is_remote:  # a dispatcher runs its own upkeep
            services.insert(0, run_upkeep)
        worker = Worker(
            self.tasks, source, middleware=self.middleware, open_service_source=service_source, services=services,
            application=self.application, queues=queues, concurrency=concurrency, contracts=contracts, name=name,
            poll=poll, grace=grace, schedules=fingerprints(self._schedules), release=self.settings.release,
            metrics=metrics,
        )  # fmt: skip
        return worker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this loop and of synchronous code, and release the embedded PostgreSQL."""
        await self._connections.close()

    def database_url(self) -> str:
        """Return the address of the database; starts the embedded one if there is no other."""
        return self._connections.url()

    async def declare_types(self, client: JobClient) -> None:
        """Store the numbers of this application's tasks that override their contracts."""
        new = [task.type for task in self.tasks.values() if task.type and task.type not in self._declared]
        if new:
            host, pid = host_and_pid()
            await client.declare(new, application=self.application, by=f"{host}:{pid}")
            self._declared.update(new)

    async def _declare_as_worker(self, client: JobClient, name: str) -> None:
        """Declare all options anew, and withdraw those that this application's code no longer has."""
        declared = tuple(task.type for task in self.tasks.values() if task.type)
        if declared and not await client.declare(declared, application=self.application, by=name):
            _log.warning(
                "this key may not declare the options of %s. This worker uses its own numbers; callers that declare "
                "none use the contract's. "
                "Next: run a worker whose key has the scope work and is bound to no tenant",
                ", ".join(one.type for one in declared),
            )
        self._declared.update(declared)
        await self._declare_datasets_as_worker(client)
        await declare_as_worker(self, client, name)
        worker = LiveWorker(
            name, (), (), application=self.application, declares=declared, schedules=fingerprints(self._schedules)
        )
        try:
            await client.withdraw(worker)
        except TenureError as error:  # the worker retries it once a minute; no job waits for it
            _log.warning(
                "options or schedules that %s no longer declares could not be withdrawn: %s", self.application, error
            )

    def _forget(self) -> None:
        """Forget what is known of the database: the address changed."""
        self._declared.clear()
        self._stored_datasets.clear()
        self._transaction_calls = None

    async def _client(self) -> JobClient:
        """Return this loop's client, with the tasks' types and datasets declared."""
        client = await self._connections.client()
        await self.declare_types(client)
        if len(self._stored_datasets) < len(self._used_datasets):
            await self._declare_datasets(client)
        return client

    async def _enqueue(self, job: NewJob) -> Ticket[Any]:
        client = await self._client()

        async def make(job: NewJob) -> Enqueued:
            made = await client.enqueue(job)
            self._seen_workers.note((job,), client.takers)
            return made

        return Ticket(*await enqueue_through(self.middleware, job, make))

    async def _ready_to_make(self, jobs: Sequence[NewJob]) -> SendBatch:
        """Return the function that enqueues these checked jobs."""
        client = await self._client()
        if self.middleware:

            async def one_by_one() -> list[int]:
                return [ticket.id for ticket in await asyncio.gather(*(self._enqueue(job) for job in jobs))]

            return one_by_one
        make = await client.prepare(jobs)

        async def together() -> list[int]:
            made = await make()
            self._seen_workers.note(jobs, client.takers)
            ids = [one.job_id for one in made if not isinstance(one, Exception)]
            for one in made:
                if isinstance(one, Exception):
                    one.add_note(f"{len(ids)} other jobs of this batch were made: {ids}")
                    raise one
            return ids

        return together

    def _enqueue_in(self, connection: Any, new: Callable[[], NewJob]) -> Any:
        async def ticket(calls: TransactionCalls, job: NewJob) -> Ticket[Any]:
            (made,) = await calls.enqueue(connection, [job], "enqueue_in")
            return Ticket(*made)

        # The job is made by the call, not by its await: wrong arguments are raised where they stand.
        return self._in_transaction(connection, "enqueue_in", lambda calls: ticket(calls, new()))

    def _succeed_in(self, connection: Any, call: HolderCall) -> Any:
        return self._in_transaction(connection, "complete_in", lambda calls: calls.succeed(connection, call))

    def _in_transaction(
        self, connection: Any, verb: str, work: Callable[[TransactionCalls], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Do something in the caller's transaction; returns an awaitable if the connection is asynchronous."""
        if self._connections.is_remote:
            raise BadInput(
                f"{verb} writes in your own transaction, and this app uses a dispatcher. {_REMOTE_NEXT[verb]}"
            )
        from tenure.postgres.callers_connection import is_async

        waits = is_async(connection, verb)  # checked first, so that a forgotten connection is reported as such
        if self._transaction_calls is None:
            from tenure.client.transaction_calls import TransactionCalls

            through = partial(enqueue_through, self.middleware) if self.middleware else None
            self._transaction_calls = TransactionCalls(self.settings, through)
        done = work(self._transaction_calls)
        return done if waits else run_without_waiting(done)


def _namespace(name: str) -> str:
    """Return the name of an application; task names begin with it and a dot."""
    if not validation.check_name("app name", name).isprintable() or "." in name or " " in name:
        raise BadInput(
            f"the name of an app is a prefix of its task names, as in billing.send: {name!r} has a dot or a space"
        )
    return name


def _id(job: Ticket[Any] | int) -> int:
    return job.id if isinstance(job, Ticket) else job


def _job_of(call: object) -> NewJob:
    if not isinstance(call, Call):
        raise BadInput(f"enqueue_many takes task.call(…), not {call!r}")
    return call.job


async def _each(calls: Iterable[T] | AsyncIterable[T]) -> AsyncIterable[T]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call
