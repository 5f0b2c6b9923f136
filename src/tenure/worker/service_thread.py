"""The service thread: an event loop of its own for the services that must go on while the main loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import uvloop

from tenure.client.job_source import JobSource
from tenure.client.retry import RetryDelay, keep_running

_log = logging.getLogger("tenure.worker")

Service = Callable[[JobSource], Coroutine[Any, Any, None]]


class ServiceThread:
    """Runs services until it is stopped; a service that fails is started again."""

    def __init__(self, open_source: Callable[[], Awaitable[JobSource]]) -> None:
        self._open_source = open_source
        self._services: Sequence[Service] = ()
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tenure-service", daemon=True)

    async def start(self, services: Sequence[Service], is_stopping: Callable[[], bool]) -> None:
        """Start the thread with these services, and wait until it is connected or the worker stops."""
        self._services = services
        self._thread.start()
        while not (self._ready.is_set() or is_stopping()) and self._thread.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End the services, and wait until their connections are closed."""
        if self._thread.ident is None:
            self._loop.close()
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        while self._thread.is_alive():  # noqa: ASYNC110 (a thread has no event that a loop could await)
            await asyncio.sleep(0.01)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run_services())

    async def _run_services(self) -> None:
        source = await self._connect()
        if source is None:
            return
        self._ready.set()
        running = [
            asyncio.create_task(keep_running(partial(service, source), _log, of="the worker"))
            for service in self._services
        ]
        await self._stopping.wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await source.close()

    async def _connect(self) -> JobSource | None:
        delay = RetryDelay()
        while not self._stopping.is_set():
            try:
                return await self._open_source()
            except Exception as error:
                _log.warning("the heartbeat connection cannot be opened, retrying before any claim: %s", error)
                await delay.wait()
        return None
