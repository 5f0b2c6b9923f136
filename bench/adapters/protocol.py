"""The commands of every adapter, so that the driver measures all peers with the same code.

    setup ADDRESS           create what the peer needs in an empty database
    worker ADDRESS          run the peer's worker; print `at COUNT SECONDS` at the first handler and at every hundredth
    worker ADDRESS each     the same, but print `at N SECONDS` at the start of every handler
    producer ADDRESS        print `ready`, then answer each line of stdin:
        many COUNT          create this many jobs in the peer's fastest way; `many COUNT SECONDS`
        one N               create one job; `one N SECONDS`, where SECONDS is the time of the call

Seconds come from the machine's monotonic clock, which all processes share. `protocol.mjs` is the same for Node. A
worker or producer ends when its stdin ends, so nothing is left over when the driver is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

_SAY_EVERY = 100


@dataclass(frozen=True)
class Producer:
    """The two ways to make jobs."""

    many: Callable[[range], Awaitable[None]]
    one: Callable[[int], Awaitable[None]]


class _Seen:
    """How many handlers began."""

    def __init__(self) -> None:
        self.count = 0
        self.each = False

    def touch(self, n: int) -> None:
        """What every handler does: nothing, except that the driver hears of it."""
        self.count += 1
        if self.each:
            print("at", n, time.monotonic(), flush=True)
        elif self.count == 1 or self.count % _SAY_EVERY == 0:
            print("at", self.count, time.monotonic(), flush=True)


_seen = _Seen()
touch = _seen.touch


def batches(numbers: range, size: int = 1_000) -> Iterator[range]:
    """The numbers in lots of one statement."""
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def answer(
    setup: Callable[[str], Coroutine[Any, Any, None] | None],
    work: Callable[[str], Coroutine[Any, Any, None] | None],
    producing: Callable[[str], AbstractAsyncContextManager[Producer]],
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Do what the command line asks; `run` is the peer's best event loop."""
    role, address, *rest = sys.argv[1:]
    if role == "producer":
        doing = _produce(producing, address)
    elif role == "worker":
        _seen.each = rest == ["each"]
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        doing = work(address)  # type: ignore[assignment]
    else:
        doing = setup(address)  # type: ignore[assignment]
    if doing is not None:
        run(doing)


def _end_with_stdin() -> None:
    # Not sys.stdin: a thread that waits in its buffer would hold its lock when the interpreter ends.
    while os.read(0, 1):
        pass
    os._exit(0)


async def _produce(producing: Callable[[str], AbstractAsyncContextManager[Producer]], address: str) -> None:
    loop = asyncio.get_running_loop()
    made = 0
    async with producing(address) as producer:
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            what, number = line.split()
            begun = time.monotonic()
            if what == "many":
                await producer.many(range(made, made + int(number)))
                made += int(number)
                print("many", number, time.monotonic() - begun, flush=True)
            else:
                await producer.one(int(number))
                print("one", number, begun, flush=True)
