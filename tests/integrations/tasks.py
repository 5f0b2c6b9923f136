"""Tasks of Django's framework, and of Tenure, for the tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django.db import connection
from django_tasks import TaskContext, task

from tenure.integrations.django import app

#: What ran in this process, in order.
ran: list[Any] = []


class Flaky(Exception):
    """A failure of these tasks."""


@task
def add(a: int, b: int = 1) -> int:
    """Add."""
    ran.append(a)
    return a + b


@task
async def add_async(a: int, b: int = 1) -> int:
    """Add, on the event loop."""
    ran.append(a)
    return a + b


@task(takes_context=True)
def attempt(context: TaskContext, fails: int) -> list[Any]:
    """Fail so many times; then say which attempt it is, and what failed before."""
    if context.attempt <= fails:
        raise Flaky(f"attempt {context.attempt}\nfails")
    return [context.attempt, context.task_result.id, [each.exception_class_path for each in context.task_result.errors]]


@task(takes_context=True)
async def attempt_async(context: TaskContext, fails: int) -> int:
    """The same, on the event loop."""
    if context.attempt <= fails:
        raise Flaky(f"attempt {context.attempt} fails")
    return context.attempt


@task
def session() -> int:
    """The process id of this thread's session in PostgreSQL."""
    connection.ensure_connection()
    pid: int = connection.connection.info.backend_pid
    return pid


@task
def unstorable() -> Any:
    """Return what is no JSON."""
    return object()


@task
def hold(gate: str) -> int:
    """Wait until a file is there; the id of the process that ran it."""
    with Path(f"{gate}.began").open("a") as began:
        began.write(f"{os.getpid()}\n")
    while not Path(gate).exists():
        time.sleep(0.01)
    return os.getpid()


@task(backend="killable")
def own_process() -> list[int]:
    """The ids of the process that runs it, and of its parent; with a query, so that Django must be there."""
    with connection.cursor() as cursor:
        cursor.execute("select 1")
    return [os.getpid(), os.getppid()]


@app().task(queue="plain")
def plain(n: int) -> int:
    """One of Tenure's own."""
    connection.ensure_connection()
    return n + 1
