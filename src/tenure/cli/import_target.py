"""A value in a Python module of the user, named as module:NAME."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from tenure.errors import BadInput, TenureError

TARGET = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)\Z")


def import_target(target: str) -> Any:
    """Import module:NAME, with the current directory on the path as `python -m` does; refuses with the reason."""
    found = TARGET.match(target)
    if found is None:
        raise BadInput(f"{target!r} names nothing in a module. Next: give it as module:name, for example shop.jobs:app")
    module, name = found.groups()
    if (here := str(Path.cwd())) not in sys.path[:1]:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except TenureError:
        raise
    except (Exception, SystemExit) as error:  # a user's module can raise anything
        raise BadInput(
            f"{module}:{name} cannot be imported: {type(error).__name__}: {error}{_place(error)}. Next: "
            f"{_next_step(error, module)}"
        ) from None


def _next_step(error: BaseException, module: str) -> str:
    """What to do, by whether the module is not there, lacks a library, or raises."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"run this where {module} can be imported"
    if isinstance(error, ImportError):
        return f"install what {module} imports where this runs: {sys.executable} -m pip install …"
    if isinstance(error, AttributeError) and getattr(error.obj, "__name__", None) == module:
        return f"give a name that {module} has"
    return f"correct {module}; python -c 'import {module}' shows the whole traceback"


def _place(error: BaseException) -> str:
    """The file and line that raised the error, unless the import itself did."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    inside = last.filename != __file__ and not last.filename.startswith("<frozen")
    return f" ({Path(last.filename).name}, line {last.lineno})" if inside else ""
