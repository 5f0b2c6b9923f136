"""The dispatcher's ASGI application: a request on its way to its route, and the answer on its way back.

    ids ─▶ find the route ─▶ guard: key and scopes ─▶ path, query, body as models ─▶ the route's function
                                                      JSON, or the error envelope ◀─┘

The guard authenticates and authorizes the caller before it reads a byte of the body. Without a key a request causes no
parsing, and at most one database lookup of the key. Before the database is connected only /healthz answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenure.errors import BadInput, CannotConnect, JobNotFound, PayloadTooLarge, TenureError, WaitingForParents
from tenure.http.authentication import Caller, Keyring
from tenure.http.error_response import (
    ForeignTenant,
    MethodNotAllowed,
    RequestTimeout,
    RouteNotFound,
    error_body,
    error_headers,
    error_status,
)
from tenure.http.job_calls import JobCalls
from tenure.http.response import JsonResponse
from tenure.http.route import Route
from tenure.http.validation_messages import Fault, bad_input, empty_body, faults
from tenure.jobs.flow import WaitingNode
from tenure.jobs.formats import dump_json
from tenure.jobs.validation import LENGTHS, MAX_ID
from tenure.settings import MAX_BODY_BYTES

_log = logging.getLogger("tenure.http")
#: The whole body must arrive within this many seconds.
_BODY_S = 30.0
#: The log gets one warning about 5xx responses in this many seconds: without the database every request fails.
_LOG_S = 10.0
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class ApiRequest(Request):
    """A request, with what its route's function reads from it."""

    calls: JobCalls
    caller: Caller
    #: The text in place of the path's placeholder.
    path_text = ""

    def __init__(self, scope: Scope, receive: Receive, application: Application) -> None:
        super().__init__(scope, receive)
        self.application = application
        self.request_id = _plain_id(self.headers.get("x-request-id")) or _new_id()
        parent = _TRACEPARENT.fullmatch(self.headers.get("traceparent", ""))
        #: The trace id that came with the request, if any.
        self.given_trace_id = parent[1] if parent else _plain_id(self.headers.get("x-trace-id"))
        self.trace_id = self.given_trace_id or _new_id()

    @property
    def job_id(self) -> int:
        """The id in the path; refuses one that no job can have as not found."""
        return parse_job_id(self.path_text)

    async def own_job_id(self) -> int:
        """The id in the path; refuses one that does not exist, is another tenant's, or waits for its parents."""
        try:
            await self.calls.identity(self.job_id, self.caller)
        except JobNotFound:
            if (waiting := await self.own_waiting_node()) is None:
                raise
            node = waiting.node
            raise WaitingForParents(self.job_id, waiting.flow_id, node.name, node.state) from None
        return self.job_id

    async def own_waiting_node(self) -> WaitingNode | None:
        """The node of a flow whose job has the id in the path and is not made; refuses another tenant's."""
        waiting = await self.calls.store.flows.find_waiting(self.job_id)
        if waiting is not None and self.caller.tenant not in (None, waiting.tenant_id):
            raise ForeignTenant(f"job {self.job_id} is another tenant's. Next: use a key of that tenant")
        return waiting

    async def authenticate(self) -> Caller:
        """The caller, by its key; also later in a long request, because the key may be revoked meanwhile."""
        return await self.application.keyring.caller(self)

    def idempotency_key(self, from_body: str | None) -> str | None:
        """The idempotency key of the call, from the body or from the header."""
        header = self.headers.get("idempotency-key")
        if header is None:
            return from_body
        if not header.strip():
            raise BadInput("the Idempotency-Key header is empty. Next: give a key, or leave it out")
        longest = LENGTHS["key"]
        if len(header) > longest:
            raise BadInput(f"the Idempotency-Key header has {len(header)} characters; at most {longest} are allowed")
        if from_body not in (None, header):
            raise BadInput("the body and the Idempotency-Key header have different keys. Next: give one of them")
        return header

    def refuse_idempotency_key(self, hint: str) -> None:
        """Refuse the Idempotency-Key header where it would have no effect."""
        if "idempotency-key" in self.headers:
            raise BadInput(f"the Idempotency-Key header has no effect here. Next: {hint}")


