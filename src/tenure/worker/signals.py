"""SIGTERM and SIGINT while workers run, in this process and in the processes that handlers fork.

The signal handlers are plain Python handlers, not the event loop's: they run although the loop is blocked. When the
last worker of the process ends, the host's own handlers are restored. A process that a task forks
(`multiprocessing.Pool`) gets the default handlers and no wake-up descriptor: with the inherited one, a signal to the
child would arrive in the worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tenure.task import PROCESS

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Signals within this many seconds may be one signal: sent to the whole process group, or passed on by a parent.
_ONE_SIGNAL_S: Final = 1.0

_workers: list[Callable[[int], None]] = []
_host: dict[int, Any] = {}
_running = 0


@contextlib.contextmanager
def deliver_signals(on_signal: Callable[[int], None] | None) -> Iterator[None]:
    """Call `on_signal` with each signal, in the main thread; None leaves the signal handlers alone.

    Outside of the main thread Python can set no signal handler: the host of such a worker calls `stop()`.
    """
    global _running
    _running += 1
    delivered = [on_signal] if on_signal is not None and _install() else []
    _workers.extend(delivered)
    try:
        yield
    finally:
        if delivered:
            _workers.remove(delivered[0])
            if not _workers:
                _restore()
        _running -= 1


def ignore_signals() -> None:
    """Do nothing at signals, in a child process that its worker ends; processes that it forks get default handlers."""
    global _running
    _running += 1
    for number in _STOP_SIGNALS:  # not SIG_IGN: programs that a task starts would inherit that
        signal.signal(number, _deliver)


class SignalRepeats:
    """Tells a second signal from the first one, which may arrive twice."""

    def __init__(self) -> None:
        #: The first signal and its time; None before.
        self.first: tuple[int, float] | None = None

    def is_second(self, number: int) -> bool:
        """Whether this signal is a second one, and not the first one again."""
        now = time.monotonic()
        if self.first is None:
            self.first = (number, now)
            return False
        first, at = self.first
        may_be_one = number != first or PROCESS in os.environ
        return not (may_be_one and now - at < _ONE_SIGNAL_S)


def _install() -> bool:
    if _workers:
        return True
    try:
        for number in _STOP_SIGNALS:
            _host[number] = signal.signal(number, _deliver)
    except ValueError:  # not the main thread
        return False
    return True


def _restore() -> None:
    for number, before in _host.items():
        if signal.getsignal(number) is _deliver:  # else the host has set a new one meanwhile, which stays
            signal.signal(number, signal.SIG_DFL if before is None else before)
    _host.clear()


def _deliver(number: int, _: object) -> None:
    for on_signal in list(_workers):
        on_signal(number)


def _after_fork() -> None:
    """Set the default signal handlers in a forked process."""
    if not _running:
        return
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is _deliver:
            signal.signal(number, default)
    _workers.clear()
    _host.clear()


os.register_at_fork(after_in_child=_after_fork)
