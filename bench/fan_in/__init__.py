"""A fan-in in each system: `COUNT` jobs beside each other, then one that takes the list of their results.

    ADDRESS worker    run a worker; print `end COUNT SECONDS` when the last job begins with COUNT results
    ADDRESS start     print `ready`, then for each line `start COUNT` of stdin make the jobs: `start COUNT SECONDS`,
                      where SECONDS is the time before the call

Seconds come from the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable


def end(results: list[int]) -> None:
    """What the last job does."""
    print("end", len(results), time.monotonic(), flush=True)


def answer(work: Callable[[str], None], start: Callable[[str], Callable[[int], None]]) -> None:
    """Do what the command line asks; `start` returns what makes the jobs of one fan-in."""
    address, role = sys.argv[1:]
    if role == "worker":
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        work(address)
        return
    make = start(address)
    print("ready", flush=True)
    while line := sys.stdin.readline():
        count, begun = int(line.split()[1]), time.monotonic()
        make(count)
        print("start", count, begun, flush=True)


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)