class Application:
    """The application: a table of routes, and from `connect` on the calls and keys of a database."""

    calls: JobCalls
    keyring: Keyring

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        internal_run: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
        direct_url: str | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self.direct_url = direct_url
        self.internal_run = internal_run
        self._max_body_bytes = max_body_bytes
        self._is_connected = False
        self._log_after = 0.0
        #: By the path before the placeholder and the part behind it (None: no placeholder); then by method.
        self._table: dict[tuple[str, str | None], dict[str, Route]] = {}
        for route in self.routes:
            before, placeholder, after = route.path.partition(f"/{{{route.path_name}}}")
            key = (before, after.removeprefix("/") if placeholder else None)
            self._table.setdefault(key, {})[route.method] = route
        self._scopes = {(route.method, route.path): route.scopes or () for route in self.routes}

    @property
    def is_connected(self) -> bool:
        """Whether the database is there; before, only /healthz answers."""
        return self._is_connected

    def connect(self, calls: JobCalls, keyring: Keyring) -> None:
        """Serve from now on."""
        self.calls, self.keyring, self._is_connected = calls, keyring, True

    def has_path(self, path: str) -> bool:
        """Whether a route has exactly this path."""
        return (path, None) in self._table

    def require_scopes(self, caller: Caller, method: str, path: str) -> None:
        """Refuse a caller that has none of the scopes of this route; `path` is as in the table."""
        caller.require_scope(self._scopes[method, path])

    def has_scopes(self, caller: Caller, method: str, path: str) -> bool:
        """Whether the caller has one of the scopes of this route; `path` is as in the table."""
        wanted = self._scopes[method, path]
        return not wanted or "admin" in caller.scopes or not caller.scopes.isdisjoint(wanted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with its ids in the headers; log it at the level DEBUG."""
        began = time.perf_counter()
        request = ApiRequest(scope, receive, self)
        try:
            response = await self._respond(request)
        except Exception as error:
            response = self._error_response(request, error)
        ids = (b"x-request-id", request.request_id.encode()), (b"x-trace-id", request.trace_id.encode())
        response.raw_headers.extend(ids)
        if _log.isEnabledFor(logging.DEBUG):
            name = request.caller.name if hasattr(request, "caller") else "nobody"
            _log.debug(
                "%s %r %d in %.1f ms, %s, trace %s", scope["method"], scope["path"], response.status_code,
                1_000 * (time.perf_counter() - began), name, request.trace_id,
            )  # fmt: skip
        await response(scope, receive, send)

    async def _respond(self, request: ApiRequest) -> Response:
        if not self._is_connected and request.scope["path"] != "/healthz":
            return _envelope(CannotConnect("the dispatcher waits for its database. Next: try again"), request.trace_id)
        route = self._find(request)
        arguments: list[BaseModel] = []
        if self._is_connected:
            request.calls = self.calls
        if route.scopes is not None:
            request.caller = await request.authenticate()
            request.caller.require_scope(route.scopes)
            arguments = await self._arguments(request, route)
        answer = await route.handler(request, *arguments)
        return answer if isinstance(answer, Response) else JsonResponse(answer)

    def _find(self, request: ApiRequest) -> Route:
        """The route of a request. A path without a placeholder comes first: its last part is no id."""
        path: str = request.scope["path"]
        parent, _, last = path.rpartition("/")
        grandparent, _, middle = parent.rpartition("/")
        for key, text in ((path, None), ""), ((grandparent, last or "/"), middle), ((parent, ""), last):
            methods = self._table.get(key)
            if methods is not None and (text or key[1] is None):
                break
        else:
            raise RouteNotFound("there is no route with this path. Next: see /openapi.json")
        if request.method not in methods:
            raise MethodNotAllowed(methods, "this path does not take that method. Next: see /openapi.json")
        request.path_text = text
        return methods[request.method]

    async def call(
        self,
        caller: Caller,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a route from inside this process, as this caller; returns the value of its JSON, or its bytes.

        The route checks scopes, tenant, query and body as it does for a request; what it refuses is raised.
        """
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [],
            "client": None,
        }
        request = ApiRequest(scope, _nothing_to_receive, self)
        route = self._find(request)
        if route.scopes is None or not self._is_connected:
            raise RouteNotFound(f"{method} {path} cannot be called from here")
        request.calls, request.caller = self.calls, caller
        caller.require_scope(route.scopes)
        arguments = _validate(route, request.path_text, query or {}, body or {}, is_empty=not body)
        answer = await route.handler(request, *arguments)
        if isinstance(answer, Response):
            content = bytes(answer.body)
            return json.loads(content) if isinstance(answer, JsonResponse) else content
        return json.loads(dump_json(answer))

    async def _arguments(self, request: ApiRequest, route: Route) -> list[BaseModel]:
        """The query or the body as a model; refuses them, and the text in the path, with all errors together."""
        query = request.query_params if request.scope["query_string"] else {}
        body = await _receive(request, self._max_body_bytes) if route.body is not None else b""
        value = _parse(request, body) if body else {}
        if body and value is None and not route.needs_body:
            raise BadInput("the body must be an object, not null. Next: send an object, or no body")
        return _validate(route, request.path_text, query, value, is_empty=not body)

    def _error_response(self, request: ApiRequest, error: Exception) -> Response:
        """The response to an error; an unexpected error is logged with its traceback."""
        trace_id, what = request.trace_id, (request.method, request.scope["path"])
        if not isinstance(error, TenureError):
            _log.exception("%s %r failed (trace %s)", *what, trace_id, exc_info=error)
            error = TenureError(
                f"the dispatcher failed; its log has the details under trace {trace_id}. Next: report it"
            )
        elif error_status(error) >= 500 and time.monotonic() >= self._log_after:
            self._log_after = time.monotonic() + _LOG_S
            _log.warning("%s %r cannot be answered: %s", *what, error)
        return _envelope(error, trace_id)


