"""An application: its declared tasks, and access to their jobs.

    App()        connects to nothing; the first enqueue, result or worker does
    @app.task    makes a task of a function
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
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from tenure.client.bulk_enqueue import BulkEnqueue, SendBatch
from tenure.client.connections import Connections
from tenure.client.garbage_collection import collect_seldom
from tenure.client.seen_workers import SeenWorkers
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, JobFailed, TenureError
from tenure.jobs import validation
from tenure.jobs.job import Job, NewJob
from tenure.jobs.job_type import JobType, check_job_type
from tenure.jobs.live_worker import LiveWorker, host_and_pid, module_name
from tenure.jobs.outcome import Enqueued
from tenure.middleware import Middleware, enqueue_through, run_without_waiting
from tenure.settings import Settings
from tenure.task import CHILD, Call, Decorator, Options, Task, Ticket, check_timeout

if TYPE_CHECKING:
    from tenure.client.connections import JobClient
    from tenure.context import Context
    from tenure.jobs.outcome import Moved, Noted
    from tenure.postgres.enqueue_in import TransactionEnqueue
    from tenure.worker import Worker

_log = logging.getLogger("tenure")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Seconds between two reads of a job's result: the first and the longest; they double in between.
_FIRST_POLL_S, _MAX_POLL_S = 0.005, 0.5


class App:
    """Tasks, and the database or the dispatcher that keeps their jobs."""

    def __init__(
        self,
        database_url: str | None = None,
        *,
        dispatcher_url: str | None = None,
        key: str | None = None,
        name: str | None = None,
        contract: str = "standard",
        queue: str = "default",
        middleware: Sequence[Middleware] = (),
        settings: Settings | None = None,
        embedded: bool = True,
    ) -> None:
        settings = (Settings.load() if settings is None else settings).with_dispatcher(dispatcher_url, key)
        self.settings = settings if embedded else replace(settings, require_database=True)
        self.name = None if name is None else _namespace(name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.middleware = tuple(middleware)
        self._contract, self._queue = contract, queue
        self._declared: set[JobType] = set()
        self._seen_workers = SeenWorkers()
        self._module = module_name(sys._getframe(1).f_globals)
        self._transaction_enqueue: TransactionEnqueue | None = None
        self._connections = Connections(
            database_url or self.settings.database_url, self.settings, self._forget, self._seen_workers.close
        )

    @property
    def application(self) -> str:
        """The owner of options, workers and warnings: the app's name, else the module that created it."""
        return getattr(self, "name", None) or self._module

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        priority: int = 5,
        tenant: str = "default",
        timeout: float | None = None,
        isolation: Literal["none", "process"] = "none",
        max_attempts: int | None = None,
        lease: float | None = None,
        heartbeat: float | None = None,
        sla: float | None = None,
        backoff_base: float | None = None,
        backoff_cap: float | None = None,
        on_exhausted: str | None = None,
    ) -> Decorator: ...
    def task(self, function: Any = None, /, **declared: Any) -> Any:
        """Make a task of a function: as `@app.task`, or with what its jobs want as `@app.task(queue="mail")`.

        lease, heartbeat, sla, backoff_base, backoff_cap (in seconds), max_attempts and on_exhausted are kept in the
        database for this type of job, where they win over its contract's numbers.
        """
        if function is not None:
            return self._declare(function, **declared)
        return lambda function: self._declare(function, **declared)

    def _declare(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        priority: int = 5,
        tenant: str = "default",
        timeout: float | None = None,
        isolation: Literal["none", "process"] = "none",
        **overrides: Any,
    ) -> Task[..., Any]:
        if not callable(function):
            raise BadInput(f"@app.task takes a function, not {function!r}. Next: pass options by keyword")
        if isolation not in ("none", "process"):
            raise BadInput(f"isolation is 'none' or 'process', not {isolation!r}")
        validation.check_integer("priority", priority, 0, 9)
        full_name = own_name = validation.check_name("type", name or function.__name__)
        if self.name is not None:
            full_name = validation.check_name("type", f"{self.name}.{own_name}")
        given = Options(
            queue=validation.check_name("queue", queue or self._queue), contract=contract or self._contract,
            priority=priority, tenant=tenant, timeout=None if timeout is None else check_timeout(timeout),
        )  # fmt: skip
        if not full_name.isprintable() or own_name == "<lambda>":
            raise BadInput("a task needs a name that workers can find. Next: give it one with name=")
        job_type = _job_type(full_name, given.contract, overrides)
        task = Task[..., Any](self, function, full_name, given, isolation, job_type)
        if (other := self.tasks.setdefault(full_name, task)) is not task:
            where = f"{other.function.__module__}.{other.function.__qualname__}"
            raise BadInput(f"task {full_name!r} is already declared by {where}. Next: give one of them another name=")
        return task

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
                if not isinstance(call, Call):
                    raise BadInput(f"enqueue_many takes task.call(…), not {call!r}")
                waiting.append(call.job)
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
    async def result(self, job: Ticket[R], *, timeout: float | None = None) -> R: ...
    @overload
    async def result(self, job: int, *, timeout: float | None = None) -> Any: ...
    async def result(self, job: Ticket[Any] | int, *, timeout: float | None = None) -> Any:
        """Wait for a job's end and return its result; raises JobFailed without success, TimeoutError when late."""
        poll_s = _FIRST_POLL_S
        async with asyncio.timeout(timeout):
            while (found := await self.job(job)).role != "done":
                await asyncio.sleep(poll_s)
                poll_s = min(2 * poll_s, _MAX_POLL_S)
        contract = BUILT_IN.get(found.contract) or (await (await self._client()).contracts())[found.contract]
        if found.state not in contract.successes():
            raise JobFailed(found.id, found.state, found.last_error)
        return found.result

    def result_sync(self, job: Ticket[R] | int, *, timeout: float | None = None) -> Any:
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

    def run_worker(self, *, until_idle: bool = False, **options: Any) -> None:
        """Run a worker until SIGTERM or Ctrl-C, or until no job is due; options as in `app.worker`."""
        if CHILD in os.environ:
            raise BadInput(
                "a worker process loaded this module to find a task, and the module started another worker. "
                'Next: put app.run_worker() under `if __name__ == "__main__":`'
            )
        from tenure.worker.standalone import run_standalone

        collect_seldom()
        run_standalone(self.worker(**options), until_idle=until_idle)

    def worker(self, *, upkeep: bool = True, wakeups: bool = True, sqs: str | None = None, **options: Any) -> Worker:
        """Return a worker for this app's tasks, with the options of `tenure.worker.Worker`; `await worker.run()`.

        `sqs`: the address of the message queue that names its tasks. Such a worker needs a dispatcher.
        """
        from tenure.worker import Worker

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

            await Upkeep.configured(client.store, self.settings, self._connections.url()).run()

        async def listen(client: Any) -> None:
            await client.listen(worker.wake_up)

        services = [listen] if wakeups and self.settings.wakeups else []
        if upkeep and not self._connections.is_remote:  # a dispatcher runs its own upkeep
            services.insert(0, run_upkeep)
        worker = Worker(
            self.tasks, source, middleware=self.middleware, open_service_source=service_source, services=services,
            application=self.application, **options,
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
        try:
            await client.withdraw(LiveWorker(name, (), (), application=self.application, declares=declared))
        except TenureError as error:  # the worker retries it once a minute; no job waits for it
            _log.warning("options that %s no longer declares could not be withdrawn: %s", self.application, error)

    def _forget(self) -> None:
        """Forget what is known of the database: the address changed."""
        self._declared.clear()
        self._transaction_enqueue = None

    async def _client(self) -> JobClient:
        """Return this loop's client, with the tasks' types declared."""
        client = await self._connections.client()
        await self.declare_types(client)
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
        if self._connections.is_remote:
            raise BadInput(
                "enqueue_in creates a job in a database transaction, and this app uses a dispatcher. "
                "Next: enqueue after the commit, with options(key=…) so that it can be repeated"
            )
        from tenure.postgres.enqueue_in import TransactionEnqueue, is_async
        from tenure.postgres.registry import Registry

        waits = is_async(connection)  # checked first, so that a forgotten connection is reported as such
        job = new()
        if self._transaction_enqueue is None:
            self._transaction_enqueue = TransactionEnqueue(
                Registry(self.settings.numbers), self.settings.max_payload_bytes, wake=self.settings.wakeups
            )
        joining = self._transaction_enqueue

        async def join(job: NewJob) -> Enqueued:
            return await joining.make_async(connection, job) if waits else joining.make(connection, job)

        async def ticket() -> Ticket[Any]:
            return Ticket(*await enqueue_through(self.middleware, job, join))

        return ticket() if waits else run_without_waiting(ticket())


def _job_type(name: str, contract: str, overrides: Mapping[str, Any]) -> JobType | None:
    """Return the options of `@app.task` that override the contract for every job of this type; None without any."""
    names = {
        "lease": "lease_ttl_sec", "heartbeat": "heartbeat_sec", "sla": "sla_sec", "max_attempts": "max_attempts",
        "backoff_base": "backoff_base_ms", "backoff_cap": "backoff_cap_ms", "on_exhausted": "on_exhausted",
    }  # fmt: skip
    if unknown := set(overrides) - set(names):
        raise BadInput(f"@app.task has no option {sorted(unknown)[0]!r}; it has {', '.join(names)} and others")
    given = {names[option]: value for option, value in overrides.items() if value is not None}
    for span in ("backoff_base_ms", "backoff_cap_ms"):
        if span in given:
            given[span] = validation.to_milliseconds(span, given[span])
    declared = JobType(name, contract, **given) if given else None
    if declared is not None and contract in BUILT_IN:  # refused here, not at the first enqueue
        check_job_type(BUILT_IN[contract], declared)
    return declared


def _namespace(name: str) -> str:
    """Return the name of an application; task names begin with it and a dot."""
    if not validation.check_name("app name", name).isprintable() or "." in name or " " in name:
        raise BadInput(
            f"the name of an app is a prefix of its task names, as in billing.send: {name!r} has a dot or a space"
        )
    return name


def _id(job: Ticket[Any] | int) -> int:
    return job.id if isinstance(job, Ticket) else job


async def _each(calls: Iterable[T] | AsyncIterable[T]) -> AsyncIterable[T]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call
