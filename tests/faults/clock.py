"""The clock of worker processes, which the test moves ahead: leases grow old without anybody waiting for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tenure.worker import fetch, heart, life, running


class MovedClock:
    """What a worker takes for `time`: the monotonic clock, ahead by the seconds that a file says."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def monotonic(self) -> float:
        """The monotonic clock, moved."""
        return time.monotonic() + float(self._file.read_text())

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def follow(file: Path) -> None:
    """Let the workers of this process live by the clock of this file."""
    for module in (fetch, heart, life, running):
        module.time = MovedClock(file)  # type: ignore[attr-defined]


def move(file: Path, seconds: float) -> None:
    """Let that clock be so many seconds ahead, all at once."""
    fresh = file.with_suffix(".new")
    fresh.write_text(str(seconds))
    fresh.rename(file)
