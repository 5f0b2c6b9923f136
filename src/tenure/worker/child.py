"""A process that runs handlers one at a time, and that its worker can kill.

    worker ──("run", task, job)──────────▶ child        child ──("say", n, verb, values)──▶ worker
           ──("cancel",)─────────────────▶                    ──("ended", verdict)────────▶
           ──("told", n, ok, value)──────▶                    ──("stage", name)───────────▶

A child has no connection to the database: what its handlers say goes to the worker, whose lease covers it. When the
worker is gone the pipe ends, and so does the child, in the middle of whatever it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import pickle
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

from tenure import intake
from tenure.context import Context
from tenure.errors import InfrastructureFailure, TenureError
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
                # A group of its own: what the handler starts is killed with it.
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._pipe = Connection(ours.detach())
        self._heard: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        # The pipe may outlive the process, in the hands of one that it started: its end is watched for itself.
        self._end = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read)
        loop.add_reader(self._end, self._ended)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def run(
        self,
        home: tuple[str, str],
        job: Job,
        say: Callable[[str, tuple[Any, ...]], Awaitable[Any]],
        at_stage: Callable[[str | None], None],
    ) -> Verdict:
        """Run a job's handler there; `say` is given what it says of its job, `at_stage` the stages that it names."""
        await asyncio.to_thread(self._send, "run", home, job)  # a large job may have to wait for its reader
        while (message := await self._heard.get()) is not None:
            kind, *rest = message
            if kind == "ended":
                verdict: Verdict = rest[0]
                return verdict
            if kind == "stage":
                at_stage(rest[0])
                continue
            number, verb, values = rest
            try:
                answer = (number, True, await say(verb, json.loads(values)))
            except Exception as error:
                answer = (number, False, _portable(error))
            await asyncio.to_thread(self._send, "told", *answer)
        code = await asyncio.to_thread(self._process.wait)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ProcessDied(f"the process that ran the job {how}")

    def is_alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def ask_to_stop(self) -> None:
        """Tell the handler that it is asked to stop."""
        self._send("cancel")

    def kill(self) -> None:
        """End the process and what it started, whatever they do."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the process go, at rest or not."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pipe.fileno())
        loop.remove_reader(self._end)
        self.kill()
        os.close(self._end)
        self._pipe.close()
        self._process.wait()

    def _send(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it died: whoever waits for it hears so
            self._pipe.send(message)

    def _read(self) -> bool:
        """Hear one message; False when there is none any more."""
        try:
            self._heard.put_nowait(self._pipe.recv())
        except Exception:  # it ended, or says what nobody understands
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self.kill()
            self._heard.put_nowait(None)
            return False
        return True

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        while self._pipe.poll() and self._read():  # its last words
            pass
        self._heard.put_nowait(None)


def _portable(error: Exception) -> Exception:
    """An error that the child can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TenureError(f"{type(error).__name__}: {error}")
    return error


class ProcessDied(InfrastructureFailure):
    """The process that ran a handler is gone, and the handler with it."""

    code = PROCESS_DIED


def main(pipe: int) -> None:
    """Run handlers until the worker goes away."""
    for number in (signal.SIGINT, signal.SIGTERM):  # what is sent to a whole group is the worker's to answer
        signal.signal(number, lambda *_: None)  # not ignored: what the handler starts would inherit that
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
        with asyncio.Runner() as runner:  # one loop for all jobs: connections that they open stay open
            while True:
                home, job = self._jobs.get()
                self._send("ended", runner.run(self._verdict(home, job)))

    def _listen(self) -> None:
        while True:
            try:
                kind, *rest = self._pipe.recv()
            except Exception:  # the worker is gone, or not to be understood
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
        ctx = self._ctx = Context(job, self, asyncio.get_running_loop())
        try:
            task = find(home)
            return await handle(task, ctx, task.app.middleware, self._thread)
        except BaseException as error:
            return failure_of(error, ctx)
        finally:
            self._ctx = None

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._pipe.send(message)

    async def _say(self, verb: str, *values: Any) -> Any:
        text = intake.document(verb, list(values))  # JSON, or the handler is told what is not
        number = next(self._numbers)
        asked: Future[Any] = Future()
        self._asked[number] = asked
        self._send("say", number, verb, text)
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

    def at_stage(self, name: str | None) -> None:
        """Tell the worker, which speaks for this process when it is killed."""
        self._send("stage", name)


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
