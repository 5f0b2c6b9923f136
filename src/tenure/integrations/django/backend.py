"""The backend of Django's tasks framework: its tasks are jobs, enqueued and read on Django's own connection."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from django.apps import apps
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist

from tenure.errors import BadInput
from tenure.integrations.django.connection import check_database, open_connection
from tenure.integrations.django.framework import (
    BaseTaskBackend,
    Status,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from tenure.integrations.django.project import BackendOptions, ProjectApp, load, shared_app
from tenure.integrations.django.result import read_job, to_priority, to_result
from tenure.jobs import validation

#: OPTIONS that a job takes with it, so that `task.using(backend=…)` means them.
_OF_A_JOB = ("contract", "tenant", "delay", "timeout", "max_attempts")


class TenureBackend(BaseTaskBackend):
    """Tasks of Django's framework as jobs of Tenure."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.tenure_options = BackendOptions.read(self.options)
        #: QUEUES in the order of the settings, in which a worker claims.
        self.queue_order = tuple(params.get("QUEUES", ["default"]))

    @property
    def app(self) -> ProjectApp:
        """The App of this backend."""
        return shared_app(self.tenure_options)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Refuse a task that the framework refuses; declare it to the App, so that workers know it."""
        super().validate_task(task)
        self.app.declare(task, self.tenure_options.task)

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Enqueue a job on Django's connection: in its transaction, where there is one."""
        self.validate_task(task)
        result: TaskResult[Any] = TaskResult(
            task=task, id="", status=Status.READY, enqueued_at=timezone.now(), started_at=None,
            finished_at=None, last_attempted_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip
        options, database = self.tenure_options.task, self.tenure_options.database
        of_job = {name: options[name] for name in _OF_A_JOB if name in options}
        if task.run_after is not None:
            of_job["delay"] = None  # the time that the task itself names
        wanted = self.app.declare(task, options).options(
            queue=task.queue_name, priority=to_priority(task.priority), run_at=_aware(task.run_after),
            **of_job,
        )  # fmt: skip
        check_database(database)
        connection = connections[database]
        with nullcontext() if connection.in_atomic_block else transaction.atomic(using=database):
            ticket = wanted.enqueue_in(connection, *result.args, **result.kwargs)
        object.__setattr__(result, "id", str(ticket.id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Read a job as the framework's result; raises TaskResultDoesNotExist where it is no job of such a task."""
        if result_id.isascii() and result_id.isdecimal() and 0 < int(result_id) <= validation.MAX_ID:
            found = read_job(open_connection(self.tenure_options.database), self.app.registry, int(result_id))
            if found is not None and (task := self._task_of(found.job.type)) is not None:
                return to_result(task, found)
        raise TaskResultDoesNotExist(result_id)

    def _task_of(self, job_type: str) -> Task[..., Any] | None:
        tasks = self.app.framework_tasks
        if job_type not in tasks:
            load()  # this process may not have imported the task's module
        return tasks.get(job_type)

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Report settings with which nothing can be enqueued."""
        try:
            check_database(self.tenure_options.database)
        except (BadInput, ConnectionDoesNotExist) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="tenure.E001")
        if not apps.is_installed("tenure.integrations.django"):
            yield checks.Warning(
                f"TASKS[{self.alias!r}] uses Tenure, whose app is not installed: `manage.py tenure` is missing, and "
                "`manage.py migrate` leaves its schema out.",
                hint="Add 'tenure.integrations.django' to INSTALLED_APPS.", id="tenure.W001",
            )  # fmt: skip


def _aware(moment: datetime | None) -> datetime | None:
    """A time with a zone; one without is in the current zone of Django (USE_TZ = False)."""
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment
