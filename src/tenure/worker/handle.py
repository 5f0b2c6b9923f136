"""Call a handler: arguments from the payload, the context if it asks for one, the middleware around it.

The same in the worker's own process and in one of its children; only where the context's words go is different.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tenure.context import Context, current, raised_at, stage_of
from tenure.directive import Cancel, Snooze
from tenure.errors import PermanentError, ValidationError
from tenure.job import Failure, Job
from tenure.middleware import Middleware
from tenure.task import TIMEOUT, Task


@dataclass(slots=True)
class Done:
    """The handler returned this; ready to be stored as JSON."""

    result: Any


Verdict = Done | Failure | Snooze | Cancel


async def handle(
    task: Task[..., Any],
    ctx: Context,
    middleware: Sequence[Middleware],
    threads: ThreadPoolExecutor,
    leave_behind: Callable[[Future[Any]], None] = lambda _: None,
) -> Done | Snooze | Cancel:
    """Run the handler to its end; what it raised is raised."""
    args, kwargs = arguments(task, ctx.job)
    if task.takes_context is not None:
        kwargs[task.takes_context] = ctx
    before = current.set(ctx)
    try:
        if task.is_async and not middleware:
            value = await task.function(*args, **kwargs)
        else:
            value = await _around(middleware, task, ctx, args, kwargs, threads, leave_behind)()
    finally:
        current.reset(before)
    if value is None:
        return Done(None)
    if isinstance(value, (Snooze, Cancel)):
        return value
    try:
        return Done(task.signature.result(value))
    except PermanentError as error:
        raised_at(ctx, error, "output")
        raise


def arguments(task: Task[..., Any], job: Job) -> tuple[list[Any], dict[str, Any]]:
    """The call that a job's payload is; raises ValidationError, with `parse_error` where it cannot be read at all."""
    try:
        payload = job.payload
    except (ValueError, RecursionError) as error:  # more digits or levels than Python reads; the database keeps both
        raise ValidationError(
            f"the payload of task {job.type!r} cannot be read: {error}. Next: correct it and enqueue it again",
            reason="parse_error",
        ) from None
    if isinstance(payload, dict):
        payload.pop(TIMEOUT, None)
    return task.signature.arguments(payload)


def _around(
    middleware: Sequence[Middleware],
    task: Task[..., Any],
    ctx: Context,
    args: list[Any],
    kwargs: dict[str, Any],
    threads: ThreadPoolExecutor,
    leave_behind: Callable[[Future[Any]], None],
) -> Callable[[], Awaitable[Any]]:
    """The call of the handler, wherever that is made, with every middleware around it."""
    if task.is_async:
        go_on: Callable[[], Awaitable[Any]] = functools.partial(task.function, *args, **kwargs)
    else:
        go_on = functools.partial(_in_a_thread, task, args, kwargs, threads, leave_behind)
    for each in reversed(middleware):
        go_on = functools.partial(each.run, ctx, go_on)
    return go_on


async def _in_a_thread(
    task: Task[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    threads: ThreadPoolExecutor,
    leave_behind: Callable[[Future[Any]], None],
) -> Any:
    context = contextvars.copy_context()
    thread = threads.submit(context.run, _called, functools.partial(task.function, *args, **kwargs))
    try:
        return await asyncio.wrap_future(thread)
    except asyncio.CancelledError:
        leave_behind(thread)
        raise


def _called(call: Callable[[], Any]) -> Any:
    """Call it; no future can carry a StopIteration, which a plain function may well raise."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error


def failure_of(error: BaseException, ctx: Context | None = None, *, stage: str | None = None) -> Failure:
    """What a handler raised, with the stage at which it did, or else this one: facts for the contract to judge."""
    failure = replace(Failure.of(error), stage=stage_of(ctx, error) if ctx is not None else None)
    if isinstance(error, ValidationError):
        return replace(failure, code=error.reason, stage=failure.stage or stage or "input")
    return replace(failure, stage=failure.stage or stage)
