"""A directory in memory for the files of the tests' PostgreSQL.

Every test creates and removes some fifty small files of PostgreSQL: in memory that takes a third of the time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED = 6 << 30
_PREFIX = "tenure-tests-"


def directory() -> str | None:
    """Make a directory in memory for this process; None when memory is short or cannot hold files here."""
    if _free() < NEEDED:
        return None
    _remove_leftovers()
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=MEMORY)


def _free() -> int:
    """Return how many bytes fit both into memory and into its file system; 0 where there is no such file system."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (available,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        return min(available, shutil.disk_usage(MEMORY).free) if os.access(MEMORY, os.W_OK) else 0
    except (OSError, ValueError):
        return 0


def _remove_leftovers() -> None:
    """Remove what killed runs left; a server that still runs there ends when its files are gone."""
    for left in MEMORY.glob(f"{_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(_PREFIX).split("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
