"""The short way to a route: most requests need no more than their caller, a number in the path and a body.

    request ─▶ is it plain? ─▶ guard ─▶ the body's model ─▶ the route's own function
                    └─ no ──▶ the framework, which looks for the route and solves what it depends on

Both ways end in the same function and refuse with the same words; the short one is for what workers say all day. A
route that asks for more (a query, a form, a dependency) has the long way alone.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.errors import TenureError
from tenure.http.faults import in_our_words
from tenure.http.guard import Guarded, heard, let_in

#: An id in a path; what else stands there goes the long way, to be refused.
_NUMBER = re.compile(r"/([0-9]{1,19})(?=/|\Z)")
_PLACE = re.compile(r"\{(\w+)\}")
#: What became of an error: its answer.
Told = Callable[[Request, Exception], Awaitable[Response]]


class Short:
    """Takes plain requests to their routes, and gives all others to the framework."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], *, refused: Told, failed: Told) -> None:
        self._app = app
        self._refused, self._failed = refused, failed
        self._ways: dict[tuple[str, str], _Way] = {}
        for route in routes:
            if isinstance(route, Guarded) and _is_plain(route):
                for method in route.methods or ():
                    self._ways[method, _PLACE.sub("{}", route.path)] = _Way(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        found = None
        if scope["type"] == "http" and not scope["query_string"]:
            path: str = scope["path"]
            if number := _NUMBER.search(path):
                path = f"{path[: number.start()]}/{{}}{path[number.end() :]}"
            if number or "{}" not in path:  # a path may have braces of its own, and no number
                found = self._ways.get((scope["method"], path))
        if found is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await found.answer(request, number[1] if number else None)
        except TenureError as error:
            response = await self._refused(request, error)
        except Exception as error:
            response = await self._failed(request, error)
        await response(scope, receive, send)


class _Way:
    """A plain route, taken apart once."""

    def __init__(self, route: Guarded) -> None:
        needs = route.dependant
        self._route = route
        self._call: Callable[..., Awaitable[Response]] = route.endpoint
        self._scopes = route.scopes
        self._model: type[BaseModel] = needs.body_params[0].field_info.annotation  # type: ignore[assignment]
        self._names = (needs.request_param_name or "request", needs.body_params[0].name)
        self._place = needs.path_params[0].name if needs.path_params else None
        self._headers = [(field.name, field.alias) for field in needs.header_params]

    async def answer(self, request: Request, number: str | None) -> Response:
        """Let the caller in, read what they say, and do it."""
        await let_in(request, self._scopes)
        body, value = await heard(request)
        if not body:
            raise in_our_words([{"type": "missing", "loc": ("body",)}], self._route.wanted)
        try:
            model = self._model.model_validate(value, from_attributes=True)  # as the framework does, to find the same
        except ValidationError as error:
            raise in_our_words(error.errors(include_url=False), self._route.wanted, "body") from None
        for_request, for_body = self._names
        given: dict[str, Any] = {for_request: request, for_body: model}
        if self._place is not None:
            given[self._place] = number
        for name, header in self._headers:
            given[name] = request.headers.get(header)
        return await self._call(**given)


def _is_plain(route: Guarded) -> bool:
    """Whether a route needs a body and, at the most, an id in its path and headers that may be absent."""
    needs = route.dependant
    others = (needs.dependencies, needs.query_params, needs.cookie_params)
    bodies = [field.field_info for field in needs.body_params]
    return (
        not any(others)
        and len(needs.path_params) == len(_PLACE.findall(route.path)) <= 1
        and all(field.name.endswith("_id") for field in needs.path_params)
        and len(bodies) == 1
        and bodies[0].is_required()
        and isinstance(bodies[0].annotation, type)
        and issubclass(bodies[0].annotation, BaseModel)
        and all(field.field_info.annotation == (str | None) for field in needs.header_params)
    )
