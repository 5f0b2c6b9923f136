"""A process that runs handlers one at a time, and that its worker can kill.

    worker ──("run", task, job)──────────▶ child        child ──("say", n, verb, values)──▶ worker
           ──("cancel",)─────────────────▶                    ──("ended", verdict)────────▶
           ──("told", n, ok, value)──────▶

A child has no connection to the database: what its handlers say goes to the worker, whose lease covers it. When the
worker is gone the pipe ends, and so does the child, in the middle of whatever it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from typing import Any

from tenure.context import Context
from tenure.errors import TransientError
from tenure.job import Job
from tenure.task import CHILD, Task
from tenure.worker.handle import Verdict, failure_of, handle

_log = logging.getLogger("tenure.worker")

#: The code of the failure of a job whose process died, or was killed by somebody else.
PROCESS_DIED = "PROCESS_DIED"


class Child:
    """The worker's end: starts the process, gives it a job, hears what it says, and kills it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", f"from tenure.worker.child import main; main({theirs.fileno()})"]
            environment = {**os.environ, CHILD: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        self._pipe = Connection(ours.detach())
        self._heard: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def run(
        self, home: tuple[str, str], job: Job, say: Callable[[str, tuple[Any, ...]], Awaitable[Any]]
    ) -> Verdict:
        """Run a job's handler there; `say` is given what the handler says of its job."""
        self._send("run", home, job)
        while (message := await self._heard.get()) is not None:
            kind, *rest = message
            if kind == "ended":
                verdict: Verdict = rest[0]
                return verdict
            number, verb, values = rest
            try:
                self._send("told", number, True, await say(verb, values))
            except Exception as error:
                self._send("told", number, False, error)
        code = await asyncio.to_thread(self._process.wait)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ProcessDied(f"the process that ran the job {how}")

    def ask_to_stop(self) -> None:
        """Tell the handler that it is asked to stop."""
        self._send("cancel")

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """Let the process go, at rest or not."""
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self.kill()
        self._pipe.close()
        self._process.wait()

    def _send(self, *message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: whoever waits for it hears so
            self._pipe.send(message)

    def _read(self) -> None:
        try:
            self._heard.put_nowait(self._pipe.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._heard.put_nowait(None)


class ProcessDied(TransientError):
    """The process that ran a handler is gone, and the handler with it."""

    code = PROCESS_DIED


def main(pipe: int) -> None:
    """Run handlers until the worker goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the worker's to answer
    _Handler(Connection(pipe)).run()


class _Handler:
    """The child's end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._jobs: queue.Queue[tuple[tuple[str, str], Job]] = queue.Queue()
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._ctx: Context | None = None
        self._thread = ThreadPoolExecutor(1)

    def run(self) -> None:
        """Take jobs, one after the other."""
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            home, job = self._jobs.get()
            self._send("ended", asyncio.run(self._verdict(home, job)))

    def _listen(self) -> None:
        while True:
            try:
                kind, *rest = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(1)
            if kind == "run":
                self._jobs.put((rest[0], rest[1]))
            elif kind == "cancel":
                if self._ctx is not None:
                    self._ctx._ask_to_stop()
            else:
                number, good, value = rest
                asked = self._asked.pop(number)
                if good:
                    asked.set_result(value)
                else:
                    asked.set_exception(value)

    async def _verdict(self, home: tuple[str, str], job: Job) -> Verdict:
        try:
            task = find(home)
            ctx = self._ctx = Context(job, self, asyncio.get_running_loop())
            return await handle(task, ctx, task.app.middleware, self._thread)
        except BaseException as error:
            return failure_of(error)
        finally:
            self._ctx = None

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._pipe.send(message)

    async def _say(self, verb: str, *values: Any) -> Any:
        number = next(self._numbers)
        asked: Future[Any] = Future()
        self._asked[number] = asked
        self._send("say", number, verb, values)
        return await asyncio.wrap_future(asked)

    async def progress(self, value: Any) -> None:
        """As a context says it."""
        await self._say("progress", value)

    async def checkpoint(self, value: Any) -> None:
        """As a context says it."""
        await self._say("checkpoint", value)

    async def effects(self) -> Mapping[str, Any]:
        """As a context asks it."""
        known: Mapping[str, Any] = await self._say("effects")
        return known

    async def effect(self, node: str, result: Any) -> Any:
        """As a context says it."""
        return await self._say("effect", node, result)


def find(home: tuple[str, str]) -> Task[..., Any]:
    """The task under this module (or in this file, which was run as a program) and name."""
    module, name = home
    found: Any = _program(module) if module.endswith(".py") else import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Task):
        raise LookupError(f"{module}.{name} is no task here")
    return found


@cache
def _program(path: str) -> Any:
    spec = spec_from_file_location("__mp_main__", path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} cannot be loaded")
    module = module_from_spec(spec)
    sys.modules["__mp_main__"] = module
    spec.loader.exec_module(module)
    return module
