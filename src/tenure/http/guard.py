"""The guard in front of every route: who asks, may they, and is what they sent of a size and shape to be looked at.

In this order, so that nobody without a key makes the dispatcher read or parse anything, or ask the database for more
than whether the key is one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.errors import BadInput, PayloadTooLarge
from tenure.http.callers import Keyring
from tenure.http.faults import Schema, in_our_words, wanted
from tenure.http.refusals import TooSlow

_log = logging.getLogger("tenure.http")
#: A body must be here after so many seconds.
_BODY_S = 30.0
_NAMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class JsonRequest(Request):
    """A request whose body was read, and understood as JSON."""

    def __init__(self, scope: Scope, receive: Receive, body: bytes, value: Any) -> None:
        super().__init__(scope, receive)
        self._body = body
        self._json = value


class Guarded(APIRoute):
    """A route that asks who is there before it reads what they say."""

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of which a caller needs one; none: any key will do."""
        return tuple((self.openapi_extra or {}).get("x-scopes", ()))

    @cached_property
    def wanted(self) -> Schema:
        """What a request must be, for the words in which others are refused."""
        return wanted(self.dependant)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's own handler, behind the guard."""
        handle = super().get_route_handler()
        scopes, takes_body = self.scopes, self.body_field is not None
        asks = frozenset(field.alias for field in self.dependant.query_params)

        async def guarded(request: Request) -> Response:
            await let_in(request, scopes)
            if odd := request.query_params.keys() - asks:
                there = f"there are {', '.join(sorted(asks))}" if asks else "there are none here"
                raise BadInput(f"there is no parameter {min(odd)[:100]!r} of the query; {there}")
            if takes_body:
                request = JsonRequest(request.scope, request.receive, *await heard(request))
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise in_our_words(error.errors(), self.wanted) from None

        return guarded


async def heard(request: Request) -> tuple[bytes, Any]:
    """Read what somebody says who may: the body, and its value."""
    body = await _read(request, request.app.state.max_body_bytes)
    return body, _parsed(request, body)


async def let_in(request: Request, scopes: Iterable[str]) -> None:
    """Ask who is there, and whether they may."""
    keyring: Keyring = request.app.state.keyring
    caller = await keyring.caller(request)
    caller.must(scopes)
    request.state.caller = caller


async def _read(request: Request, most: int) -> bytes:
    """The body; refuses one that is too large as soon as that is known."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {_BODY_S:g} s. Next: send it again") from None
    except ClientDisconnect:  # nobody hears this, and it is no failure of ours that the log should tell of
        raise BadInput("the client went away before its body was here") from None
    return b"".join(parts)


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body has more than {most} bytes. Next: send less at a time, or store it elsewhere")


def _parsed(request: Request, body: bytes) -> Any:
    """The body's value. JSON must be said to be JSON: a browser asks before it sends that to another site."""
    if not body:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise BadInput(f"the body is {kind or 'of no type'}. Next: send JSON, with Content-Type: application/json")
    try:
        return json.loads(body, parse_constant=_no_number, object_pairs_hook=_object)
    except RecursionError:
        raise BadInput("the body is nested too deeply; flatten it") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; refuses a name that stands twice, because readers differ in which of the two they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


class RequestIds:
    """Gives every answer the ids of its request and trace: those that came with it, else new ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its names."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        came = _trace(given)
        request_id, trace_id = _sane(given.get("x-request-id")) or _new_id(), came or _new_id()
        state: dict[str, Any] = scope.setdefault("state", {})
        state.update(request_id=request_id, trace_id=trace_id, came_with_trace=came is not None)
        names = [(b"x-request-id", request_id.encode()), (b"x-trace-id", trace_id.encode())]
        tells = _log.isEnabledFor(logging.DEBUG)
        began = time.perf_counter() if tells else 0.0

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *names]
                if tells:
                    _tell(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, named)


def _tell(scope: Scope, status: int, took_s: float) -> None:
    """One line for a request that is answered."""
    state = scope["state"]
    who = getattr(state.get("caller"), "name", "nobody")
    _log.debug(
        "%s %r %d in %.1f ms, %s, trace %s",
        scope["method"],
        scope["path"],
        status,
        1_000 * took_s,
        who,
        state["trace_id"],
    )


def _sane(given: str | None) -> str | None:
    return given if given is not None and _NAMED.fullmatch(given) else None


def _trace(given: Headers) -> str | None:
    found = _TRACEPARENT.fullmatch(given.get("traceparent", ""))
    return found[1] if found else _sane(given.get("x-trace-id"))


def _new_id() -> str:
    return os.urandom(16).hex()
