"""The ASGI application of pages and API: finds the page, who looks, and answers with HTML under a strict policy.

/api/…, /internal/…, probes      the API's own application
/static/NAME                     scripts and styles of this package
/login, /logout                  open and end a session
POST /actions/NAME               a form, as one call of the API (`actions.py`)
GET /live/PAGE                   the changing part of a page, again and again (`live.py`)
GET anything else                a page of `page_table.py`
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tenure.dashboard.actions import ACTIONS
from tenure.dashboard.live import Streams
from tenure.dashboard.page import Page, PageRoute
from tenure.dashboard.page_table import PAGES
from tenure.dashboard.rendering import Templates
from tenure.dashboard.shared_reads import SharedReads
from tenure.dashboard.visitor import SingleSignOn, Visitor, Visitors
from tenure.errors import BadInput, PayloadTooLarge, TenureError
from tenure.http.application import Application
from tenure.http.error_response import (
    Forbidden,
    MethodNotAllowed,
    RouteNotFound,
    error_body,
    error_headers,
    error_status,
)
from tenure.settings import Settings

_log = logging.getLogger("tenure.dashboard")
_API: Final = ("/api/", "/internal/")
_MAX_FORM_BYTES: Final = 4 * 1024 * 1024
_FORM_S: Final = 30.0
_NOTICE_S: Final = 30
_MAX_NOTICE: Final = 800
_TYPES: Final = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Site:
    """Pages in front of the API."""

    def __init__(self, settings: Settings, application: Application) -> None:
        self._application = application
        self._public = urlsplit(settings.public_url or "")
        self._prefix = self._public.path.rstrip("/")
        self._single_sign_on = SingleSignOn.of(settings)
        self._visitors: Visitors | None = None
        self._shared = SharedReads()
        self._streams = Streams()
        static = {entry.name: entry.read_bytes() for entry in files(__package__).joinpath("static").iterdir()}
        self._static = {name: content for name, content in static.items() if name.rpartition(".")[2] in _TYPES}
        # One file: htmx reads the page once; an extension that arrives later would never connect the live part.
        self._static["htmx.js"] = b"\n".join(map(self._static.pop, ("htmx.min.js", "hx-sse.min.js")))
        # Drawings in a page have their style in the page: the policy forbids it inside of them.
        for package, name in ("tenure.contracts", "diagram.css"), ("tenure.flows", "flow.css"):
            self._static[name] = files(package).joinpath(name).read_bytes()
        self._templates = Templates(self._prefix, self._static, settings.trace_url)

    def stop_streams(self) -> None:
        """End all streams: the dispatcher stops."""
        self._streams.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path: str = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(self._prefix + "/")):
            path = path.removeprefix(self._prefix) or "/"
            scope = {**scope, "path": path}
        if path.startswith(_API) or self._application.has_path(path) or not self._application.is_connected:
            await self._application(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request, path)
        except ClientDisconnect:
            return
        except Exception as error:
            response = self._error_page(request, error)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    @property
    def _known(self) -> Visitors:
        if self._visitors is None:
            application = self._application
            self._visitors = Visitors(
                application.calls.store, application.keyring, is_https=self._public.scheme == "https",
                path=self._prefix, single_sign_on=self._single_sign_on,
            )  # fmt: skip
        return self._visitors

    async def _respond(self, request: Request, path: str) -> Response:
        if path.startswith("/static/"):
            _only(request, "GET", "HEAD")
            return self._file(path.removeprefix("/static/"))
        if path == "/login":
            return await self._log_in(request)
        visitor = await self._known.find(request)
        if visitor is None:
            return self._to_log_in(request, path)
        if path == "/logout" or path.startswith("/actions/"):
            _only(request, "POST")
            form = await self._form(request, visitor)
            if path == "/logout":
                await self._known.log_out(request)
                response: Response = self._redirect("/login")
                self._known.set_cookie(response, self._known.session_cookie, "", 0)
                return response
            return await self._act(path.removeprefix("/actions/"), form, visitor)
        _only(request, "GET", "HEAD")
        is_live = path.startswith("/live/")
        path = path.removeprefix("/live") if is_live else path
        route, name = _find(path)
        page = Page(self._application, self._shared, visitor.caller, name, dict(request.query_params))
        self._application.require_scopes(visitor.caller, "GET", route.reads)
        if is_live:
            _only(request, "GET")  # the answer to a HEAD would have no body and no end
            if not route.is_live:
                raise RouteNotFound("this page has no live part")
            return self._stream(request, route, page)
        return await self._show(request, route, page, visitor)

    async def _show(self, request: Request, route: PageRoute, page: Page, visitor: Visitor) -> Response:
        notice = _read_notice(request.cookies.get("tenure_notice"))
        values = await route.load(page)
        here = _with_query(request, request.scope["path"])
        text = self._templates.page(route, values, self._frame(visitor, here, route, notice))
        response = HTMLResponse(text, headers={"Cache-Control": "no-store"})
        await self._known.renew(request, visitor)
        self._known.set_cookies(response, visitor)
        if notice is not None:
            self._known.set_cookie(response, "tenure_notice", "", 0)
        return response

    def _stream(self, request: Request, route: PageRoute, page: Page) -> Response:
        """The changing part of a page as events. Readers of the same page with equal rights share what is rendered."""
        here = (route.path, page.name, tuple(sorted(page.query.items())), page.caller.tenant, page.caller.scopes)

        async def render() -> str:
            return self._templates.live(route, await route.load(page))

        async def may_go_on() -> bool:
            visitor = await self._known.find(request)
            return visitor is not None and visitor.caller == page.caller

        rounds = self._streams.rounds(lambda: self._shared.get(("live", *here), render), may_go_on)
        return StreamingResponse(rounds, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _log_in(self, request: Request) -> Response:
        _only(request, "GET", "HEAD", "POST")
        target = _local_path(request.query_params.get("next"))
        if request.method != "POST":
            return self._log_in_page(target, None)
        form = await _read_form(request)
        self._check_origin(request)
        visitor = await self._known.log_in(form.get("key", "").strip())
        if visitor is None:
            return self._log_in_page(target, "This key is unknown, revoked or expired. Next: tenure keys list")
        _log.info("%s logged in to the dashboard", visitor.caller.actor)
        response = self._redirect(target)
        self._known.set_cookies(response, visitor)
        return response

    def _log_in_page(self, target: str, error: str | None) -> Response:
        text = self._templates.plain("login.html", title="Log in", next=target, error=error)
        return HTMLResponse(text, 200 if error is None else 401, headers={"Cache-Control": "no-store"})

    def _to_log_in(self, request: Request, path: str) -> Response:
        if request.method not in ("GET", "HEAD") or path.startswith("/live/"):
            text = self._templates.plain("login.html", title="Log in", next="/", error="Your session has ended.")
            return HTMLResponse(text, 401)
        return self._redirect(f"/login?next={quote(_with_query(request, path), safe='')}")

    async def _act(self, name: str, form: Mapping[str, str], visitor: Visitor) -> Response:
        """Do what a form asks, and go back to its page, which shows what happened."""
        action = ACTIONS.get(name)
        if action is None:
            raise RouteNotFound(f"there is no action {name[:100]!r}")
        back = _local_path(form.get("back"))
        try:
            method, path, body = action.request(form)
            answer = await self._application.call(visitor.caller, method, path, body=body)
            self._shared.forget()
            text, is_error = action.describe(form, answer), False
            target = action.target(form, answer) or back
        except TenureError as error:
            if error_status(error) in (401, 403):
                raise
            said = error_body(error)
            text, is_error, target = f"{said['code']}: {said['message']}. {said['hint'] or ''}", True, back
        response = self._redirect(target)
        content = json.dumps({"text": text[:_MAX_NOTICE], "is_error": is_error})
        self._known.set_cookie(
            response, "tenure_notice", base64.urlsafe_b64encode(content.encode()).decode(), _NOTICE_S
        )
        return response

    async def _form(self, request: Request, visitor: Visitor) -> Mapping[str, str]:
        """The fields of a form; refuses one that is not from a page of ours."""
        form = await _read_form(request)
        self._check_origin(request)
        if not hmac.compare_digest(form.get("form_token", "").encode(), visitor.form_token.encode()):
            raise Forbidden("the form is not from a page of this dashboard, or is too old. Next: open the page again")
        return form

    def _check_origin(self, request: Request) -> None:
        """Refuse what a page of another site sends."""
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        # The origin `null`, of a page in a sandbox, has no host; nor has an unset public address.
        ours = {host.lower(), self._public.netloc.lower()} - {""}
        is_foreign = origin is not None and origin.lower().partition("://")[2] not in ours
        if is_foreign or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Forbidden(f"the dashboard takes nothing from pages of {(origin or 'another site')[:200]!r}")

    def _frame(
        self, visitor: Visitor, here: str, route: PageRoute | None, notice: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What the frame around each page shows."""
        menu = [page for page in PAGES if page.menu and self._application.has_scopes(visitor.caller, "GET", page.reads)]
        return {
            "menu": menu, "route": route, "here": here, "notice": notice, "caller": visitor.caller,
            "form_token": visitor.form_token, "has_session": visitor.has_session,
            "may": lambda action: self._may(visitor, action),
        }  # fmt: skip

    def _may(self, visitor: Visitor, action: str) -> bool:
        """Whether the person may send this form."""
        return self._application.has_scopes(visitor.caller, *ACTIONS[action].route)

    def _file(self, name: str) -> Response:
        """A script or a style; its address has a version, so browsers keep it."""
        content = self._static.get(name)
        if content is None:
            raise RouteNotFound(f"there is no file {name[:100]!r}")
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    def _redirect(self, path: str) -> Response:
        return RedirectResponse(self._prefix + path, 303)

    def _error_page(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, TenureError):
            _log.exception("page %r failed", request.scope["path"], exc_info=error)
            error = TenureError("the page cannot be shown; the dispatcher's log has the details. Next: report it")
        status, said = error_status(error), error_body(error)
        text = self._templates.plain("error.html", title=str(said["code"]), status=status, error=said)
        return HTMLResponse(text, status, headers={**error_headers(error), "Cache-Control": "no-store"})


