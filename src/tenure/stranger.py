"""A job whose task no worker knows: it waits for a release that does, an hour at most."""

from __future__ import annotations

from typing import Final

from tenure.job import Failure

#: The reason of a hand-back, and the code of the failure in the end.
UNKNOWN_TASK: Final = "UNKNOWN_TASK"
WAITS_S: Final = 3_600.0


def unknown(kind: str) -> Failure:
    """What ends a job that waited in vain."""
    return Failure(
        f"no worker knew the task {kind!r} for an hour", "PermanentError", code=UNKNOWN_TASK, retryable=False
    )