def _validate(route: Route, path_text: str, query: Mapping[str, str], value: Any, *, is_empty: bool) -> list[BaseModel]:
    """The query or the body as a model; refuses them, and the text in the path, with all errors together."""
    known = route.query.model_fields if route.query is not None else {}
    if unknown := query.keys() - known.keys():
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none here"
        raise BadInput(f"there is no query parameter {min(unknown)[:100]!r}; {there_are}")
    parts = (route.path_model, {route.path_name: path_text}), (route.query, dict(query)), (route.body, value)
    valid: list[BaseModel] = []
    found: list[Iterable[Fault]] = []
    for model, given in parts:
        if model is None:
            continue
        if model is route.body and route.needs_body and is_empty:
            found.append([empty_body(model)])
            continue
        try:
            valid.append(model.model_validate(given))
        except ValidationError as error:
            found.append(faults(error, model, in_body=model is route.body))
    if found:
        raise bad_input(chain.from_iterable(found))
    return valid if route.path_model is None else valid[1:]


async def _nothing_to_receive() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


def _envelope(error: TenureError, trace_id: str) -> Response:
    content = {"error": error_body(error), "trace_id": trace_id}
    return JsonResponse(content, status_code=error_status(error), headers=error_headers(error))


async def _receive(request: Request, limit: int) -> bytes:
    """The body; refuses one that is too large or too slow."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {_BODY_S:g} s. Next: send it again") from None
    except ClientDisconnect:  # nobody reads this answer, and it is no error for the log
        raise BadInput("the client disconnected before its whole body arrived") from None
    return b"".join(parts)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body has more than {limit} bytes. Next: send less at a time, or store it elsewhere")


def _parse(request: Request, body: bytes) -> Any:
    """The body's value. It must be declared as JSON: a browser asks a site before it sends JSON to another site."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise BadInput(f"the body has the type {media or 'none'}. Next: send JSON, with Content-Type: application/json")
    try:
        return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique_names)
    except RecursionError:
        raise BadInput("the body is nested too deeply; flatten it") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; refuses a repeated name, because parsers differ in which of the two values they take."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def parse_job_id(job_id: str) -> int:
    """A job's id as a number; refuses one that no job can have as not found."""
    number = int(job_id)
    if not 0 < number <= MAX_ID:
        raise JobNotFound(number)
    return number


def parse_cursor(cursor: str | None) -> int | None:
    """The id after which a page begins; refuses one that no page has returned."""
    if cursor is None:
        return None
    if not 0 < int(cursor) <= MAX_ID:
        raise BadInput(f"cursor {cursor} is none that a page returned. Next: leave it out to begin at the beginning")
    return int(cursor)


def _plain_id(value: str | None) -> str | None:
    return value if value is not None and _PLAIN_ID.fullmatch(value) else None


def _new_id() -> str:
    return os.urandom(16).hex()
