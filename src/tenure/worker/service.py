"""The service thread: an event loop of its own for what must go on while the main loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import uvloop

from tenure.errors import TenureError
from tenure.patience import Patience
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

Service = Callable[[JobSource], Coroutine[Any, Any, None]]


class ServiceThread:
    """Runs services until it is stopped; one that fails is begun again."""

    def __init__(self, open_source: Callable[[], Awaitable[JobSource]], services: Sequence[Service]) -> None:
        self._open_source = open_source
        self._services = services
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="tenure-service", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    async def stop(self) -> None:
        """End the services, and wait until their connections are closed."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        source = await self._opened()
        if source is None:
            return
        running = [asyncio.create_task(self._keep_up(service, source)) for service in self._services]
        await self._stopping.wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await source.close()

    async def _opened(self) -> JobSource | None:
        patience = Patience()
        while not self._stopping.is_set():
            try:
                return await self._open_source()
            except TenureError as error:
                _log.warning("the service thread has no database yet: %s", error)
                await patience.wait()
        return None

    async def _keep_up(self, service: Service, source: JobSource) -> None:
        patience = Patience()
        while True:
            try:
                await service(source)
            except Exception:
                _log.exception("a service of the worker failed, and is begun again")
            await patience.wait()
