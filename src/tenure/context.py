"""The context of a running job: what its handler can read and write.

A handler that declares a `Context` parameter gets one. Every write is fenced by the lease: after the worker has lost
the job, a write raises `LeaseConflictError` and nothing is stored. Plain functions use the `…_sync` forms.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, overload
from uuid import UUID

from tenure.dataset import DatasetPort, HandlerDatasets, Input, Named, Output, dataset_name
from tenure.errors import BadInput
from tenure.jobs.connection_types import AsyncConnection, SyncConnection
from tenure.jobs.dataset import DatasetEvent, check_event
from tenure.jobs.dataset import Output as StoredOutput
from tenure.jobs.job import STAGES, Job, Stage

T = TypeVar("T")

#: The attribute of an exception that holds the job, the attempt and the stage in which it was raised.
_STAGE_MARK: Final = "_tenure_stage"

#: The context of the handler that runs here, so that the jobs it enqueues get its trace ids.
current: ContextVar[Context | None] = ContextVar("tenure_context", default=None)


class Port(DatasetPort, Protocol):
    """Where the calls of a context go: to the worker's job source, or from a child process to its worker."""

    async def progress(self, value: Any) -> None:
        """Store the progress."""

    async def checkpoint(self, value: Any) -> None:
        """Store a checkpoint for the next attempt."""

    async def effects(self) -> Mapping[str, Any]:
        """The recorded effects: node → result."""

    async def effect(self, node: str, result: Any) -> Any:
        """Record the effect of a node; the result that is recorded for it."""

    def set_stage(self, name: str | None) -> None:
        """Note the stage in which the handler is now; None outside of stage blocks."""

    def complete_in(self, connection: Any, result: Any, additions: Additions | None) -> Any:
        """End the job in the transaction of this connection; an awaitable if the connection is asynchronous."""


class Additions(NamedTuple):
    """What a completion adds to datasets, and its events."""

    outputs: Sequence[StoredOutput] = ()
    events: Sequence[DatasetEvent] = ()


