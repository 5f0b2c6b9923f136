"""The clock of workers, which the test moves ahead: leases grow old without anybody waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenure.worker import claim_loop, executor, heartbeat, job_runs, receive_loop, reports, running_job, watchdog

#: Where workers look at the clock.
MODULES = (claim_loop, executor, heartbeat, job_runs, receive_loop, reports, running_job, watchdog)


#: Moves the clock of a whole process, where Debian's libfaketime is installed.
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def faked(offset: Path) -> dict[str, str]:
    """The environment of a process whose clock is as far ahead as this file says; its monotonic clock stays."""
    return {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",  # seconds; a look into the file at each reading of the clock takes too long
    }  # fmt: skip


def set_ahead(offset: Path, seconds: int) -> None:
    """Let the clock that follows this file be so many seconds ahead of ours, from now on."""
    fresh = offset.with_suffix(".new")
    fresh.write_text(f"{seconds:+d}s")
    fresh.chmod(0o644)
    fresh.rename(offset)


def remove_traces(pid: int) -> None:
    """Remove what libfaketime leaves in memory when such a process is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)


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
