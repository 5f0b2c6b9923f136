"""The apps of a Django project: one for each database (and name) that a `TenureBackend` of its settings uses.

This module is the home of every handler: a process that a worker starts for one job imports the handler from here
(`__getattr__`), and the project is loaded first.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from tenure.app import App
from tenure.client.connections import Connections
from tenure.errors import BadInput
from tenure.integrations.django.connection import close_connections, close_connections_async, database_url
from tenure.integrations.django.execution import FinishSignal, handler_of
from tenure.integrations.django.framework import Task as FrameworkTask
from tenure.integrations.django.framework import task_backends
from tenure.integrations.django.result import to_priority
from tenure.jobs.keyword_options import refuse_unknown
from tenure.postgres.registry import Registry
from tenure.settings import Settings
from tenure.task import Task

_apps: dict[tuple[str, str | None], ProjectApp] = {}
_changing = threading.Lock()
#: OPTIONS of a backend that are its own, and those that are passed on to `@app.task`.
_OWN = {"database", "name", "modules", "migrate"}
_TASK_OPTIONS = set(inspect.signature(App.task).parameters) - {"self", "function", "name", "queue", "priority"}


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What OPTIONS of a backend say."""

    #: The alias in DATABASES.
    database: str = "default"
    #: The app's name, a prefix of its job types; None: no prefix.
    name: str | None = None
    #: Modules with tasks, beside the modules `tasks` of the installed apps.
    modules: Sequence[str] = ()
    #: Whether `manage.py migrate` creates and upgrades the schema.
    migrate: bool = True
    #: Options of `@app.task` for every task of the backend.
    task: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> BackendOptions:
        """Read OPTIONS; refuses unknown names, and what the framework's task decides."""
        for name, own in (("queue", "queue_name="), ("priority", "priority=")):
            if name in given:
                raise BadInput(f"OPTIONS of a TenureBackend has no {name!r}. Next: give it to each task, @task({own}…)")
        task = {name: value for name, value in given.items() if name not in _OWN}
        refuse_unknown("OPTIONS of a TenureBackend", task, sorted(_OWN | _TASK_OPTIONS))
        return cls(**{name: value for name, value in given.items() if name in _OWN}, task=task)


class ProjectApp(App):
    """An App on a database of the settings. Handlers get Django's connections as a request does."""

    def __init__(self, database: str, name: str | None) -> None:
        # Jobs are enqueued on Django's connection, so a dispatcher has no part in it.
        loaded = replace(Settings.load(), dispatcher_url=None, database_url=None, require_database=True)
        #: The framework's tasks, by job type.
        self.framework_tasks: dict[str, FrameworkTask[..., Any]] = {}
        super().__init__(name=name, settings=loaded, middleware=[FinishSignal(self.framework_tasks)])
        self.database = database
        self.registry = Registry(loaded.numbers)
        self._module = getattr(settings, "SETTINGS_MODULE", None) or "django"
        self._connections = _ProjectConnections(database, loaded, self._forget, self._seen_workers.close)

    def _declare(self, function: Callable[..., Any], **declared: Any) -> Task[..., Any]:
        name = str(declared.get("name") or getattr(function, "__name__", type(function).__name__))
        handler = _with_connections_closed(function)
        full_name = name if self.name is None else f"{self.name}.{name}"
        handler.__module__, handler.__qualname__ = __name__, _home(self.database, full_name)
        return super()._declare(handler, **{**declared, "name": name})

    def declare(self, task: FrameworkTask[..., Any], options: Mapping[str, Any]) -> Task[..., Any]:
        """Return Tenure's task for a task of the framework, with these options of `@app.task`."""
        name = task.module_path if self.name is None else f"{self.name}.{task.module_path}"
        with _changing:
            if name not in self.tasks:
                declared = {**options, "name": task.module_path, "queue": task.queue_name}
                self._declare(handler_of(task), priority=to_priority(task.priority), **declared)
                self.framework_tasks[name] = task
            return self.tasks[name]

    def worker(self, *, queues: Any = None, **options: Any) -> Any:
        """Return a worker for this app's tasks; by default on the QUEUES of its backends, then those of its tasks."""
        load()
        named = [queue for backend in backends() if backend.app is self for queue in backend.queue_order]
        queues = queues or dict.fromkeys([*named, *(task.given.queue for task in self.tasks.values())])
        return super().worker(queues=tuple(queues), **options)


class _ProjectConnections(Connections):
    """Connections to a database of the settings, whose name a test runner may change."""

    def __init__(self, database: str, *others: Any) -> None:
        super().__init__(None, *others)
        self._database = database

    def url(self) -> str:
        """The address of the database, as it is now."""
        self._url = database_url(self._database)
        return super().url()


def app(backend: str = "default") -> ProjectApp:
    """Return the App of a backend in TASKS: for Tenure's own tasks (`@app().task`), and for reading their jobs."""
    found: ProjectApp = _backend(backend).app
    return found


def shared_app(options: BackendOptions) -> ProjectApp:
    """Return the App of these options; backends with the same database and name share it."""
    key = (options.database, options.name)
    with _changing:
        if key not in _apps:
            _apps[key] = ProjectApp(*key)
        return _apps[key]


def backends() -> list[Any]:
    """Return every `TenureBackend` of the settings."""
    from tenure.integrations.django.backend import TenureBackend

    return [backend for backend in task_backends.all() if isinstance(backend, TenureBackend)]


def load() -> None:
    """Load the project: its apps, their modules `tasks`, and the modules that OPTIONS name."""
    if not apps.ready:
        django.setup()
    autodiscover_modules("tasks")
    for backend in backends():
        for module in backend.tenure_options.modules:
            import_module(module)


def _backend(alias: str) -> Any:
    from tenure.integrations.django.backend import TenureBackend

    backend = task_backends[alias]
    if not isinstance(backend, TenureBackend):
        raise BadInput(
            f"TASKS[{alias!r}] is {type(backend).__name__}, not a TenureBackend. "
            "Next: set its BACKEND to 'tenure.integrations.django.TenureBackend'"
        )
    return backend


def _with_connections_closed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Close connections of Django that are broken or too old, before and after the handler, as around a request."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            await close_connections_async()
            try:
                return await function(*args, **kwargs)
            finally:
                await close_connections_async()

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        close_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_connections()

    return run


def _home(database: str, name: str) -> str:
    """The name under which another process finds a task in this module; it has no dots, which would be attributes."""
    return f"{database}:{name}".replace(".", "/")


def __getattr__(name: str) -> Task[..., Any]:
    """Return the task with this home; a process that has not loaded the project does it now."""
    database, is_home, _ = name.partition(":")
    if is_home:
        load()
        for (of, _), one in list(_apps.items()):
            for task in list(one.tasks.values()) if of == database else ():
                if task.function.__qualname__ == name:
                    return task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
