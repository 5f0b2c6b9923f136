"""What a worker does for a task of the framework: passes its context, and sends `task_started` and `task_finished`.

handler_of    the handler of a task: sends `task_started`, then calls the task's function
FinishSignal  sends `task_finished` when the database has ended the job; an attempt that is retried sends none
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async

from tenure.context import current
from tenure.errors import Refused
from tenure.integrations.django.connection import close_connections_async
from tenure.integrations.django.framework import (
    Status,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    task_finished,
    task_started,
)
from tenure.integrations.django.result import start_result
from tenure.jobs.job import Job
from tenure.jobs.outcome import Outcome
from tenure.middleware import Middleware
from tenure.task import CHILD

#: Results of attempts that have ended here and are not reported yet: installation, job and claim → result.
_ended: dict[tuple[str, int, int], TaskResult[Any]] = {}
_MOST_ENDED = 1_000


def handler_of(task: Task[..., Any]) -> Callable[..., Any]:
    """Return the function that a worker calls with the arguments of a job of this task."""
    sender = type(task.get_backend())

    def context(result: TaskResult[Any]) -> list[TaskContext]:
        return [TaskContext(task_result=result)] if task.takes_context else []

    if inspect.iscoroutinefunction(task.func):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            job = _current_job()
            result = start_result(task, job) if job.claims == 1 else await sync_to_async(_read)(task, job)
            await task_started.asend(sender, task_result=result)
            try:
                value = await task.func(*context(result), *args, **kwargs)
            except Exception as error:
                _note_failure(job, result, error)
                raise
            _note(job, result, Status.SUCCESSFUL, value)
            return value

        return run_async

    def run(*args: Any, **kwargs: Any) -> Any:
        job = _current_job()
        result = start_result(task, job) if job.claims == 1 else _read(task, job)
        task_started.send(sender, task_result=result)
        try:
            value = task.func(*context(result), *args, **kwargs)
        except Exception as error:
            _note_failure(job, result, error)
            raise
        _note(job, result, Status.SUCCESSFUL, value)
        return value

    return run


class FinishSignal(Middleware):
    """Sends `task_finished` for the jobs of the framework's tasks."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]]) -> None:
        """`tasks`: the framework's tasks by job type."""
        self._tasks = tasks

    async def finish(self, job: Job, outcome: Outcome) -> None:
        """Send the signal if the job has ended; what this process did not run is read from the database."""
        result, task = _ended.pop(_attempt(job), None), self._tasks.get(job.type)
        if task is None or isinstance(outcome, Refused) or outcome.role != "done":
            return
        # A function may return what ends the job in another way: a `Cancel`, or what is no JSON.
        if result is None or (result.status == Status.SUCCESSFUL) != (outcome.trigger == "succeed"):
            result = await sync_to_async(_read)(task, job)
        else:
            object.__setattr__(result, "finished_at", outcome.at)
        await task_finished.asend(type(task.get_backend()), task_result=result)
        await close_connections_async()


def _current_job() -> Job:
    running = current.get()
    assert running is not None, "a worker calls this"
    return running.job


def _attempt(job: Job) -> tuple[str, int, int]:
    return job.installation, job.id, job.claims


def _read(task: Task[..., Any], job: Job) -> TaskResult[Any]:
    return task.get_backend().get_result(str(job.id))


def _note(job: Job, result: TaskResult[Any], status: Any, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", status)
    if CHILD in os.environ:  # the worker, another process, reports the job
        return
    _ended[_attempt(job)] = result
    if len(_ended) > _MOST_ENDED:  # some belong to jobs that were lost; of others the database is read
        for key in list(_ended)[: _MOST_ENDED // 2]:
            _ended.pop(key, None)


def _note_failure(job: Job, result: TaskResult[Any], error: Exception) -> None:
    kind = type(error)
    stack = "".join(traceback.format_exception(error))
    result.errors.append(TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=stack))
    _note(job, result, Status.FAILED, None)
