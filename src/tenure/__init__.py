"""Tenure: durable jobs on PostgreSQL, held under a lease and moved by a contract."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# The public names, sorted, at most 20. To add one: here, in `_HOMES`, and as an import for type checkers.
__all__ = (
    "App",
    "AsyncTaskQueue",
    "Cancel",
    "Context",
    "Contract",
    "DependencyUnavailable",
    "Job",
    "JobFailed",
    "LeaseConflictError",
    "Middleware",
    "PermanentError",
    "PolicyViolation",
    "Settings",
    "Snooze",
    "Task",
    "TenureError",
    "Ticket",
    "TransientError",
    "ValidationError",
)

# Where each public name lives. They are loaded at first use, so that `import tenure` costs next to nothing
# and loads no driver.
_HOMES: dict[str, str] = {
    "App": "tenure.app",
    "AsyncTaskQueue": "tenure.queue",
    "Cancel": "tenure.directive",
    "Context": "tenure.context",
    "Contract": "tenure.contract",
    "DependencyUnavailable": "tenure.errors",
    "Job": "tenure.job",
    "JobFailed": "tenure.errors",
    "LeaseConflictError": "tenure.errors",
    "Middleware": "tenure.middleware",
    "PermanentError": "tenure.errors",
    "PolicyViolation": "tenure.errors",
    "Settings": "tenure.settings",
    "Snooze": "tenure.directive",
    "Task": "tenure.task",
    "TenureError": "tenure.errors",
    "Ticket": "tenure.task",
    "TransientError": "tenure.errors",
    "ValidationError": "tenure.errors",
}

if TYPE_CHECKING:
    from tenure.app import App as App
    from tenure.context import Context as Context
    from tenure.contract import Contract as Contract
    from tenure.directive import Cancel as Cancel
    from tenure.directive import Snooze as Snooze
    from tenure.errors import DependencyUnavailable as DependencyUnavailable
    from tenure.errors import JobFailed as JobFailed
    from tenure.errors import LeaseConflictError as LeaseConflictError
    from tenure.errors import PermanentError as PermanentError
    from tenure.errors import PolicyViolation as PolicyViolation
    from tenure.errors import TenureError as TenureError
    from tenure.errors import TransientError as TransientError
    from tenure.errors import ValidationError as ValidationError
    from tenure.job import Job as Job
    from tenure.middleware import Middleware as Middleware
    from tenure.queue import AsyncTaskQueue as AsyncTaskQueue
    from tenure.settings import Settings as Settings
    from tenure.task import Task as Task
    from tenure.task import Ticket as Ticket
else:
    # Hidden from type checkers, which would otherwise take any misspelt name for an object.

    def __getattr__(name: str) -> object:
        """Load a public name at its first use."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """What the module has, loaded or not."""
        return sorted({*globals(), *_HOMES})
