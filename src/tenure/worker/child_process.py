"""A child process that runs handlers one at a time, and that its worker can kill.

    worker ──("run", task, job)──────────▶ child        child ──("call", n, method, arguments)──▶ worker
           ──("cancel",)─────────────────▶                    ──("outcome", outcome)────────────▶
           ──("answer", n, ok, value)────▶                    ──("stage", name)─────────────────▶
           ──("levels", levels)──────────▶                    ──("log", record, written_by)─────▶
           ──("stack",)──────────────────▶                    ──("stack", frames)───────────────▶
                                                              ──("completion", ends)────────────▶

A child has no connection to the database: the calls of its handlers go to the worker, which holds the lease. Only
`ctx.complete_in` uses a connection, the handler's own. When the worker dies the pipe is closed and the child exits at
once, in the middle of a handler too.
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
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial, partialmethod
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

from tenure.context import Additions, Context
from tenure.errors import InfrastructureFailure, TenureError
from tenure.jobs import validation
from tenure.jobs.job import Job
from tenure.task import CHILD, Task
from tenure.worker import child_log
from tenure.worker.context_port import SourcePort
from tenure.worker.handler import (
    HandlerOutcome,
    complete_in,
    failure_of,
    handle,
    stack_of_coroutine,
    stack_of_thread,
)
from tenure.worker.signals import ignore_signals

_log = logging.getLogger("tenure.worker")

#: The failure code of a job whose process died, or was killed by another process than its worker.
PROCESS_DIED = "PROCESS_DIED"
#: How long a child may take to send its handler's stack before it is killed, in seconds.
_STACK_S = 1.0


class Child:
    """The worker's side: starts the process, sends it a job, answers its calls, and kills it."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        with far:
            command = [sys.executable, "-c", f"from tenure.worker.child_process import main; main({far.fileno()})"]
            environment = {**os.environ, CHILD: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(
                # A process group of its own: processes that the handler starts are killed with it.
                command, pass_fds=[far.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._pipe = Connection(near.detach())
        #: Messages for `run`; None when the process has ended.
        self._received: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        # The end of the process is watched too: a process that it started may keep the pipe open.
        self._pidfd = os.pidfd_open(self._process.pid)
        #: The stack of its handler when it timed out, as lines of a traceback; None before.
        self._stack: list[str] | None = None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read)
        loop.add_reader(self._pidfd, self._on_exit)
        self._send("levels", child_log.levels())

    async def run(self, home: tuple[str, str], job: Job, port: SourcePort) -> HandlerOutcome:
        """Run a job's handler there; `port` makes the calls of its context."""
        await asyncio.to_thread(self._send, "run", home, job)  # sending a large job may block
        while (received := await self._received.get()) is not None:
            message, *values = received
            if message == "outcome":
                outcome: HandlerOutcome = values[0]
                return outcome
            if message == "stage":
                port.set_stage(values[0])
                continue
            if message == "completion":
                port.note_completion(values[0])
                continue
            number, method, arguments = values
            try:
                answer = (number, True, await getattr(port, method)(*json.loads(arguments)))
            except Exception as error:
                answer = (number, False, _portable(error))
            await asyncio.to_thread(self._send, "answer", *answer)
        code = await asyncio.to_thread(self._process.wait)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ProcessDied(f"the process that ran the job {how}", self._stack or [])

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def request_cancel(self) -> None:
        """Let the handler see that it is asked to stop."""
        self._send("cancel")

    def kill_after_stack(self) -> None:
        """Kill the process when it has sent its handler's stack, or after one second."""
        self._send("stack")
        asyncio.get_running_loop().call_later(_STACK_S, self._kill_unless_closed)

    def _kill_unless_closed(self) -> None:
        if not self._pipe.closed:
            self.kill()

    def kill(self) -> None:
        """Kill the process and the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, idle or not, and close the pipe."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pipe.fileno())
        loop.remove_reader(self._pidfd)
        self.kill()
        os.close(self._pidfd)
        self._pipe.close()
        self._process.wait()

    def _send(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the process died, which `run` notices
            self._pipe.send(message)

    def _read(self) -> bool:
        """Read one message; False where the pipe is closed."""
        try:
            message, *values = self._pipe.recv()
        except Exception:  # the process ended, or sent something that cannot be unpickled
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self.kill()
            self._received.put_nowait(None)
            return False
        if message == "log":
            child_log.write(*values)
        elif message == "stack":
            (self._stack,) = values
            self.kill()
        else:
            self._received.put_nowait((message, *values))
        return True

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        while self._pipe.poll() and self._read():  # messages that it sent before
            pass
        self._received.put_nowait(None)


def _portable(error: Exception) -> Exception:
    """The error, or a plain one with its text where it cannot be sent to the child."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TenureError(f"{type(error).__name__}: {error}")
    return error


class ProcessDied(InfrastructureFailure):
    """The process that ran a handler has ended before the handler did."""

    code = PROCESS_DIED

    def __init__(self, message: str, stack: list[str]) -> None:
        super().__init__(message)
        #: The handler's stack when it timed out, as lines of a traceback.
        self.stack = stack


def main(pipe: int) -> None:
    """Run handlers until the worker closes the pipe."""
    ignore_signals()  # a signal to the whole process group is for the worker
    _ChildMain(Connection(pipe)).run()


class _ChildMain:
    """The child's side; also the port of its handlers' contexts."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._jobs: queue.Queue[tuple[tuple[str, str], Job]] = queue.Queue()
        #: The calls whose answers have not arrived, by number.
        self._calls: dict[int, Future[Any]] = {}
        self._call_numbers = itertools.count()
        self._ctx: Context | None = None
        #: The ids of the threads in which handlers run: the event loop's, then that of plain functions.
        self._threads = [threading.get_ident()]
        self._thread = ThreadPoolExecutor(1, initializer=lambda: self._threads.append(threading.get_ident()))
        self._task: asyncio.Task[None] | None = None
        #: The task whose handler runs.
        self._handled: Task[..., Any] | None = None

    def run(self) -> None:
        """Run jobs, one after the other."""
        logging.root.addHandler(child_log.ForwardHandler(partial(self._send, "log")))
        threading.Thread(target=self._receive, daemon=True).start()
        with asyncio.Runner() as runner:  # one loop for all jobs: connections that they open stay open
            while True:
                home, job = self._jobs.get()
                outcomes: list[HandlerOutcome] = []
                with contextlib.suppress(asyncio.CancelledError):  # a handler may cancel its own task
                    runner.run(self._run_handler(home, job, outcomes))
                self._send("outcome", outcomes[0])

    def _receive(self) -> None:
        while True:
            try:
                message, *values = self._pipe.recv()
            except Exception:  # the worker has ended, or sent something that cannot be unpickled
                os._exit(1)
            if message == "run":
                self._jobs.put((values[0], values[1]))
            elif message == "levels":
                child_log.set_levels(values[0])
            elif message == "stack":
                self._send("stack", self._stack())
            elif message == "cancel":
                if self._ctx is not None:
                    self._ctx._request_cancel()
            else:
                number, succeeded, value = values
                call = self._calls.pop(number)
                if succeeded:
                    call.set_result(value)
                else:
                    call.set_exception(value)

    async def _run_handler(self, home: tuple[str, str], job: Job, outcomes: list[HandlerOutcome]) -> None:
        ctx = self._ctx = Context(job, self, asyncio.get_running_loop())
        self._task = asyncio.current_task()
        try:
            task = self._handled = find_task(home)
            outcomes.append(await handle(task, ctx, task.app.middleware, self._thread))
        except BaseException as error:
            outcomes.append(failure_of(error, ctx))
        finally:
            self._ctx = None

    def _stack(self) -> list[str]:
        """The handler's stack: of the event loop's thread, of the coroutine that waits, or of a plain function."""
        if self._task is None:
            return []
        if asyncio.current_task(self._task.get_loop()) is not None and (stack := stack_of_thread(self._threads[0])):
            return stack
        return stack_of_coroutine(self._task.get_coro()) or stack_of_thread(self._threads[-1])

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._pipe.send(message)

    async def _call(self, method: str, *arguments: Any, max_bytes: int = validation.MAX_BYTES) -> Any:
        text = validation.to_json(method, list(arguments), max_bytes)  # raises in the handler where it is no JSON
        number = next(self._call_numbers)
        call: Future[Any] = Future()
        self._calls[number] = call
        self._send("call", number, method, text)
        return await asyncio.wrap_future(call)

    #: The calls of `Port`, made by the worker.
    progress = partialmethod(_call, "progress")
    checkpoint = partialmethod(_call, "checkpoint")
    effects = partialmethod(_call, "effects")
    effect = partialmethod(_call, "effect")
    pins = partialmethod(_call, "pins")
    row_page = partialmethod(_call, "row_page")
    pointer_page = partialmethod(_call, "pointer_page")
    #: The worker checks how large a row may be.
    stage_rows = partialmethod(_call, "stage_rows", max_bytes=2_147_483_648)

    def complete_in(self, connection: Any, result: Any, additions: Additions | None) -> Any:
        """End the job in the handler's own transaction; the worker is told before it may commit."""
        assert self._handled is not None
        assert self._ctx is not None
        note = partial(self._send, "completion")
        return complete_in(self._handled, self._ctx.job, note, connection, result, additions)

    def set_stage(self, name: str | None) -> None:
        """Send the stage to the worker, which reports the failure where this process is killed."""
        self._send("stage", name)


def find_task(home: tuple[str, str]) -> Task[..., Any]:
    """Import the task with this module (or file that was run as a program) and name."""
    module, name = home
    found = attrgetter(name)(_program(module) if module.endswith(".py") else import_module(module))
    if not isinstance(found, Task):
        raise LookupError(f"{module}.{name} is not a task")
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
