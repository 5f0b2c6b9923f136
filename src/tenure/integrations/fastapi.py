"""Tenure in FastAPI: a lifespan that closes the app and may run a worker, and dependencies that enqueue.

api = FastAPI(lifespan=lifespan(app, worker=True))

JobQueue = Annotated[Enqueue, Depends(Enqueue.using(get_session))]

@api.post("/orders")
async def order(session: Session, enqueue: JobQueue) -> …:
    …
    await enqueue(confirm, order.id)     # committed with the order, or not at all
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar, get_origin, overload

from fastapi import Depends, FastAPI

from tenure.app import App
from tenure.jobs.keyword_options import refuse_unknown
from tenure.task import Task, Ticket

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: What a lifespan yields: the state of the application's requests.
S = TypeVar("S", bound=Mapping[str, Any] | None)
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[S]]

_log = logging.getLogger("tenure.worker")
_OPTIONS = [name for name in inspect.signature(App.worker).parameters if name != "self"]


@overload
def lifespan(app: App, own: None = None, *, worker: bool = False, **options: Any) -> Lifespan[None]: ...
@overload
def lifespan(app: App, own: Lifespan[S], *, worker: bool = False, **options: Any) -> Lifespan[S]: ...
def lifespan(app: App, own: Any = None, *, worker: bool = False, **options: Any) -> Any:
    """Return a lifespan around `own`: with `worker=True` it runs a worker with these options of `app.worker`.

    The worker starts after `own` has started, stops before `own` ends, and leaves signals to the server. The app's
    connections are closed last.
    """
    refuse_unknown("lifespan", options, _OPTIONS)

    @asynccontextmanager
    async def run(api: FastAPI) -> AsyncIterator[Any]:
        around = nullcontext() if own is None else own(api)
        async with app, around as state, _working(app, options) if worker else nullcontext():
            yield state

    return run


@asynccontextmanager
async def _working(app: App, options: Mapping[str, Any]) -> AsyncIterator[None]:
    """Run a worker until the block ends; a worker that ends by itself is logged, and the server serves on."""
    worker = app.worker(**options)
    running = asyncio.create_task(worker.run(handle_signals=False), name=f"tenure worker {worker.name}")
    running.add_done_callback(_log_failure)
    try:
        yield
    finally:
        worker.stop()
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:  # the server does not wait: handlers are cancelled, their jobs handed back
            running.cancel()
            await asyncio.wait([running])
            raise


def _log_failure(running: asyncio.Task[None]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        _log.error(
            "%s failed, and no longer runs jobs; the server serves on. Next: correct the cause and restart the server",
            running.get_name(), exc_info=error,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Enqueues in the request's own transaction: an asynchronous session or connection."""

    connection: Any

    @classmethod
    def using(cls, dependency: Any) -> Callable[[Any], Enqueue]:
        """Return a dependency that enqueues in what this dependency gives: a session, or a connection.

        `dependency` is the function that a route names in `Depends(…)`, or the whole `Annotated[…, Depends(…)]`.
        """
        return _after(dependency, cls)

    async def __call__(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Enqueue a job for this call of the task; it exists when the request's transaction commits."""
        ticket: Ticket[R] = await task.enqueue_in(self.connection, *args, **kwargs)
        return ticket


@dataclass(frozen=True, slots=True)
class EnqueueSync:
    """Enqueues in the request's own transaction: a synchronous session or connection, in a plain `def` route."""

    connection: Any

    @classmethod
    def using(cls, dependency: Any) -> Callable[[Any], EnqueueSync]:
        """The same as `Enqueue.using`, for a dependency that gives a synchronous session or connection."""
        return _after(dependency, cls)

    def __call__(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Enqueue a job for this call of the task; it exists when the request's transaction commits."""
        ticket: Ticket[R] = task.enqueue_in(self.connection, *args, **kwargs)
        return ticket


def _after(dependency: Any, make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a dependency that makes something of what another dependency gives."""

    def made(connection: Any) -> T:
        return make(connection)

    # FastAPI reads the annotation; the whole `Annotated[…]` keeps the scope, so that a request has one session.
    made.__annotations__["connection"] = (
        dependency if get_origin(dependency) is Annotated else Annotated[Any, Depends(dependency)]
    )
    return made
