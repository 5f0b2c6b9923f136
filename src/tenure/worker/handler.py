"""Call a handler: read its arguments from the payload, pass the context if it takes one, with middleware around it.

The worker's own process and its child processes use the same code; only the `Port` of the context differs.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import dropwhile
from types import TracebackType
from typing import Any, Final

from tenure.context import Additions, Cancel, Context, Snooze, current, mark_stage, stage_of
from tenure.dataset import HandlerDatasets
from tenure.errors import BadInput, DatasetConflict, PermanentError, ValidationError
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Job, read_text_attribute
from tenure.middleware import Middleware
from tenure.task import TIMEOUT, Task, find_context_parameter
from tenure.worker.running_job import RunningJob

#: Frames of these modules lie between the worker and the handler in a traceback.
_WORKER_FRAMES: Final = (
    "tenure.worker.", "tenure.middleware", "tenure.integrations.", "asyncio.", "asgiref.", "concurrent.futures.",
)  # fmt: skip


@dataclass(slots=True)
class Returned:
    """The handler returned this result; it can be stored as JSON."""

    result: Any
    #: What the completion adds to datasets; None: nothing.
    additions: Additions | None = None


#: How a handler ended.
HandlerOutcome = Returned | Failure | Snooze | Cancel


@dataclass(slots=True)
class _Raised:
    """A BaseException that is no Exception, raised by a handler in a thread."""

    error: BaseException


async def handle(
    task: Task[..., Any],
    ctx: Context,
    middleware: Sequence[Middleware],
    threads: ThreadPoolExecutor,
    abandon: Callable[[Future[Any]], None] = lambda _: None,
) -> Returned | Snooze | Cancel:
    """Run the handler to its end; its exceptions are raised. `abandon` gets a thread that is still running then."""
    args, kwargs = arguments(task, ctx.job)
    if task.takes_context is not None:
        kwargs[task.takes_context] = ctx
    before, process = current.set(ctx), os.getpid()
    try:
        if task.is_async and not middleware:
            value = await task.function(*args, **kwargs)
        else:
            call = functools.partial(task.function, *args, **kwargs)
            if not task.is_async:
                call = functools.partial(_call_in_thread, call, threads, abandon)
            for each in reversed(middleware):
                call = functools.partial(each.run, ctx, call)
            value = await call()
    finally:
        _exit_if_forked(process)
        current.reset(before)
    if value is not None:
        if isinstance(value, (Snooze, Cancel)):
            return value
        try:
            value = task.signature.result(value)
        except PermanentError as error:
            mark_stage(ctx, error, "output")
            raise
    if ctx._datasets is None and ctx._emitted is None:
        return Returned(value)
    return Returned(value, await _additions(ctx, ctx._datasets))


async def _additions(ctx: Context, datasets: HandlerDatasets | None) -> Additions | None:
    """What the completion adds to datasets, after a large part of it is sent; a wrong output is a permanent failure."""
    try:
        if datasets is not None and not datasets.ended_in_transaction:
            await datasets.send_large()
        return ctx._additions()
    except (BadInput, DatasetConflict) as error:
        permanent = PermanentError(str(error))
        mark_stage(ctx, permanent, "output")
        raise permanent from error


def arguments(task: Task[..., Any], job: Job) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a job's payload; raises ValidationError, with reason `parse_error` where it cannot be read."""
    if task.decided_by is not None and job.contract != task.decided_by:
        raise PermanentError(
            f"task {task.name!r} runs only under contract {task.decided_by}, where people decide, and this job is under"
            f" {job.contract}. Next: enqueue it again with contract={task.decided_by!r}"
        )
    try:
        payload = job.payload
    except (ValueError, RecursionError) as error:  # too many digits or levels for Python
        raise ValidationError(
            f"the payload of task {job.type!r} cannot be read: {error}. Next: correct it and enqueue it again",
            reason="parse_error",
        ) from None
    if isinstance(payload, dict):
        payload.pop(TIMEOUT, None)
    return task.signature.arguments(payload)


def complete_in(
    task: Task[..., Any],
    job: Job,
    note: Callable[[bool], None],
    connection: Any,
    result: Any,
    additions: Additions | None,
) -> Any:
    """End a job in its handler's own transaction; an awaitable if the connection is asynchronous.

    `note` is called with True before the job may have ended, and with False when the call itself was wrong.
    """
    call = HolderCall(job.held, result=None if result is None else task.signature.result(result))
    if additions is not None:
        call.outputs, call.dataset_events = additions
    note(True)
    try:
        done = task.app._succeed_in(connection, call)
    except BadInput:
        note(False)
        raise
    return None if done is None else _note_bad_input(done, note)