class Context:
    """The job that a handler runs: its ids, its lease, its checkpoint, and the calls that are stored for it."""

    __slots__ = (
        "_cancelled", "_datasets", "_effects", "_emitted", "_loop", "_port", "_stages", "job", "last_checkpoint",
    )  # fmt: skip

    def __init__(self, job: Job, port: Port, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        #: The last checkpoint of this job, from this attempt or an earlier one; None where there is none.
        self.last_checkpoint: Any = job.checkpoint
        self._port = port
        self._loop = loop
        self._cancelled = False
        #: The recorded effects: node → result; None before they are read.
        self._effects: dict[str, Any] | None = None
        #: The open `stage` blocks, innermost last.
        self._stages: list[str] = []
        #: What it reads and writes of datasets, and the events that it has emitted; None before.
        self._datasets: HandlerDatasets | None = None
        self._emitted: list[DatasetEvent] | None = None

    @property
    def attempt(self) -> int:
        """How many times the job was claimed, this claim included."""
        return self.job.claims

    @property
    def token(self) -> UUID:
        """The token of the lease."""
        return self.job.held.token

    @property
    def execution_key(self) -> str:
        """The key by which another service recognises a repeat of this execution: the job's id and its counter."""
        return f"{self.job.id}:{self.job.counter}"

    @property
    def trace_id(self) -> str:
        """The trace id of this job."""
        return self.job.trace_id

    @property
    def correlation_id(self) -> str:
        """The correlation id, which this job shares with related jobs."""
        return self.job.correlation_id

    @property
    def cancelled(self) -> bool:
        """Whether the handler is asked to stop: save a checkpoint, and return `Cancel()`."""
        return self._cancelled

    def headers(self) -> dict[str, str]:
        """HTTP headers with this job's trace and correlation ids, for the handler's own requests."""
        headers = {"X-Trace-Id": self.trace_id, "X-Correlation-Id": self.correlation_id}
        if len(self.trace_id) == 32 and not set(self.trace_id) - set("0123456789abcdef"):
            headers["traceparent"] = f"00-{self.trace_id}-{self.job.id % 2**64:016x}-01"
        return headers

    def stage(self, name: Stage) -> StageBlock:
        """`with ctx.stage("fetch"):`, in async handlers too: a failure inside the block is recorded with that stage.

        The innermost block counts. Refuses a name that is not fetch, input, exec, output or commit.
        """
        if name not in STAGES:
            raise BadInput(f"a stage is one of {', '.join(STAGES)}, not {name!r}. Next: use one of these")
        return StageBlock(self, name)

    @overload
    def complete_in(self, connection: SyncConnection, result: Any = None) -> None: ...
    @overload
    def complete_in(self, connection: AsyncConnection, result: Any = None) -> Awaitable[None]: ...
    def complete_in(self, connection: Any, result: Any = None) -> Any:
        """End the job as succeeded in the transaction of this connection: it commits with the handler's own rows.

        The connection is one that `enqueue_in` takes. Raises StaleLease when another worker holds the job: let it end
        the transaction. What the handler returns is not stored then. Outputs and events so far are in the transaction
        too.
        """
        additions = self._additions()
        if self._datasets is not None:
            self._datasets.ended_in_transaction = True
        return self._port.complete_in(connection, result, additions)

    def input(self, dataset: str | Named) -> Input:
        """Read a dataset that the task declares in `reads`, in the generation that was pinned when the job was made."""
        return Input(self._handler_datasets(), dataset_name(dataset))

    def output(self, dataset: str | Named) -> Output:
        """Add to a dataset that the task declares in `writes`: stored in the transaction that ends the job."""
        return self._handler_datasets().output(dataset_name(dataset))

    def emit(
        self,
        dataset: str | Named,
        *,
        cursor: str | int | None = None,
        partition_key: str | None = None,
        start: str | int | None = None,
        end: str | int | None = None,
        generation: int | None = None,
    ) -> None:
        """Emit an event of a dataset: this input of it is done. Each subscribed task runs once for it (`@app.on`).

        cursor or partition_key     which input: one of them
        start, end                  the range of it
        generation                  default: the one that the job writes

        The event is stored in the transaction that ends the job, and routed once its generation is current.
        """
        event = DatasetEvent(dataset_name(dataset), generation, cursor, partition_key, start, end)
        check_event("event", event)
        if self._emitted is None:
            self._emitted = []
        self._emitted.append(event)

    async def progress(self, value: Any) -> None:
        """Store the progress: any JSON value."""
        await self._port.progress(value)

    async def checkpoint(self, value: Any) -> None:
        """Store a checkpoint: any JSON value. The next attempt finds it as `ctx.last_checkpoint`."""
        await self._port.checkpoint(value)
        self.last_checkpoint = value

    @overload
    async def effect(self, node: str, do: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def effect(self, node: str, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def effect(self, node: str, do: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `do` once over all attempts and record its result under `node`; later attempts get that result.

        The process may die between the call and the record, and then `do` is called again. A service that must not act
        twice even then has to recognise `ctx.execution_key`.
        """
        if self._effects is None:
            self._effects = dict(await self._port.effects())
        if node not in self._effects:
            done = do(*args, **kwargs)
            self._effects[node] = await self._port.effect(node, await done if inspect.isawaitable(done) else done)
        return self._effects[node]

    def progress_sync(self, value: Any) -> None:
        """`progress`, from a plain function."""
        self._wait(self.progress(value))

    def checkpoint_sync(self, value: Any) -> None:
        """`checkpoint`, from a plain function."""
        self._wait(self.checkpoint(value))

    def effect_sync(self, node: str, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """`effect`, from a plain function; `do` is called in this thread."""
        if self._effects is None:
            self._effects = dict(self._wait(self._port.effects()))
        if node not in self._effects:
            self._effects[node] = self._wait(self._port.effect(node, do(*args, **kwargs)))
        return cast("T", self._effects[node])

    def _handler_datasets(self) -> HandlerDatasets:
        if self._datasets is None:
            self._datasets = HandlerDatasets(self.job.id, self._port, self._wait)
        return self._datasets

    def _additions(self) -> Additions | None:
        """What the completion adds to datasets; None: nothing."""
        if self._datasets is None and self._emitted is None:
            return None
        return Additions(() if self._datasets is None else self._datasets.outputs(), tuple(self._emitted or ()))

    def _request_cancel(self) -> None:
        self._cancelled = True

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        coroutine.close()
        raise BadInput("the _sync forms are for plain functions. Next: in an async handler use `await ctx.progress(…)`")


class StageBlock:
    """The block of `with ctx.stage(name):`. No generator: contextlib reads attributes that an error may refuse."""

    __slots__ = ("_ctx", "_name")

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self._name = name

    def __enter__(self) -> None:
        """Enter the stage."""
        self._ctx._stages.append(self._name)
        self._ctx._port.set_stage(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the stage; mark an error that leaves the block with it."""
        open_blocks = self._ctx._stages
        del open_blocks[len(open_blocks) - 1 - open_blocks[::-1].index(self._name)]
        self._ctx._port.set_stage(open_blocks[-1] if open_blocks else None)
        if error is not None:
            mark_stage(self._ctx, error, self._name)


def mark_stage(ctx: Context, error: BaseException, stage: str) -> None:
    """Mark an error with the stage of this execution in which it was raised; the first mark stays."""
    if stage_of(ctx, error) is None:
        with contextlib.suppress(Exception):  # an exception may refuse attributes
            setattr(error, _STAGE_MARK, (ctx.job.id, ctx.attempt, stage))


def stage_of(ctx: Context, error: BaseException) -> str | None:
    """The stage of this execution that an error, its cause or a member of its group is marked with; None: no stage."""
    unread, seen = [error], set[int]()
    while unread:
        each = unread.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        try:
            job_id, attempt, stage = getattr(each, _STAGE_MARK, (None, None, None))
            if (job_id, attempt) == (ctx.job.id, ctx.attempt):  # one exception object may be raised in several jobs
                return cast("str", stage)
            unread += [each.__cause__] if each.__cause__ is not None else []
            unread += reversed(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
        except Exception:  # its attributes cannot be read, so it has no mark
            continue
    return None


def read_effect(result_json: str | None) -> Any:
    """The recorded result of an effect."""
    return None if result_json is None else json.loads(result_json)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Return this to run the job again after this time; costs no attempt, where the contract allows a snooze."""

    seconds: float | timedelta

    @property
    def milliseconds(self) -> int:
        """The time in milliseconds."""
        seconds = self.seconds.total_seconds() if isinstance(self.seconds, timedelta) else self.seconds
        return max(0, round(seconds * 1_000))


@dataclass(frozen=True, slots=True)
class Cancel:
    """Return this to end the job as cancelled; the reason is recorded."""

    reason: str | None = None
