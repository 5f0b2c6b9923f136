"""A task: a function, and how its jobs are enqueued and run.

@app.task(queue="mail")             the declaration
send.enqueue("a@b.c")               enqueues a job; checked against the signature
send.options(delay=60)              the same task with other enqueue options
send.call("a@b.c")                  a job to enqueue later, for `app.enqueue_many`
send("a@b.c")                       calls the function itself, without a job
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from tenure.context import Cancel, Context, Snooze, current
from tenure.dataset import Uses, dataset_uses
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.arguments.node_result import Results
from tenure.jobs.arguments.signature import Signature
from tenure.jobs.expiry import Expires, check_expiry, parse_expires
from tenure.jobs.job import TIMEOUT as TIMEOUT
from tenure.jobs.job import DatasetUse, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.keyword_options import only_known_options
from tenure.jobs.unique import OnConflict, Unique, UniqueOption, changed_rule

if TYPE_CHECKING:
    from typing import Concatenate

    from tenure.app import App
    from tenure.jobs.connection_types import AsyncConnection, SyncConnection

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
#: A function that compensates an effect: takes its result, and the context if it asks for one.
Undo = TypeVar("Undo", bound=Callable[..., Any])

MAX_RUN_S = 6 * 3_600.0
#: Set in the environment of the processes in which a worker runs handlers.
CHILD = "TENURE_CHILD"
#: Set in the environment of the worker processes of one command: their parent passes signals on to them.
PROCESS = "TENURE_PROCESS"


@dataclass(frozen=True, slots=True)
class Ticket(Generic[R_co]):
    """An enqueued job: its id, and whether this call created it; else an earlier one did (same key, or unique)."""

    id: int
    made: bool = True


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A job that is not enqueued yet."""

    #: It; the arguments in `results` are missing in its payload.
    new: NewJob
    #: Argument → the node of a flow whose result it is, or several of them.
    results: Mapping[str, Results] = field(default_factory=dict)

    @property
    def job(self) -> NewJob:
        """The job, to be enqueued by itself; refused if it needs results of a flow's nodes."""
        for name, result in self.results.items():
            raise BadInput(
                f"argument {name!r} of task {self.new.type!r} is {result!r}, so the call is part of that flow. "
                f"Next: flow.node({self.new.type}.call(…))"
            )
        return self.new


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is enqueued and run; None means the default of the task, its type or its contract."""

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
    #: The maximum duration of one run, in seconds.
    timeout: float | None = None
    #: Whether a NOTIFY wakes listening workers.
    notify: bool = True
    unique: Unique | None = None
    expires: Expires | None = None
    #: The datasets that its jobs read and write.
    reads: tuple[DatasetUse, ...] = ()
    writes: tuple[DatasetUse, ...] = ()


@dataclass(frozen=True, eq=False)
class Task(Generic[P, R]):
    """A function whose calls become durable jobs."""

    app: App
    function: Callable[..., Any]
    name: str
    given: Options
    #: "process": each run has its own process, which can be killed.
    isolation: Literal["none", "process"] = "none"
    #: The numbers that override the contract for every job of this task; None: no overrides.
    type: JobType | None = None
    signature: Signature = field(init=False)
    #: The name of the parameter that takes the context, or None.
    takes_context: str | None = field(init=False)
    is_async: bool = field(init=False)
    #: The task's contract, if people decide under it: then its jobs run under no other one. None: any contract.
    decided_by: str | None = field(init=False)
    #: Node → the function that compensates its effect.
    undo: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        takes = find_context_parameter(self.function)
        object.__setattr__(self, "takes_context", takes)
        signature = Signature(self.function, [takes] if takes else [], name=self.name, not_results=(Snooze, Cancel))
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))
        contract = self.app.contracts.get(self.given.contract)
        object.__setattr__(self, "decided_by", contract.name if contract and contract.decisions else None)
        if self.isolation == "process" and self.home is None:
            raise BadInput(
                f"task {self.name} has isolation='process', so another process must import it by its name, but it is "
                "defined inside a function. Next: define it at the top of a module"
            )
        self._check_given()

    def _check_given(self) -> None:
        """Refuse names in `unique_by` that are no arguments, and an expiry that the contract cannot carry out."""
        unique, contract = self.given.unique, self.app.contracts.get(self.given.contract)
        if unique is not None and unique.by is not None:
            self.signature.check_names("unique_by", unique.by)
        if self.given.expires is not None:
            at, span_ms = parse_expires(self.given.expires)
            if contract is not None:  # of another one, the enqueue knows the paths
                delay_ms = validation.to_milliseconds("delay", self.given.delay)
                check_expiry(contract, at, span_ms, self.given.run_at, delay_ms)

    @property
    def home(self) -> tuple[str, str] | None:
        """The module and name by which another process imports this task; None if it cannot."""
        module, name = self.function.__module__, self.function.__qualname__
        if module == "__main__":  # a program is loaded by its file
            main = sys.modules[module]
            spec = getattr(main, "__spec__", None)
            module = spec.name if spec is not None else str(getattr(main, "__file__", ""))
        return None if "<" in name or not module else (module, name)

    def _is_findable(self) -> bool:
        """Whether an import of this task by its name gives this task."""
        if self.home is None:
            return False
        found: Any = sys.modules.get(self.function.__module__)
        for part in self.function.__qualname__.split("."):
            found = getattr(found, part, None)
        return isinstance(found, Task) and found.function is self.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without a job."""
        return self.function(*args, **kwargs)

    @only_known_options("task.options")
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
        notify: bool | None = None,
        unique: UniqueOption | None = None,
        unique_by: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        expires: Expires | None = None,
        reads: Uses | None = None,
        writes: Uses | None = None,
    ) -> Task[P, R]:
        """Return the same task with other options for enqueue; those that are not given stay.

        delay           seconds, or a timedelta, from now; 0: none
        run_at          not before this time, which has a time zone; not together with delay
        priority        0 goes first, 9 last
        queue           the queue of the job
        key             the same key and the same work make the job once; other work is an IdempotencyConflict
        tenant          the tenant of the job
        trace_id        default: that of the job whose handler enqueues this one, else made
        correlation_id  default: that of the job whose handler enqueues this one, else made
        max_attempts    how often this job is tried, as the contract counts
        timeout         seconds that a run of this job may take
        contract        the contract of the job
        unique          at most one such job: "waiting" (while one waits), "active" (while one waits or runs), or a
                        timedelta (from the creation of one)
        unique_by       the names of the arguments that must be equal; default: all
        on_conflict     with a unique job in the way: "return" it, "replace" its payload and time while it waits, or
                        "refuse" with DuplicateJob
        expires         seconds, a timedelta or a time: the job is cancelled if it has not begun by then
        reads           the datasets that it reads; as {name: number} these generations
        writes          the datasets that it writes; as {name: number} these generations
        notify          False: no NOTIFY, workers find the job by polling; the transaction of enqueue_in can then be
                        prepared for two-phase commit
        """
        changed = {name: value for name, value in locals().items() if name != "self" and value is not None}
        for part in ("unique", "unique_by", "on_conflict"):
            changed.pop(part, None)
        if reads is not None:
            changed["reads"] = dataset_uses("reads", reads)
        if writes is not None:
            changed["writes"] = dataset_uses("writes", writes)
        if (delay is None) != (run_at is None):  # each of them takes the place of the other
            changed["delay" if delay is None else "run_at"] = None
        if timeout is not None:
            check_timeout(timeout)
        if contract is not None and self.decided_by not in (None, contract):
            raise BadInput(
                f"task {self.name} runs only under contract {self.decided_by}, where people decide, and not under "
                f"{contract!r}. Next: leave contract out"
            )
        if (unique, unique_by, on_conflict) != (None, None, None):
            changed["unique"] = changed_rule(self.given.unique, unique, unique_by, on_conflict)
        other = copy(self)  # `replace` would inspect the function's signature again
        object.__setattr__(other, "given", replace(self.given, **changed))
        other._check_given()
        return other

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a job to enqueue later, or together with others: `app.enqueue_many`, `flow.node`."""
        results: dict[str, Results] = {}
        return Call(self._new(args, kwargs, results), results)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Enqueue a job for this call."""
        return await self.app._enqueue(self._new(args, kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Enqueue a job for this call, from synchronous code."""
        return self.app._connections.wait(self.app._enqueue(self._new(args, kwargs)))

    @overload
    def enqueue_in(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]: ...
    @overload
    def enqueue_in(self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[Ticket[R]]: ...
    def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueue a job in the caller's own transaction: a commit creates the job, a rollback does not.

        The connection is one of psycopg, asyncpg, SQLAlchemy (also a Session) or Django, inside of a transaction. With
        an asynchronous connection the result must be awaited.
        """
        return self.app._enqueue_in(connection, lambda: self._new(args, kwargs))

    def compensate(self, node: str) -> Callable[[Undo], Undo]:
        """Declare the function that compensates a node's effect when the job fails; it takes the effect's result."""

        def declare(function: Undo) -> Undo:
            contract = self.app.contracts.get(self.given.contract)
            if contract is not None and not contract.compensates:
                raise BadInput(
                    f"task {self.name} is under contract {contract.name}, which compensates no effects. "
                    'Next: declare it with contract="reliability", or compensate in the handler'
                )
            if node in self.undo:
                raise BadInput(f"task {self.name} already has a compensation for {node!r}")
            self.undo[node] = function
            return function

        return declare

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: dict[str, Results] | None = None) -> NewJob:
        given, running = self.given, current.get()
        payload = self.signature.payload(args, kwargs, results)
        if given.timeout is not None:
            payload[TIMEOUT] = given.timeout
        if given.unique is not None:
            self.signature.add_defaults(payload, given.unique.by)
        trace_id, correlation_id = given.trace_id, given.correlation_id
        if running is not None:
            trace_id, correlation_id = trace_id or running.trace_id, correlation_id or running.correlation_id
        delay_ms = None if given.delay is None else validation.to_milliseconds("delay", given.delay)
        limit, declared = given.max_attempts, self.type
        if limit is None and declared is not None and declared.contract == given.contract:
            limit = declared.max_attempts  # this code's own number wins over the stored one
        expires_at, expires_ms = (None, None) if given.expires is None else parse_expires(given.expires)
        writes = self.app._writes(given.tenant, given.writes) if given.writes else ()
        return NewJob(  # by position, which is fastest: a batch has thousands
            self.name, payload, given.contract, None, given.queue, given.tenant, given.priority, limit,
            given.run_at, delay_ms, given.key, trace_id, correlation_id, given.notify, given.unique,
            expires_at, expires_ms, given.reads, writes,
        )  # fmt: skip


def check_timeout(seconds: object) -> float:
    """Return the maximum duration of a run; refuses one outside the allowed range."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_RUN_S:
        raise BadInput(f"timeout must be a number of seconds, more than 0 and at most {MAX_RUN_S:.0f}, not {seconds!r}")
    return float(seconds)


def find_context_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that takes the context, or None."""
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if hint is Context or (isinstance(hint, str) and hint.strip("\"'").split(".")[-1] == "Context"):
            return name
    return None


class Decorator(Protocol):
    """The type of `@app.task(…)`: makes a task of a function and keeps its parameter types."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