async def _note_bad_input(done: Awaitable[None], note: Callable[[bool], None]) -> None:
    try:
        await done
    except BadInput:
        note(False)
        raise


async def undo_effect(running: RunningJob, node: str, result: Any) -> None:
    """Call the function of the job's task that undoes the effect of this node."""
    undo = running.task.undo.get(node) if running.task else None
    if undo is None:
        raise LookupError(f"task {running.job.type!r} has no undo function for effect {node!r}")
    takes_context = find_context_parameter(undo)
    takes_result = next((name for name in inspect.signature(undo).parameters if name != takes_context), None)
    arguments = ((takes_context, running.ctx), (takes_result, result))
    kwargs = {name: value for name, value in arguments if name is not None}
    if inspect.iscoroutinefunction(undo):
        await undo(**kwargs)
    else:
        await asyncio.to_thread(undo, **kwargs)


async def _call_in_thread(
    call: Callable[[], Any], threads: ThreadPoolExecutor, abandon: Callable[[Future[Any]], None]
) -> Any:
    context, thread_ids = contextvars.copy_context(), list[int]()
    thread = threads.submit(context.run, _call_catching_all, call, thread_ids)
    try:
        value = await asyncio.wrap_future(thread)
    except asyncio.CancelledError as error:
        if thread_ids and not thread.done():
            error.add_note("".join(stack_of_thread(thread_ids[0])))  # the thread cannot be stopped
        abandon(thread)
        raise
    if type(value) is _Raised:
        raise value.error
    return value


def stack_of_thread(thread: int) -> list[str]:
    """The stack of a handler that runs in this thread; empty where the thread is about to start another one."""
    frames = traceback.extract_stack(sys._current_frames().get(thread))
    first = max((n for n, one in enumerate(frames) if one.filename == __file__), default=-1) + 1
    is_starting = first > 0 and frames[first - 1].name == _call_in_thread.__name__
    return [] if is_starting else traceback.format_list(frames[first:])


def stack_of_coroutine(coroutine: Any) -> list[str]:
    """The stack of a handler that waits in this coroutine; empty where the coroutine waits for a thread."""
    frames = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    if frames and frames[-1][0].f_code is _call_in_thread.__code__:
        return []
    inside = dropwhile(lambda one: one[0].f_globals.get("__name__", "").startswith(_WORKER_FRAMES), frames)
    return traceback.StackSummary.extract(inside).format()


def _call_catching_all(call: Callable[[], Any], thread_ids: list[int]) -> Any:
    """Call a plain function in this thread; wrap exceptions that a future cannot carry, such as StopIteration."""
    process = os.getpid()
    thread_ids.append(threading.get_ident())
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:  # a future would throw GeneratorExit into the coroutine, which would close it
        return _Raised(error)
    finally:
        _exit_if_forked(process)


def _exit_if_forked(process: int) -> None:
    """End a process that the handler has forked and that returned from the handler: it must not run on as a worker."""
    if os.getpid() != process:
        os._exit(1)


def failure_of(error: BaseException, ctx: Context | None = None, *, stage: str | None = None) -> Failure:
    """A handler's exception as a failure. Its stage is the block that raised it, else `stage`."""
    raised = BaseException.__getattribute__(error, "__traceback__")  # a class may override the attribute
    BaseException.__setattr__(error, "__traceback__", _without_worker_frames(raised))
    failure, stage = Failure.of(error), (stage_of(ctx, error) if ctx is not None else None) or stage
    if issubclass(type(error), ValidationError):
        code = read_text_attribute(error, "reason") or "validation_failed"
        return replace(failure, code=code, stage=stage or "input")
    return replace(failure, stage=stage)


def _without_worker_frames(found: TracebackType | None) -> TracebackType | None:
    """A traceback that starts at the handler; unchanged where it has only frames of the worker."""
    inside = found
    while inside is not None and inside.tb_frame.f_globals.get("__name__", "").startswith(_WORKER_FRAMES):
        inside = inside.tb_next
    return inside or found


def stack_when_interrupted(error: BaseException) -> list[str]:
    """Where a handler was when it was interrupted: the stack of its thread, else of its coroutine."""
    return getattr(error, "__notes__", None) or traceback.format_tb(_without_worker_frames(error.__traceback__))
