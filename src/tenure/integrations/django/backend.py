"""The backend of Django's tasks framework: its tasks are jobs, enqueued and read on Django's own connection."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core import checks
from django.utils import timezone

from tenure.errors import TenureError
from tenure.integrations.django.connection import check_database, open_connection
from tenure.integrations.django.execution import handler_of
from tenure.integrations.django.framework import (
    BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_enqueued,
)  # fmt: skip
from tenure.integrations.django.project import BackendOptions, ProjectApp, shared_app
from tenure.integrations.django.result import read_job, to_result
from tenure.jobs import validation
from tenure.jobs.job import Job
from tenure.task import Task as TenureTask

#: Job type → the framework's task, for every app: (database, type) → task.
_declared: dict[tuple[str, str], Any] = {}


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
        """Refuse a task that the framework refuses; declare it to the App, so that a worker knows it."""
        super().validate_task(task)
        self._tenure_task(task)

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Enqueue a job on Django's connection: in its transaction, where it is in one."""
        self.validate_task(task)
        result: TaskResult[Any] = TaskResult(
            task=task, id="", status=TaskResultStatus.READY, enqueued_at=timezone.now(), started_at=None,
            finished_at=None, last_attempted_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip
        wanted = self._tenure_task(task).options(
            queue=task.queue_name, priority=to_priority(task.priority), run_at=_aware(task.run_after)
        )
        ticket = wanted.enqueue_in(open_connection(self.tenure_options.database), *result.args, **result.kwargs)
        object.__setattr__(result, "id", str(ticket.id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Read a job as the framework's result; raises TaskResultDoesNotExist where no task of this backend has it."""
        if not (result_id.isascii() and result_id.isdecimal() and 0 < int(result_id) <= validation.MAX_ID):
            raise TaskResultDoesNotExist(result_id)
        found = read_job(open_connection(self.tenure_options.database), self.app.registry, int(result_id))
        task = None if found is None else self.task_of(found.job)
        if found is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return to_result(task, self.alias, found)

    def task_of(self, job: Job) -> Task[..., Any] | None:
        """Return the framework's task of a job; None where the job belongs to no task of this backend."""
        return declared_task(self, job.type)

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Report a database that Tenure cannot use."""
        try:
            check_database(self.tenure_options.database)
        except (TenureError, Exception) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="tenure.E001")
