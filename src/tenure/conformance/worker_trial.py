"""The surroundings of one scenario: a database, a dispatcher, a proxy that makes faults, and the worker's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar

import httpx2

from tenure.conformance.exchange import FINAL_VERBS, Hold, Report
from tenure.conformance.fault_proxy import FaultProxy
from tenure.conformance.result import Fault
from tenure.conformance.worker_rules import TYPES
from tenure.errors import BadInput
from tenure.http.dispatcher import Dispatcher
from tenure.postgres import test_databases
from tenure.postgres.store import Store
from tenure.settings import Settings

QUEUE: Final = "conformance"
#: The lease of every job, in seconds: the shortest that the contract allows.
LEASE_S: Final = 2
_NUMBERS: Final = {"standard": {"lease_ms": LEASE_S * 1_000, "backoff_base_ms": 50, "backoff_cap_ms": 50}}
_POLL_S: Final = 0.02
_EXIT_S: Final = 10
#: More than any lease.
_MINUTE: Final = timedelta(minutes=1)
_OUTPUT_LINES: Final = 20
#: How long a job sleeps that something is done to: first time, second time on a slow machine, and so on.
_SLEEPS_S: Final = (1.5 * LEASE_S, 6 * LEASE_S, 24 * LEASE_S)
T = TypeVar("T")


class Sleeping(NamedTuple, Generic[T]):
    """A job that the worker was given to sleep, and what was done to it meanwhile."""

    job_id: str
    seconds: float
    done: T


class WorkerProcess:
    """The worker as a process group of its own; its output goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, output: IO[bytes]) -> None:
        self._process = process
        self._output = output

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the worker and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the worker alone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def last_lines(self) -> tuple[str, ...]:
        """The end of what it printed."""
        self._output.seek(0)
        return tuple(self._output.read().decode(errors="replace").splitlines()[-_OUTPUT_LINES:])

    async def end(self) -> None:
        """End it, at once if it does not stop."""
        if self.exit_code is None:
            self.signal_group(signal.SIGCONT)
            self.signal_group(signal.SIGKILL)
            await asyncio.wait_for(self._process.wait(), _EXIT_S)
        self.signal_group(signal.SIGKILL)  # what it left behind


