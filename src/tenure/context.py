"""What a handler may know and say about the job that it runs.

A handler that takes a `Context` is given one. Everything that it writes is fenced by the lease: a worker that lost the
job gets `LeaseConflictError` and nothing is stored. Handlers that are plain functions use the `…_sync` forms.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, cast, overload
from uuid import UUID

from tenure.errors import BadInput
from tenure.job import STAGES, Job, Stage

T = TypeVar("T")

#: The attribute of an exception that says in which execution it was raised, and at which stage of it.
_RAISED_AT: Final = "_tenure_stage"

#: The context of the handler that is running here, so that what it enqueues carries its trace on.
current: ContextVar[Context | None] = ContextVar("tenure_context", default=None)


class Port(Protocol):
    """Where a context's words go: to the worker's source, or from a process of its own to its worker."""

    async def progress(self, value: Any) -> None:
        """Show how far the work is."""

    async def checkpoint(self, value: Any) -> None:
        """Save what the next attempt shall begin with."""

    async def effects(self) -> Mapping[str, Any]:
        """The nodes that have had their effect, with what came of each."""

    async def effect(self, node: str, result: Any) -> Any:
        """Record a node's effect; what is on record for it."""

    def at_stage(self, name: str | None) -> None:
        """The handler is at this stage from now on; None: at none that it names."""


class Context:
    """The job that a handler runs: what is known of it, and what may be said about it."""

    __slots__ = ("_cancelled", "_had", "_loop", "_port", "_stages", "job", "last_checkpoint")

    def __init__(self, job: Job, port: Port, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        #: What this job last saved, in this attempt or an earlier one; None before that.
        self.last_checkpoint: Any = job.checkpoint
        self._port = port
        self._loop = loop
        self._cancelled = False
        self._had: dict[str, Any] | None = None
        #: The open blocks of `stage`, innermost last.
        self._stages: list[str] = []

    @property
    def attempt(self) -> int:
        """How often the job was claimed, this time included."""
        return self.job.claims

    @property
    def token(self) -> UUID:
        """The lease's token."""
        return self.job.held.token

    @property
    def execution_key(self) -> str:
        """What to give to whoever must recognise a repeat of this execution: the job's id and its counter."""
        return f"{self.job.id}:{self.job.counter}"

    @property
    def trace_id(self) -> str:
        """The trace that this job belongs to."""
        return self.job.trace_id

    @property
    def correlation_id(self) -> str:
        """What this job has in common with others of the same matter."""
        return self.job.correlation_id

    @property
    def cancelled(self) -> bool:
        """Whether the handler is asked to stop: save a checkpoint, and return `Cancel()`."""
        return self._cancelled

    def headers(self) -> dict[str, str]:
        """Headers for the next request, so that it carries this job's trace and correlation ids on."""
        headers = {"X-Trace-Id": self.trace_id, "X-Correlation-Id": self.correlation_id}
        if len(self.trace_id) == 32 and not set(self.trace_id) - set("0123456789abcdef"):
            headers["traceparent"] = f"00-{self.trace_id}-{self.job.id % 2**64:016x}-01"
        return headers

    def stage(self, name: Stage) -> StageBlock:
        """`with ctx.stage("fetch"):`, in async handlers too: a failure inside the block is recorded with that stage.

        Of nested blocks the innermost counts. Refuses a name that is not fetch, input, exec, output or commit.
        """
        if name not in STAGES:
            raise BadInput(f"a stage is one of {', '.join(STAGES)}, not {name!r}. Next: use one of these")
        return StageBlock(self, name)

    async def progress(self, value: Any) -> None:
        """Show how far the work is; anything JSON."""
        await self._port.progress(value)

    async def checkpoint(self, value: Any) -> None:
        """Save what the next attempt shall begin with: it is `ctx.last_checkpoint` there."""
        await self._port.checkpoint(value)
        self.last_checkpoint = value

    @overload
    async def effect(self, node: str, do: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def effect(self, node: str, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def effect(self, node: str, do: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do something once over all attempts: a node that is on record is not done again, its result is given.

        Between the deed and its record the process may die: what must not happen twice even then has to recognise
        `ctx.execution_key` itself.
        """
        if self._had is None:
            self._had = dict(await self._port.effects())
        if node not in self._had:
            done = do(*args, **kwargs)
            self._had[node] = await self._port.effect(node, await done if inspect.isawaitable(done) else done)
        return self._had[node]

    def progress_sync(self, value: Any) -> None:
        """`progress`, from a plain function."""
        self._wait(self.progress(value))

    def checkpoint_sync(self, value: Any) -> None:
        """`checkpoint`, from a plain function."""
        self._wait(self.checkpoint(value))

    def effect_sync(self, node: str, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """`effect`, from a plain function; the deed is done in this thread."""
        if self._had is None:
            self._had = dict(self._wait(self._effects()))
        if node not in self._had:
            self._had[node] = self._wait(self._recorded(node, do(*args, **kwargs)))
        return cast("T", self._had[node])

    def _ask_to_stop(self) -> None:
        self._cancelled = True

    async def _effects(self) -> Mapping[str, Any]:
        return await self._port.effects()

    async def _recorded(self, node: str, result: Any) -> Any:
        return await self._port.effect(node, result)

    def _wait(self, said: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(said, self._loop).result()
        said.close()
        raise BadInput("an async handler waits with await: use the form without _sync, as in `await ctx.progress(…)`")


class StageBlock:
    """The block of `with ctx.stage(name):`."""

    __slots__ = ("_ctx", "_name")

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self._name = name

    def __enter__(self) -> None:
        """The stage begins."""
        self._ctx._stages.append(self._name)
        self._ctx._port.at_stage(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """The stage ends; an error that leaves it keeps its name."""
        open_blocks = self._ctx._stages
        del open_blocks[len(open_blocks) - 1 - open_blocks[::-1].index(self._name)]
        self._ctx._port.at_stage(open_blocks[-1] if open_blocks else None)
        if error is not None:
            raised_at(self._ctx, error, self._name)


def raised_at(ctx: Context, error: BaseException, stage: str) -> None:
    """Note on an error at which stage of this execution it was raised; the first note stands."""
    if stage_of(ctx, error) is None:
        setattr(error, _RAISED_AT, (ctx.job.id, ctx.attempt, stage))


def stage_of(ctx: Context, error: BaseException) -> str | None:
    """At which stage of this execution an error was raised, or its cause, or one of its group; None: at none named."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        job_id, attempt, stage = getattr(each, _RAISED_AT, (None, None, None))
        if (job_id, attempt) == (ctx.job.id, ctx.attempt):  # one exception object may be raised in several jobs
            return cast("str", stage)
        waiting += [each.__cause__] if each.__cause__ is not None else []
        waiting += reversed(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
    return None


def recorded(result_json: str | None) -> Any:
    """The result of an effect as it is on record."""
    return None if result_json is None else json.loads(result_json)
