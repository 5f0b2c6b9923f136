"""Settings of Python's garbage collector for a process that only runs or serves jobs."""

from __future__ import annotations

import gc

#: The collector runs after this many new objects.
_THRESHOLD = 20_000


def collect_seldom() -> None:
    """Exclude all existing objects from collections, and collect less often.

    Jobs leave no reference cycles, but answers with many rows would start the collector again and again.
    """
    gc.freeze()
    if gc.get_threshold()[0] < _THRESHOLD:
        gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])