class Trial:
    """What a scenario works with: it makes jobs, lets things happen, and waits for what a right worker does."""

    def __init__(
        self, store: Store, proxy: FaultProxy, api: httpx2.AsyncClient, worker: WorkerProcess, timeout_s: float
    ) -> None:
        self.store = store
        self.proxy = proxy
        self.worker = worker
        self.timeout_s = timeout_s
        self.faults: list[str] = []
        #: Restarts the dispatcher behind the proxy.
        self.restart: Callable[[], Coroutine[Any, Any, None]]
        self._api = api

    # ------------------------------------------------------------------------------------------ what is done

    async def enqueue(self, job_type: str, *, max_attempts: int | None = None, **payload: Any) -> str:
        """Make a job; its id."""
        job = {"type": job_type, "queue": QUEUE, "payload": payload, "max_attempts": max_attempts}
        return str((await self._call("POST", "/api/v1/jobs", job))["id"])

    async def show(self, job_id: str) -> dict[str, Any]:
        """The job as the dispatcher shows it."""
        return await self._call("GET", f"/api/v1/jobs/{job_id}")

    async def while_it_sleeps(self, act: Callable[[str], Coroutine[Any, Any, T | None]]) -> Sleeping[T]:
        """Give the worker a job that sleeps, and act on it; with a longer one when the act came too late (None)."""
        for seconds in _SLEEPS_S:
            job_id = await self.enqueue("sleep", seconds=seconds)
            await self.claimed(job_id)
            if (done := await act(job_id)) is not None:
                return Sleeping(job_id, seconds, done)
        raise Fault(f"ended jobs that sleep, the last one {_SLEEPS_S[-1]} s long, before that time was over")

    async def cancel(self, job_id: str, mode: str) -> bool | None:
        """Cancel the job as an operator does; None when it has ended already."""
        body = {"mode": mode, "reason": "the conformance kit"}
        answer = await self._api.post(f"/api/v1/jobs/{job_id}/cancel", json=body)
        return None if answer.status_code == 409 else answer.is_success

    async def take_over(self, job_id: str) -> Hold | None:
        """Let a minute pass for the job's lease, and give the job to another worker; None when it has ended already."""
        await self.proxy.hold_claims()
        try:
            await test_databases.advance(self.store, _MINUTE, TYPES)
            await test_databases.upkeep(self.store, "standard", TYPES)
            claim = await self._call(
                "POST", "/internal/task-claim", {"task_id": job_id, "worker_id": "another-worker", "types": TYPES}
            )
        finally:
            self.proxy.release_claims()
        return Hold(job_id, claim["lease_token"]) if claim["status"] == "Claimed" else None

    async def succeed_elsewhere(self, hold: Hold) -> None:
        """The other worker ends the job well."""
        job = await self.show(hold.job_id)
        proof = {"claims": job["claims"], "lease_token": hold.lease_token}
        await self._call("POST", f"/api/v1/jobs/{hold.job_id}/succeed", {**proof, "result": "by another worker"})

    # --------------------------------------------------------------------------------------- what is waited for

    async def until(self, condition: Callable[[], Any], fault: str) -> Any:
        """Wait until the condition is true; a Fault after the time limit, or when the worker's process ends."""
        give_up = time.monotonic() + self.timeout_s
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            if (code := self.worker.exit_code) is not None:
                raise Fault(f"{fault}: its process ended with exit code {code}")
            if time.monotonic() > give_up:
                raise Fault(f"{fault} within {self.timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    async def claimed(self, job_id: str) -> Hold:
        """Wait until the worker has claimed the job and has the answer."""

        def find() -> Hold | None:
            return next((hold for hold in self._won() if hold.job_id == job_id), None)

        found: Hold = await self.until(find, f"did not claim job {job_id}")
        return found

    async def ended(self, job_id: str, *states: str, fault: str = "") -> dict[str, Any]:
        """Wait until the job has ended, in one of these states; the job."""

        async def find() -> dict[str, Any] | None:
            job = await self.show(job_id)
            return job if job["role"] == "done" else None

        wanted = " or ".join(states)
        job: dict[str, Any] = await self.until(find, fault or f"did not bring job {job_id} to its end ({wanted})")
        if job["state"] not in states:
            raise Fault(f"job {job_id} ended as {job['state']}, and not as {wanted}")
        return job

    async def exited(self) -> int:
        """Wait until the worker's process has ended; its exit code."""
        give_up = time.monotonic() + self.timeout_s
        while (code := self.worker.exit_code) is None:
            if time.monotonic() > give_up:
                raise Fault(f"did not end within {self.timeout_s:g} s of SIGTERM")
            await asyncio.sleep(_POLL_S)
        return code

    async def goes_on(self) -> None:
        """Wait until the worker has run one more job."""
        job_id = await self.enqueue("echo", value="next")
        await self.ended(job_id, "succeeded", fault=f"did not run the next job ({job_id})")

    # --------------------------------------------------------------------------------------------- what is seen

    def reports(self, job_id: str, *verbs: str) -> list[Report]:
        """What the worker sent about the job, in order."""
        found = [one for exchange in self.proxy.exchanges for one in exchange.reports() if one.hold.job_id == job_id]
        return [one for one in found if not verbs or one.verb in verbs]

    def ends(self, job_id: str) -> list[Report]:
        """The ends that the worker reported for the job."""
        return self.reports(job_id, *FINAL_VERBS)

    def require(self, is_right: bool, fault: str) -> None:
        """Note a fault, and go on."""
        if not is_right:
            self.faults.append(fault)

    def _won(self) -> Iterator[Hold]:
        for exchange in self.proxy.exchanges:
            if exchange.answered_at is not None and (claim := exchange.claim()) is not None:
                yield from claim.won

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self._api.request(method, path, json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def trial(command: str, dsn: str, timeout_s: float) -> AsyncIterator[Trial]:
    """Start a dispatcher on this database, a proxy and the worker, for the length of a scenario."""
    admin_key = secrets.token_hex(16)
    settings = Settings(admin_key=admin_key, numbers=_NUMBERS)
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.open(dsn, numbers=_NUMBERS, connections=2))
        _, worker_key = await store.keys.create("conformance", ("work",), None, None, "conformance", 3_600)
        dispatching = contextlib.ExitStack()
        stack.push_async_callback(asyncio.to_thread, dispatching.close)
        dispatcher = Dispatcher(dsn, settings)
        await asyncio.to_thread(dispatching.enter_context, dispatcher.in_a_thread())
        headers = {"Authorization": f"Bearer {admin_key}"}
        api = httpx2.AsyncClient(base_url=dispatcher.url, headers=headers, timeout=60, trust_env=False)
        await stack.enter_async_context(api)
        proxy = FaultProxy(dispatcher.url)
        await proxy.open()
        stack.push_async_callback(proxy.end)
        output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (closed by the stack)
        worker = await _start(command, _environment(proxy.url, worker_key), output)
        stack.push_async_callback(worker.end)
        running = Trial(store, proxy, api, worker, timeout_s)

        async def restart() -> None:
            await asyncio.to_thread(dispatching.close)
            again = Dispatcher(dsn, settings)
            await asyncio.to_thread(dispatching.enter_context, again.in_a_thread())
            proxy.upstream = api.base_url = again.url

        running.restart = restart
        yield running


def _environment(url: str, key: str) -> dict[str, str]:
    """What a worker is told, in the environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    own.pop("DATABASE_URL", None)
    return {**own, "TENURE_URL": url, "TENURE_KEY": key, "TENURE_QUEUE": QUEUE, "TENURE_TYPES": ",".join(TYPES)}


async def _start(command: str, environment: dict[str, str], output: IO[bytes]) -> WorkerProcess:
    words: Sequence[str] = shlex.split(command)
    if not words:
        raise BadInput("--worker is empty. Next: give the command that starts the worker, like 'node worker.mjs'")
    try:
        process = await asyncio.create_subprocess_exec(
            *words, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise BadInput(f"the worker {words[0]!r} cannot be started: {error.strerror}. Next: correct --worker") from None
    return WorkerProcess(process, output)
