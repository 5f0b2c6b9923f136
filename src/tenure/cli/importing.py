"""Something of the user's own in a Python module, named as module:NAME."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

IN_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)\Z")


def imported(wanted: str) -> Any:
    """The value of that name, with the current directory importable as `python -m` does; says why it cannot be had."""
    from tenure.errors import BadInput, TenureError

    found = IN_MODULE.match(wanted)
    if found is None:
        raise BadInput(f"{wanted!r} names nothing in a module. Next: give it as module:name, for example shop.jobs:app")
    module, name = found.groups()
    if (here := str(Path.cwd())) not in sys.path[:1]:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except TenureError:
        raise
    except (Exception, SystemExit) as error:  # a user's module can raise anything
        raise BadInput(
            f"{module}:{name} cannot be had: {type(error).__name__}: {error}{_where(error)}. "
            f"Next: run this where {module} can be imported"
        ) from None


def _where(error: BaseException) -> str:
    """The line that raised it, where that is not the import itself."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    inside = last.filename != __file__ and not last.filename.startswith("<frozen")
    return f" ({Path(last.filename).name}, line {last.lineno})" if inside else ""
