"""The dispatcher as an application: its routes, how it refuses, and whether it is ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure import __version__
from tenure.errors import CannotConnect, TenureError
from tenure.http import claims, holding, jobs, letters, operators, rehearsal, tasks
from tenure.http.asked import needs, routes
from tenure.http.callers import Keyring
from tenure.http.desk import Desk
from tenure.http.guard import RequestIds
from tenure.http.models import probes
from tenure.http.openapi import ABOUT, described, operation_id
from tenure.http.refusals import NoSuchRoute, WrongMethod, headers_of, status_of, told
from tenure.http.shown import Json
from tenure.http.ways import Short
from tenure.settings import MAX_BODY_BYTES

_log = logging.getLogger("tenure.http")
#: A probe must not wait for a database that is away.
_READY_S = 1.0
#: Of what cannot be answered the log tells so often at the most: while the database is away, everybody asks.
_TELL_S = 10.0
_PARTS = (jobs, claims, holding, operators, letters, tasks, rehearsal)


class _Application(FastAPI):
    """An application whose plain requests take the short way, and whose every answer is named."""

    def build_middleware_stack(self) -> ASGIApp:
        """The framework's own, behind the short way."""
        return RequestIds(Short(super().build_middleware_stack(), _routes(), refused=_refused, failed=_failed))


def _routes() -> Iterator[BaseRoute]:
    for part in _PARTS:
        yield from part.router.routes


def application(
    desk: Desk, keyring: Keyring, *, internal_run: bool = False, max_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """The dispatcher's application, on a desk and the keys of its database."""
    app = routed()
    app.state.desk, app.state.keyring = desk, keyring
    app.state.internal_run, app.state.max_body_bytes = internal_run, max_body_bytes
    app.add_exception_handler(TenureError, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    return app


async def _not_yet(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/healthz":
        answer = await _alive()
    else:
        away = CannotConnect("the dispatcher waits for its database. Next: try again")
        body = {"error": told(away), "trace_id": scope["state"]["trace_id"]}
        answer = Json(body, status_code=503, headers=dict(headers_of(away)))
    await answer(scope, receive, send)


#: What a dispatcher is before its database is there: alive, and not ready.
waiting: ASGIApp = RequestIds(_not_yet)


def routed() -> FastAPI:
    """The application's routes, with nothing behind them: to be described, not to be asked."""
    app = _Application(
        title="Tenure", version=__version__, summary="Durable jobs on PostgreSQL.", description=ABOUT,
        license_info={"name": "MIT", "identifier": "MIT"}, openapi_url=None, docs_url=None, redoc_url=None,
        redirect_slashes=False, generate_unique_id_function=lambda route: operation_id(route.name),
    )  # fmt: skip
    for part in _PARTS:
        app.include_router(part.router)
    app.include_router(_about_itself())
    app.include_router(_probes())
    return app


def _probes() -> APIRouter:
    """Open to everybody: a load balancer has no key."""
    router = APIRouter(tags=["probes"], default_response_class=Json)
    for path, probe, answers in (
        ("/healthz", _alive, {200: probes.Well}),
        ("/readyz", _ready, {200: probes.Well, 503: probes.NotReady}),
    ):
        said: dict[int | str, Any] = {
            status: {"model": model, "description": model.__doc__} for status, model in answers.items()
        }
        router.get(path, name=path[1:], responses=said, openapi_extra={"security": []})(probe)
    return router


def _about_itself() -> Any:
    router = routes("about")

    @router.get("/openapi.json", include_in_schema=False, openapi_extra=needs())
    async def openapi(request: Request) -> Json:
        """The OpenAPI of this dispatcher."""
        return Json(await asyncio.to_thread(described, request.app))  # the first one takes a while

    return router


async def _alive() -> Json:
    """Whether the process answers."""
    return Json({"status": "ok"})


async def _ready(request: Request) -> Json:
    """Whether it can do what it is asked: the database is there, and it is not about to stop."""
    desk: Desk = request.app.state.desk
    if desk.bell.is_over:
        return Json({"status": "stopping"}, status_code=503)
    try:
        async with asyncio.timeout(_READY_S):
            await desk.store.contracts()
    except TimeoutError:
        raise CannotConnect(f"the database did not answer within {_READY_S:g} s. Next: try again") from None
    return Json({"status": "ok"})


async def _refused(request: Request, error: Exception) -> Json:
    """A refusal in its envelope."""
    known = error if isinstance(error, TenureError) else _in_our_words(error)
    status = error.status_code if isinstance(error, HTTPException) else status_of(known)
    headers = {**headers_of(known), **(getattr(error, "headers", None) or {})}
    if "Allow" in headers:
        headers["Allow"] = ", ".join(sorted({headers["Allow"], *_methods(request)}))
    if status >= 500 and time.monotonic() >= getattr(request.app.state, "tells_at", 0.0):
        request.app.state.tells_at = time.monotonic() + _TELL_S
        _log.warning("%s %r cannot be answered: %s", request.method, request.url.path, known)
    return Json({"error": told(known), "trace_id": request.state.trace_id}, status_code=status, headers=headers)


def _methods(request: Request) -> set[str]:
    """The methods that an address takes, by all of its routes; the framework looks at the first of them."""
    there = (route for route in _routes() if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in there for method in getattr(route, "methods", None) or ()}


async def _failed(request: Request, error: Exception) -> Json:
    """What should not happen: said to be ours, and logged with all that is known."""
    trace_id = request.state.trace_id
    _log.exception("%s %r failed (trace %s)", request.method, request.url.path, trace_id, exc_info=error)
    known = TenureError(f"the dispatcher failed; it is in its log under the trace {trace_id}. Next: report it")
    return Json({"error": told(known), "trace_id": trace_id}, status_code=500)


def _in_our_words(error: Exception) -> TenureError:
    """The framework's own refusals."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        return WrongMethod("this address does not take that method. Next: see /openapi.json")
    return NoSuchRoute("nothing is at this address. Next: see /openapi.json")
