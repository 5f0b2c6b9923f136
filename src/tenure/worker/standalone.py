"""Run a worker as the only work of its process: when it has stopped, the process ends although a handler still runs."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

import uvloop

from tenure.worker.worker import Worker

_log = logging.getLogger("tenure.worker")

#: How long threads that handlers started with `asyncio.to_thread` may take to end, in seconds.
_THREADS_S = 1.0


def run_standalone(worker: Worker, *, until_idle: bool) -> None:
    """Run a worker on an event loop of its own until it stops."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        runner.get_loop().set_default_executor(threads)
        try:
            runner.run(worker.run(until_idle=until_idle))
        except BaseException:
            if _is_kept_alive(worker, threads):
                _log.exception("%s failed; the process ends although handlers still run", worker.name)
                logging.shutdown()
                os._exit(1)
            raise
        if _is_kept_alive(worker, threads):
            # A thread, or a handler that swallows CancelledError, cannot be stopped. All outcomes are stored already.
            logging.shutdown()
            os._exit(0)


def _is_kept_alive(worker: Worker, threads: ThreadPoolExecutor) -> bool:
    """Whether a handler that still runs would keep the process from ending."""
    threads.shutdown(wait=False, cancel_futures=True)
    end = time.monotonic() + _THREADS_S
    for thread in list(threads._threads):
        thread.join(max(0.0, end - time.monotonic()))
    return worker.left_behind > 0 or any(thread.is_alive() for thread in threads._threads)