def _only(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise MethodNotAllowed(methods, "this path does not take that method")


def _find(path: str) -> tuple[PageRoute, str]:
    """The page of a path, and the text in place of its placeholder."""
    for page in PAGES:
        if not page.has_name and path in (page.path, page.path + "/"):
            return page, ""
    for page in PAGES:
        name = path.removeprefix(page.before)
        if page.has_name and path.startswith(page.before) and name and "/" not in name:
            return page, name
    raise RouteNotFound("there is no page with this address. Next: go to the overview")


async def _read_form(request: Request) -> dict[str, str]:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise BadInput("a form of the dashboard is sent as application/x-www-form-urlencoded")
    body = b""
    try:
        async with asyncio.timeout(_FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > _MAX_FORM_BYTES:
                    raise PayloadTooLarge(f"the form has more than {_MAX_FORM_BYTES} bytes. Next: use the API")
    except TimeoutError:
        raise BadInput(f"the form did not arrive within {_FORM_S:g} s. Next: send it again") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=200))
    except ValueError as error:
        raise BadInput(f"the form cannot be read: {error}") from None


def _local_path(text: str | None) -> str:
    """A path of this site; anything else becomes the overview, so that no link leads to another site."""
    if not text or not text.startswith("/") or text.startswith(("//", "/\\")) or not text.isprintable():
        return "/"
    return quote(text, safe="/?&=%:;+,~-._")


def _with_query(request: Request, path: str) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _read_notice(text: str | None) -> Mapping[str, Any] | None:
    """What the last form did, from its cookie; None: there is none, or it is not ours."""
    if not text:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(text))
        return {"text": str(found["text"])[:_MAX_NOTICE], "is_error": bool(found["is_error"])}
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
