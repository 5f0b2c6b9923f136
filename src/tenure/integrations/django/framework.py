"""Django's tasks framework: `django.tasks` (Django 6), else its backport `django_tasks`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

IN_DJANGO = find_spec("django.tasks") is not None
if not IN_DJANGO and find_spec("django_tasks") is None:
    raise ImportError("Django before 6.0 has no tasks framework. Next: pip install django-tasks")

if TYPE_CHECKING or not IN_DJANGO:
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
else:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started

#: READY, RUNNING, SUCCESSFUL, FAILED; Django has no types for an enumeration.
Status: Any = TaskResultStatus

__all__ = [
    "BaseTaskBackend", "Status", "Task", "TaskContext", "TaskError", "TaskResult", "TaskResultDoesNotExist",
    "task_backends", "task_enqueued", "task_finished", "task_started",
]  # fmt: skip
