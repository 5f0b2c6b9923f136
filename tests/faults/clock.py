"""The clock of workers, which the test moves ahead: leases grow old without anybody waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenure.worker import claim_loop, executor, heartbeat, job_runs, receive_loop, reports, running_job, watchdog

#: Where workers look at the clock.
MODULES = (claim_loop, executor, heartbeat, job_runs, receive_loop, reports, running_job, watchdog)


class MovedClock:
    """What a worker takes for `time`: the monotonic clock, ahead by some seconds."""

    def __init__(self, ahead: Callable[[], float]) -> None:
        self._ahead = ahead

    def monotonic(self) -> float:
        """The monotonic clock, moved."""
        return time.monotonic() + self._ahead()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def follow(file: Path) -> None:
    """Let the workers of this process live by the clock of this file."""
    for module in MODULES:
        module.time = MovedClock(lambda: float(file.read_text()))  # type: ignore[attr-defined]


def move(file: Path, seconds: float) -> None:
    """Let that clock be so many seconds ahead, all at once."""
    fresh = file.with_suffix(".new")
    fresh.write_text(str(seconds))
    fresh.rename(file)
