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

from tenure.context import Context, current
from tenure.directive import Cancel, Snooze
from tenure.errors import ValidationError
from tenure.job import Failure
from tenure.middleware import Middleware
from tenure.task import TIMEOUT, Task


@dataclass(frozen=True, slots=True)
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
    payload = ctx.job.payload
    if isinstance(payload, dict):
        payload.pop(TIMEOUT, None)
    args, kwargs = task.signature.arguments(payload)
    if task.takes_context is not None:
        kwargs[task.takes_context] = ctx
    current.set(ctx)
    go_on: Callable[[], Awaitable[Any]] = functools.partial(_call, task, args, kwargs, threads, leave_behind)
    for each in reversed(middleware):
        go_on = functools.partial(each.run, ctx, go_on)
    value = await go_on()
    if isinstance(value, (Snooze, Cancel)):
        return value
    return Done(task.signature.result(value))


async def _call(
    task: Task[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    threads: ThreadPoolExecutor,
    leave_behind: Callable[[Future[Any]], None],
) -> Any:
    if task.is_async:
        return await task.function(*args, **kwargs)
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


def failure_of(error: BaseException) -> Failure:
    """What a handler raised: facts for the contract to judge."""
    failure = Failure.of(error)
    return replace(failure, code=error.reason, stage="input") if isinstance(error, ValidationError) else failure
