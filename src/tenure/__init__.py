"""Tenure: durable jobs on PostgreSQL, held under a lease and moved by a contract."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# The public names, sorted, at most 20. To add one: here, in `_HOMES`, and as an import for type checkers.
__all__ = ("AsyncTaskQueue",)

# Where each public name lives. They are loaded at first use, so that `import tenure` costs next to nothing
# and loads no driver.
_HOMES: dict[str, str] = {"AsyncTaskQueue": "tenure.queue"}

if TYPE_CHECKING:
    from tenure.queue import AsyncTaskQueue as AsyncTaskQueue
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
