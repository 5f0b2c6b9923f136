"""An application: the tasks that were declared, and the way to their jobs.

    App()        connects to nothing; the first enqueue, result or worker does
    @app.task    makes a task of a function
    app.run_worker() or `tenure worker module:app`

Without DATABASE_URL the embedded PostgreSQL in `.tenure/` is started and its schema made. With TENURE_DISPATCHER_URL
everything goes through that dispatcher, and no database is needed here, nor its driver.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from tenure import intake
from tenure.bulk import Bulk, Make
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, JobFailed
from tenure.garbage import collect_seldom
from tenure.job import Job, NewJob
from tenure.job_type import JobType, check
from tenure.middleware import Middleware, at_once, through
from tenure.outcome import Enqueued
from tenure.reach import Reach
from tenure.settings import Settings
from tenure.task import CHILD, Call, Decorator, Options, Task, Ticket, check_timeout

if TYPE_CHECKING:
    from tenure.context import Context
    from tenure.outcome import Moved, Noted
    from tenure.postgres.joining import Joining
    from tenure.reach import Way
    from tenure.worker import Worker

_log = logging.getLogger("tenure")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: How often a waiting caller asks for a result: soon at first, then less often.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.005, 0.5


class App:
    """Tasks, and the database that keeps their jobs, or the dispatcher before it."""

    def __init__(
        self,
        database_url: str | None = None,
        *,
        dispatcher_url: str | None = None,
        key: str | None = None,
        contract: str = "standard",
        queue: str = "default",
        middleware: Sequence[Middleware] = (),
        settings: Settings | None = None,
    ) -> None:
        self.settings = (Settings.load() if settings is None else settings).through(dispatcher_url, key)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.middleware = tuple(middleware)
        self._contract, self._queue = contract, queue
        self._reach = Reach(database_url or self.settings.database_url, self.settings)
        self._declared: set[JobType] = set()
        self._joining: Joining | None = None

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
        **numbers: Any,
    ) -> Task[..., Any]:
        if not callable(function):
            raise BadInput(f"@app.task makes a task of a function, not of {function!r}. Next: name options by keyword")
        if isolation not in ("none", "process"):
            raise BadInput(f"isolation is 'none' or 'process', not {isolation!r}")
        intake.whole("priority", priority, 0, 9)
        called = intake.name("type", name or function.__name__)
        given = Options(
            queue=intake.name("queue", queue or self._queue), contract=contract or self._contract, priority=priority,
            tenant=tenant, timeout=None if timeout is None else check_timeout(timeout),
        )  # fmt: skip
        if not called.isprintable() or called == "<lambda>":
            raise BadInput("a task needs a name under which workers know it. Next: give it one with name=")
        task = Task[..., Any](self, function, called, given, isolation, _type(called, given.contract, numbers))
        if (other := self.tasks.setdefault(called, task)) is not task:
            where = f"{other.function.__module__}.{other.function.__qualname__}"
            raise BadInput(f"task {called!r} is declared already, by {where}. Next: give one of them another name=")
        return task

    async def enqueue_many(
        self,
        calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]],
        *,
        batch: int = 1_000,
        progress: Callable[[int], None] | None = None,
    ) -> list[int]:
        """Make jobs of any number of calls, batch by batch; their ids. `progress` is told how many are made so far."""
        intake.whole("batch", batch, 1, intake.MAX_BATCH)
        bulk, waiting = Bulk(self._ready_to_make, progress), list[NewJob]()
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
            await bulk.answered()
        except BaseException as error:
            await bulk.give_up(error)
            raise
        return bulk.ids

    @overload
    async def result(self, job: Ticket[R], *, timeout: float | None = None) -> R: ...
    @overload
    async def result(self, job: int, *, timeout: float | None = None) -> Any: ...
    async def result(self, job: Ticket[Any] | int, *, timeout: float | None = None) -> Any:
        """Wait for a job's end and give its result; raises JobFailed when it ended badly, TimeoutError when late."""
        look = _FIRST_LOOK_S
        async with asyncio.timeout(timeout):
            while (found := await self.job(job)).role != "done":
                await asyncio.sleep(look)
                look = min(2 * look, _LAST_LOOK_S)
        contract = BUILT_IN.get(found.contract) or (await (await self._local()).contracts())[found.contract]
        if found.state not in contract.successes():
            raise JobFailed(found.id, found.state, found.last_error)
        return found.result

    def result_sync(self, job: Ticket[R] | int, *, timeout: float | None = None) -> Any:
        """`result`, from synchronous code."""
        return self._reach.wait(self.result(job, timeout=timeout))

    async def job(self, job: Ticket[Any] | int) -> Job:
        """A job as it is now, live or finished."""
        job_id = intake.whole("job", _id(job), 1, intake.MAX_ID)
        return await (await self._local()).job(job_id)

    async def cancel(
        self,
        job: Ticket[Any] | int,
        *,
        mode: Literal["soft", "hard"] = "soft",
        reason: str | None = None,
        actor: str = "app",
    ) -> Moved | Noted:
        """Cancel a job: hard at once; soft at once too unless it runs, then its handler is asked to stop.

        The log names the actor, or the key's owner where it goes through a dispatcher.
        """
        return await (await self._local()).cancel(_id(job), mode=mode, reason=reason, actor=actor)

    def run_worker(self, *, until_idle: bool = False, **options: Any) -> None:
        """Run a worker until it is told to stop (SIGTERM, Ctrl-C), or until nothing is due; options as `app.worker`."""
        if CHILD in os.environ:
            raise BadInput(
                "this module was loaded by a worker to find a task, and began a worker of its own. "
                'Next: put app.run_worker() under `if __name__ == "__main__":`'
            )
        import uvloop

        collect_seldom()
        worker = self.worker(**options)
        uvloop.run(worker.run(until_idle=until_idle))
        if worker.left_behind:
            os._exit(0)  # a thread cannot be ended: what is settled is settled, and nobody waits for it

    def worker(self, *, upkeep: bool = True, wakeups: bool = True, **options: Any) -> Worker:
        """A worker for this application's tasks, with the options of `tenure.worker.Worker`; `await worker.run()`."""
        from tenure.worker import Worker

        async def source() -> Way:
            local = await self._reach.open()
            try:
                await local.may_work()
                await self.declare_types(local, warn=True)
            except BaseException:
                await local.close()
                raise
            return local

        async def service_source() -> Way:
            return await self._reach.open(connections=6)  # a beat, which never waits for one, and upkeep's loops

        async def keep_up(local: Any) -> None:
            from tenure.upkeep import Keep, Upkeep

            await Upkeep(local.store, Keep(**self.settings.keep)).run()

        async def listen(local: Any) -> None:
            await local.listen(worker.heard)

        # A dispatcher does its own upkeep.
        services = [keep_up] * (upkeep and not self._reach.is_remote) + [listen] * (wakeups and self.settings.wakeups)
        worker = Worker(
            self.tasks, source, middleware=self.middleware, open_service_source=service_source, services=services,
            **options,
        )  # fmt: skip
        return worker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close this loop's connections, those of synchronous code, and let the embedded PostgreSQL go."""
        await self._reach.close()

    def database_url(self) -> str:
        """The address of the database; starts the embedded one where there is no other."""
        return self._reach.url()

    async def declare_types(self, local: Way, *, warn: bool = False) -> None:
        """Tell the database what this application's tasks want otherwise than their contracts."""
        fresh = [task.type for task in self.tasks.values() if task.type and task.type not in self._declared]
        if fresh:
            if not await local.declare(fresh) and warn:
                _log.warning(
                    "this key may not declare what %s want otherwise than their contract, whose numbers hold. "
                    "Next: run a worker whose key has the scope work and is bound to no tenant",
                    ", ".join(one.type for one in fresh),
                )
            self._declared.update(fresh)

    async def _local(self) -> Way:
        """This loop's connections, with the tasks' types declared."""
        local = await self._reach.local()
        await self.declare_types(local)
        return local

    async def _enqueue(self, job: NewJob) -> Ticket[Any]:
        local = await self._local()
        if not self.middleware:
            made = await local.enqueue(job)
            return Ticket(made.job_id, made.made)
        answers: list[Enqueued] = []

        async def make(job: NewJob) -> int:
            answers.append(await local.enqueue(job))
            return answers[-1].job_id

        job_id = await through(self.middleware, job, make)
        return Ticket(job_id, answers[-1].made if answers else False)

    async def _ready_to_make(self, jobs: Sequence[NewJob]) -> Make:
        """What makes these jobs, which are checked by now."""
        local = await self._local()
        if self.middleware:

            async def one_by_one() -> list[int]:
                return [ticket.id for ticket in await asyncio.gather(*(self._enqueue(job) for job in jobs))]

            return one_by_one
        make = await local.prepare(jobs)

        async def together() -> list[int]:
            made = await make()
            ids = [one.job_id for one in made if not isinstance(one, Exception)]
            for one in made:
                if isinstance(one, Exception):
                    one.add_note(f"{len(ids)} other jobs of this batch were made: {ids}")
                    raise one
            return ids

        return together

    def _enqueue_in(self, connection: Any, new: Callable[[], NewJob]) -> Any:
        if self._reach.is_remote:
            raise BadInput(
                "enqueue_in makes a job in a transaction of the database, and this app goes through a dispatcher. "
                "Next: enqueue after the commit, with options(key=…) so that it can be repeated"
            )
        from tenure.postgres.joining import Joining, is_async
        from tenure.postgres.registry import Registry

        waits = is_async(connection)  # who forgot the connection is told so, and not that an argument is missing
        job = new()
        if self._joining is None:
            self._joining = Joining(
                Registry(self.settings.numbers), self.settings.max_payload_bytes, wake=self.settings.wakeups
            )
        joining, answers = self._joining, list[Enqueued]()

        async def join(job: NewJob) -> int:
            made = joining.make_async(connection, job) if waits else None
            answers.append(joining.make(connection, job) if made is None else await made)
            return answers[-1].job_id

        async def ticket() -> Ticket[Any]:
            job_id = await through(self.middleware, job, join)
            return Ticket(job_id, answers[-1].made if answers else False)

        return ticket() if waits else at_once(ticket())


