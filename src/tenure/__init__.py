"""Tenure: durable jobs on PostgreSQL, held under a lease and moved by a contract."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Module → its public names. They are loaded at first use, so that `import tenure` is fast and loads no driver.
# To add a name (at most 20): here, in `__all__`, and as an import for type checkers.
_MODULES = {
    "tenure.app": ("App",),
    "tenure.context": ("Cancel", "Context", "Snooze"),
    "tenure.contracts.declaration": ("Contract",),
    "tenure.errors": (
        "DependencyUnavailable", "JobFailed", "LeaseConflictError", "PermanentError", "PolicyViolation", "TenureError",
        "TransientError", "ValidationError",
    ),
    "tenure.jobs.job": ("Job",),
    "tenure.middleware": ("Middleware",),
    "tenure.queue": ("AsyncTaskQueue",),
    "tenure.settings": ("Settings",),
    "tenure.task": ("Task", "Ticket"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = (
    "App", "AsyncTaskQueue", "Cancel", "Context", "Contract", "DependencyUnavailable", "Job", "JobFailed",
    "LeaseConflictError", "Middleware", "PermanentError", "PolicyViolation", "Settings", "Snooze", "Task",
    "TenureError", "Ticket", "TransientError", "ValidationError",
)  # fmt: skip

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.context import Cancel, Context, Snooze
    from tenure.contracts.declaration import Contract
    from tenure.errors import (
        DependencyUnavailable,
        JobFailed,
        LeaseConflictError,
        PermanentError,
        PolicyViolation,
        TenureError,
        TransientError,
        ValidationError,
    )
    from tenure.jobs.job import Job
    from tenure.middleware import Middleware
    from tenure.queue import AsyncTaskQueue
    from tenure.settings import Settings
    from tenure.task import Task, Ticket
else:
    # Hidden from type checkers, which would accept any misspelt name otherwise.

    def __getattr__(name: str) -> object:
        """Load a public name at its first use."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the names of the module, loaded or not."""
        return sorted({*globals(), *_HOMES})
