"""A task: a function of yours, and how its jobs are to be run.

@app.task(queue="mail")             the declaration
send.enqueue("a@b.c")               a job, checked against the signature
send.options(delay=60)              the same task, to be enqueued otherwise
send.call("a@b.c")                  a job that is not made yet, for `app.enqueue_many`
send("a@b.c")                       the function itself, as if it were no task
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from tenure import intake
from tenure.arguments import Signature
from tenure.context import Context, current
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput
from tenure.job import NewJob
from tenure.job_type import JobType

if TYPE_CHECKING:
    from typing import Concatenate

    from psycopg import AsyncConnection, Connection

    from tenure.app import App

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
#: What undoes an effect: given its result, and the context if it asks for one.
Undo = TypeVar("Undo", bound=Callable[..., Any])

#: Where an option of one job travels that its row has no column for; no parameter can have this name.
TIMEOUT = "$timeout"
LONGEST_RUN_S = 6 * 3_600.0
#: In the environment of the processes in which a worker runs handlers.
CHILD = "TENURE_CHILD"


@dataclass(frozen=True, slots=True)
class Ticket(Generic[R_co]):
    """A job that was enqueued: its id, and whether this call made it (an earlier one may have, with the same key)."""

    id: int
    made: bool = True


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A job that is not made yet."""

    job: NewJob


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is to be enqueued and run; None means as the task, its type or its contract has it."""

    queue: str = "default"
    contract: str = "standard"
    priority: int = 5
    tenant: str = "default"
    delay: float | timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    trace_id: str | None = None
    correlation_id: str | None = None
    max_attempts: int | None = None
    #: Seconds that one run may take.
    timeout: float | None = None


@dataclass(frozen=True, eq=False)
class Task(Generic[P, R]):
    """A function whose calls are made durable."""

    app: App
    function: Callable[..., Any]
    name: str
    given: Options
    #: "process": in a process of its own, which can be killed.
    isolation: Literal["none", "process"] = "none"
    #: What the task wants otherwise than its contract, for every job; None where it wants nothing.
    type: JobType | None = None
    signature: Signature = field(init=False)
    #: The name of the parameter that takes the context, or None.
    takes_context: str | None = field(init=False)
    is_async: bool = field(init=False)
    #: node → what undoes its effect.
    undo: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        takes = context_parameter(self.function)
        object.__setattr__(self, "takes_context", takes)
        object.__setattr__(self, "signature", Signature(self.function, [takes] if takes else [], name=self.name))
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))
        if self.isolation == "process" and self.home is None:
            raise BadInput(
                f"task {self.name} is to run in a process of its own, which must find it by its name, but it is "
                "defined inside a function. Next: define it at the top of a module"
            )

    @property
    def home(self) -> tuple[str, str] | None:
        """The module and name under which another process finds this task; None where it cannot."""
        module, name = self.function.__module__, self.function.__qualname__
        if module == "__main__":  # a program is found by its file
            main = sys.modules[module]
            spec = getattr(main, "__spec__", None)
            module = spec.name if spec is not None else str(getattr(main, "__file__", ""))
        return None if "<" in name or not module else (module, name)

    def _is_findable(self) -> bool:
        """Whether a process that looks for this task under its name finds it, and not something else."""
        if self.home is None:
            return False
        found: Any = sys.modules.get(self.function.__module__)
        for part in self.function.__qualname__.split("."):
            found = getattr(found, part, None)
        return isinstance(found, Task) and found.function is self.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here and now, without a job."""
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        trace_id: str | None = None,
        correlation_id: str | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        contract: str | None = None,
    ) -> Task[P, R]:
        """The same task, to be enqueued otherwise; what is not given stays as it is."""
        asked = {name: value for name, value in locals().items() if name != "self" and value is not None}
        if timeout is not None:
            check_timeout(timeout)
        other = copy(self)  # and not `replace`, which would read the function's signature again
        object.__setattr__(other, "given", replace(self.given, **asked))
        return other

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A job to be made later, or together with others: `app.enqueue_many`."""
        return Call(self._new(args, kwargs))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Make a job of this call."""
        return await self.app._enqueue(self._new(args, kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Make a job of this call, from synchronous code."""
        return self.app._reach.wait(self.app._enqueue(self._new(args, kwargs)))

    @overload
    def enqueue_in(
        self, connection: AsyncConnection[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Ticket[R]]: ...
    @overload
    def enqueue_in(self, connection: Connection[Any], /, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]: ...
    def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Make a job in the caller's own transaction: its commit makes the job, its rollback makes none.

        An asynchronous connection is to be awaited.
        """
        return self.app._enqueue_in(connection, lambda: self._new(args, kwargs))

    def compensate(self, node: str) -> Callable[[Undo], Undo]:
        """Declare what undoes the effect of a node when the job fails for good; it is given the effect's result."""

        def declare(function: Undo) -> Undo:
            contract = BUILT_IN.get(self.given.contract)
            if contract is not None and not contract.compensates:
                raise BadInput(
                    f"task {self.name} is under contract {contract.name}, which undoes no effects. "
                    'Next: declare it with contract="reliability", or undo in the handler'
                )
            if node in self.undo:
                raise BadInput(f"task {self.name} knows already how to undo {node!r}")
            self.undo[node] = function
            return function

        return declare

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        given, running = self.given, current.get()
        payload = self.signature.payload(args, kwargs)
        if given.timeout is not None:
            payload[TIMEOUT] = given.timeout
        trace_id, correlation_id = given.trace_id, given.correlation_id
        if running is not None:
            trace_id, correlation_id = trace_id or running.trace_id, correlation_id or running.correlation_id
        delay_ms = None if given.delay is None else intake.milliseconds("delay", given.delay)
        return NewJob(  # by position: it is the quickest, and a batch has thousands
            self.name, payload, given.contract, None, given.queue, given.tenant, given.priority, given.max_attempts,
            given.run_at, delay_ms, given.key, trace_id, correlation_id,
        )  # fmt: skip


def check_timeout(seconds: object) -> float:
    """A run's longest time, within what any run may take."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_RUN_S:
        raise BadInput(
            f"timeout must be a number of seconds, more than 0 and at most {LONGEST_RUN_S:.0f}, not {seconds!r}"
        )
    return float(seconds)


def context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that wants the context."""
    for name, parameter in inspect.signature(function).parameters.items():
        wanted = parameter.annotation
        if wanted is Context or (isinstance(wanted, str) and wanted.strip("\"'").split(".")[-1] == "Context"):
            return name
    return None


class Decorator(Protocol):
    """What `@app.task(…)` is: it makes a task of a function, and keeps the types of its arguments."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
