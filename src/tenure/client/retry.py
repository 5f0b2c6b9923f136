"""Retry calls while the database or the dispatcher cannot answer.

    retry                  the one retry loop: call, wait, call again
    wait_until_available   the retry loop at startup; logs why the process waits
    keep_running           run a service, and start it again whenever it ends
    RetryDelay             the waits between attempts: they double, and each is spread at random

The caller decides which errors are retried. A call whose answer was lost may have been done: it must be safe to repeat.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.errors import UNREACHABLE, CannotConnect, ConnectionLost, TenureError

_log = logging.getLogger("tenure")
T = TypeVar("T")
Errors = tuple[type[TenureError], ...]
#: The first wait, in seconds.
_FIRST_S = 0.1
#: The same reason for waiting is logged again after this many seconds.
_LOG_AGAIN_S = 60.0


class RetryDelay:
    """Waits that double from 0.1 to `longest_s` seconds. Each wait is 50 to 100 % of that, at random."""

    def __init__(self, longest_s: float = 2.0) -> None:
        self._longest_s = longest_s
        self.reset()

    def reset(self) -> None:
        """Start with the shortest wait again, after a call succeeded."""
        self._next_s = _FIRST_S

    async def wait(self) -> None:
        """Wait once."""
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))
        self._next_s = min(2 * self._next_s, self._longest_s)


async def retry(
    call: Callable[[], Awaitable[T]],
    errors: Errors,
    *,
    after_lost_answer: Errors = (),
    attempts: int | None = None,
    on_error: Callable[[TenureError, int], None] | None = None,
) -> T:
    """Make a call until it answers; after `errors`, wait and call again, at most `attempts` times (None: forever).

    `after_lost_answer`: errors of attempts that did nothing, retried only when an earlier attempt lost its answer. That
    earlier attempt may have been done, so after the last attempt its `ConnectionLost` is raised.
    `on_error` gets each error that is retried and the number of failed attempts. It may raise, which ends the retries.
    """
    delay: RetryDelay | None = None
    lost: ConnectionLost | None = None
    failed = 0
    while True:
        try:
            return await call()
        except TenureError as error:
            if isinstance(error, ConnectionLost):
                lost = error
            if not isinstance(error, errors if lost is None else errors + after_lost_answer):
                raise
            failed += 1
            if on_error is not None:
                on_error(error, failed)
            if failed == attempts:
                raise lost or error from None
        delay = delay or RetryDelay()
        await delay.wait()


async def wait_until_available(connect: Callable[[], Awaitable[T]], *, name: str) -> T:
    """Connect as soon as the database or the dispatcher can be reached; log for whom, and why it waits."""
    logged, log_again_at = "", 0.0

    def log(error: TenureError, _: int) -> None:
        nonlocal logged, log_again_at
        if str(error) != logged or time.monotonic() >= log_again_at:
            _log.warning("%s cannot connect, retrying: %s", name, error)
            logged, log_again_at = str(error), time.monotonic() + _LOG_AGAIN_S

    return await retry(connect, UNREACHABLE, on_error=log)


async def keep_running(service: Callable[[], Awaitable[None]], log: logging.Logger, *, of: str) -> None:
    """Run a service until cancelled: start it again whenever it ends or fails; `of` names its owner in the log."""
    delay = RetryDelay()
    while True:
        try:
            await service()
        except CannotConnect as error:
            log.warning("a service of %s cannot connect, restarting it: %s", of, error)
        except Exception:
            log.exception("a service of %s failed, restarting it", of)
        await delay.wait()