def _type(name: str, contract: str, numbers: Mapping[str, Any]) -> JobType | None:
    """What a task wants otherwise than its contract; None where that is nothing."""
    names = {
        "lease": "lease_ttl_sec", "heartbeat": "heartbeat_sec", "sla": "sla_sec", "max_attempts": "max_attempts",
        "backoff_base": "backoff_base_ms", "backoff_cap": "backoff_cap_ms", "on_exhausted": "on_exhausted",
    }  # fmt: skip
    if unknown := set(numbers) - set(names):
        raise BadInput(f"@app.task has no option {sorted(unknown)[0]!r}; it has {', '.join(names)} and others")
    given = {names[option]: value for option, value in numbers.items() if value is not None}
    for span in ("backoff_base_ms", "backoff_cap_ms"):
        if span in given:
            given[span] = intake.milliseconds(span, given[span])
    declared = JobType(name, contract, **given) if given else None
    if declared is not None and contract in BUILT_IN:  # what is wrong is said here, and not at the first enqueue
        check(BUILT_IN[contract], declared)
    return declared


def _id(job: Ticket[Any] | int) -> int:
    return job.id if isinstance(job, Ticket) else job


async def _each(calls: Iterable[T] | AsyncIterable[T]) -> AsyncIterable[T]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call
