"""How a process whose business is jobs sets Python's garbage collector."""

from __future__ import annotations

import gc

#: So many new objects are worth a look.
_SELDOM = 20_000


def collect_seldom() -> None:
    """Leave alone what was made so far, and look less often at what a thousand jobs make.

    Jobs leave no cycles behind; yet as PostgreSQL's answers and requests with many jobs come in, Python would look for
    some again and again.
    """
    gc.freeze()
    if gc.get_threshold()[0] < _SELDOM:
        gc.set_threshold(_SELDOM, *gc.get_threshold()[1:])
