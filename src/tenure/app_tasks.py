"""`@app.task`: the options of a task, their checks, and what is stored for its type of job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

from tenure.contracts.declaration import Contract
from tenure.dataset import Uses, dataset_uses
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.expiry import Expires
from tenure.jobs.job_type import JobType, check_job_type
from tenure.jobs.keyword_options import only_known_options
from tenure.jobs.unique import OnConflict, UniqueOption, unique_rule
from tenure.task import Decorator, Options, Task, check_timeout

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.context import Context

P = ParamSpec("P")
R = TypeVar("R")

#: Options of `task.options` that say something about one job alone, and what to do with them.
_OF_ONE_JOB = dict.fromkeys(
    ("run_at", "key", "trace_id", "correlation_id", "notify"), "give it to the enqueue: task.options(…).enqueue(…)"
)


class TaskVerbs:
    """The part of `App` that makes tasks."""

    name: str | None
    contracts: Mapping[str, Contract]
    tasks: dict[str, Task[..., Any]]
    _contract: str
    _queue: str
    if TYPE_CHECKING:

        def _note_dataset(self, tenant: str, name: str) -> None: ...

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
        delay: float | timedelta | None = None,
        timeout: float | None = None,
        isolation: Literal["none", "process"] = "none",
        unique: UniqueOption | None = None,
        unique_by: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        expires: Expires | None = None,
        reads: Uses | None = None,
        writes: Uses | None = None,
        max_attempts: int | None = None,
        lease: float | None = None,
        heartbeat: float | None = None,
        sla: float | None = None,
        backoff_base: float | None = None,
        backoff_cap: float | None = None,
        on_exhausted: str | None = None,
    ) -> Decorator: ...
    @only_known_options("@app.task", elsewhere=_OF_ONE_JOB)
    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        priority: int = 5,
        tenant: str = "default",
        delay: float | timedelta | None = None,
        timeout: float | None = None,
        isolation: Literal["none", "process"] = "none",
        unique: UniqueOption | None = None,
        unique_by: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        expires: Expires | None = None,
        reads: Uses | None = None,
        writes: Uses | None = None,
        max_attempts: int | None = None,
        lease: float | None = None,
        heartbeat: float | None = None,
        sla: float | None = None,
        backoff_base: float | None = None,
        backoff_cap: float | None = None,
        on_exhausted: str | None = None,
    ) -> Any:
        """Make a task of a function: as `@app.task`, or with options as `@app.task(queue="mail", timeout=30)`.

        name            in the job's row, after the app's name if it has one; default: the function's
        queue           the queue of its jobs; default: the app's
        contract        the contract of its jobs; default: the app's
        priority        0 goes first, 9 last
        tenant          the tenant of its jobs
        delay           seconds or a timedelta: how long a job waits from its enqueue
        timeout         seconds that a run may take; default: six hours
        unique          at most one such job: "waiting" (while one waits), "active" (while one waits or runs), or a
                        timedelta (from the creation of one)
        unique_by       the names of the arguments that must be equal; default: all
        on_conflict     with a unique job in the way: "return" it, "replace" its payload and time till it begins, or
                        "refuse" with DuplicateJob
        expires         seconds or a timedelta: a job that has not begun within this time is cancelled
        reads           datasets: a job reads the generations that are current when it is made (`ctx.input`)
        writes          datasets: what the handler adds to them is stored with its completion (`ctx.output`)
        isolation       "process": each run has a process of its own, which can be killed

        These are stored in the database for this type of job, where they win over the contract's numbers:

        max_attempts    how often a job is tried, as the contract counts
        lease           seconds that a claim lasts
        heartbeat       seconds between two heartbeats, where the contract has such a number
        sla             seconds that a job is expected to take
        backoff_base    seconds before the first retry
        backoff_cap     seconds before a retry, at most
        on_exhausted    the end of a job whose attempts are spent, where the contract gives the choice
        """
        options = {option: value for option, value in locals().items() if option not in ("self", "function")}
        if function is not None:
            return self._declare(function, **options)
        return lambda function: self._declare(function, **options)

    def _declare(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        contract: str | None = None,
        priority: int = 5,
        tenant: str = "default",
        delay: float | timedelta | None = None,
        timeout: float | None = None,
        isolation: Literal["none", "process"] = "none",
        unique: UniqueOption | None = None,
        unique_by: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        expires: Expires | None = None,
        reads: Uses | None = None,
        writes: Uses | None = None,
        **overrides: Any,
    ) -> Task[..., Any]:
        """Check the options and make the task; refuses a second one of the same name."""
        if not callable(function):
            raise BadInput(f"@app.task takes a function, not {function!r}. Next: pass options by keyword")
        if isolation not in ("none", "process"):
            raise BadInput(f"isolation is 'none' or 'process', not {isolation!r}")
        validation.check_integer("priority", priority, 0, 9)
        full_name = own_name = validation.check_name("type", name or function.__name__)
        if self.name is not None:
            full_name = validation.check_name("type", f"{self.name}.{own_name}")
        if delay is not None:
            validation.check_integer("delay_ms", validation.to_milliseconds("delay", delay), 0, validation.MAX_DELAY_MS)
        given = Options(
            queue=validation.check_name("queue", queue or self._queue), contract=contract or self._contract,
            priority=priority, tenant=tenant, delay=delay, timeout=None if timeout is None else check_timeout(timeout),
            unique=unique_rule(unique, unique_by, on_conflict), expires=expires,
            reads=dataset_uses("reads", reads), writes=dataset_uses("writes", writes),
        )  # fmt: skip
        if not full_name.isprintable() or own_name == "<lambda>":
            raise BadInput("a task needs a name that workers can find. Next: give it one with name=")
        job_type = _job_type(full_name, given.contract, self.contracts.get(given.contract), overrides)
        task = Task[..., Any](cast("App", self), function, full_name, given, isolation, job_type)
        if (other := self.tasks.setdefault(full_name, task)) is not task:
            where = f"{other.function.__module__}.{other.function.__qualname__}"
            raise BadInput(f"task {full_name!r} is already declared by {where}. Next: give one of them another name=")
        for use in given.writes:
            self._note_dataset(tenant, use.name)
        return task


def _job_type(name: str, contract: str, known: Contract | None, overrides: Mapping[str, Any]) -> JobType | None:
    """Return the options of `@app.task` that override the contract for every job of this type; None without any."""
    names = {
        "lease": "lease_ttl_sec", "heartbeat": "heartbeat_sec", "sla": "sla_sec", "max_attempts": "max_attempts",
        "backoff_base": "backoff_base_ms", "backoff_cap": "backoff_cap_ms", "on_exhausted": "on_exhausted",
    }  # fmt: skip
    given = {names[option]: value for option, value in overrides.items() if value is not None}
    for span in ("backoff_base_ms", "backoff_cap_ms"):
        if span in given:
            given[span] = validation.to_milliseconds(span, given[span])
    declared = JobType(name, contract, **given) if given else None
    if declared is not None and known is not None:  # refused here, not at the first enqueue
        check_job_type(known, declared)
    return declared
