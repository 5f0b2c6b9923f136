"""Who looks at a page: a person who has logged in with a key, one whom a proxy names, or this machine without keys."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from tenure.dashboard.shared_reads import SharedReads
from tenure.http.authentication import Caller, Keyring, local_caller
from tenure.http.error_response import Forbidden
from tenure.jobs.api_key import hash_key
from tenure.postgres.dashboard_sessions import LIFETIME_MS, FoundSession
from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.postgres.store import Store

#: Seconds that a found session is remembered: one that was ended elsewhere works that much longer.
_CACHE_S: Final = 2.0
_LONGEST_TOKEN: Final = 100


@dataclass(frozen=True, slots=True)
class SingleSignOn:
    """A header in which a proxy names the person, and what every such person may do."""

    header: str
    scopes: tuple[str, ...]
    #: The networks of the proxies that are believed.
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    @classmethod
    def of(cls, settings: Settings) -> SingleSignOn | None:
        """What the settings say; None: no proxy is believed."""
        if settings.sso_header is None:
            return None
        return cls(settings.sso_header, settings.sso_scopes, tuple(map(ipaddress.ip_network, settings.sso_proxies)))


@dataclass(slots=True)
class Visitor:
    """A person who looks at a page, and what their browser holds."""

    caller: Caller
    #: The secret behind the form token.
    form_secret: str
    #: Whether the person logged in with a key, and so can log out.
    has_session: bool = False
    #: Whether the session's token is to be replaced.
    is_old: bool = False
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def form_token(self) -> str:
        """The token that each form of this browser carries; a page of another site cannot know it."""
        return hmac.new(self.form_secret.encode(), b"tenure form", hashlib.sha256).hexdigest()


class Visitors:
    """Finds out who looks, and opens and ends sessions."""

    def __init__(
        self, store: Store, keyring: Keyring, *, is_https: bool, path: str, single_sign_on: SingleSignOn | None
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._is_https = is_https
        self._path = path or "/"
        self._single_sign_on = single_sign_on
        self._found = SharedReads()
        # A browser sends a __Host- cookie back only where it came from, and only over HTTPS.
        prefix = "__Host-" if is_https and self._path == "/" else ""
        self.session_cookie, self.form_cookie = f"{prefix}tenure_session", f"{prefix}tenure_form"

    async def find(self, request: Request) -> Visitor | None:
        """Return who looks; None: they must log in. Refuses another machine while no key exists."""
        form_secret = _token(request, self.form_cookie)
        cookies = {}
        if form_secret is None:
            form_secret = cookies[self.form_cookie] = secrets.token_urlsafe(32)
        if (person := self._named_by_proxy(request)) is not None:
            scopes = () if self._single_sign_on is None else self._single_sign_on.scopes
            return Visitor(Caller(f"person {person}", frozenset(scopes), person=person), form_secret, cookies=cookies)
        if (token := _token(request, self.session_cookie)) is not None:
            hashed = hash_key(token)
            if (session := await self._session(hashed)) is not None:
                caller = await self._keyring.caller_of_hash(session.key_hash)
                if caller is not None:
                    return Visitor(caller, form_secret, has_session=True, is_old=session.is_old, cookies=cookies)
        if await self._keyring.is_open():
            return Visitor(local_caller(request), form_secret, cookies=cookies)
        return None

    async def log_in(self, key: str) -> Visitor | None:
        """Open a session with this key; None: it is unknown, revoked or expired."""
        caller = await self._keyring.caller_of_key(key)
        if caller is None:
            return None
        token, form_secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        await self._store.sessions.create(hash_key(token), hash_key(key))
        cookies = {self.session_cookie: token, self.form_cookie: form_secret}
        return Visitor(caller, form_secret, has_session=True, cookies=cookies)

    async def log_out(self, request: Request) -> None:
        """End the session of this browser."""
        if (token := _token(request, self.session_cookie)) is not None:
            self._found.forget(hash_key(token))
            await self._store.sessions.delete(hash_key(token))

    async def renew(self, request: Request, visitor: Visitor) -> None:
        """Replace an old token. Only for an answer that sets the cookies: the old token ends a minute later."""
        if visitor.is_old and request.method == "GET" and (old := _token(request, self.session_cookie)) is not None:
            token, hashed = secrets.token_urlsafe(32), hash_key(old)
            self._found.forget(hashed)
            if await self._store.sessions.renew(hashed, hash_key(token)):
                visitor.cookies[self.session_cookie] = token

    def set_cookies(self, response: Response, visitor: Visitor) -> None:
        """Give the browser the cookies that are new."""
        for name, value in visitor.cookies.items():
            self.set_cookie(response, name, value, LIFETIME_MS // 1_000)

    def set_cookie(self, response: Response, name: str, value: str, seconds: int) -> None:
        """Set a cookie that scripts cannot read and other sites' forms do not send; 0 seconds deletes it."""
        response.set_cookie(
            name, value, max_age=seconds, path=self._path, secure=self._is_https, httponly=True, samesite="lax"
        )

    def _named_by_proxy(self, request: Request) -> str | None:
        """The person in the header of a proxy that is believed."""
        if self._single_sign_on is None or request.client is None:
            return None
        named = request.headers.getlist(self._single_sign_on.header)
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return None
        if not named or not any(address in proxy for proxy in self._single_sign_on.proxies):
            return None
        # Of two, one may be the browser's own.
        if len(named) > 1 or not 0 < len(named[0]) <= 200 or not named[0].isprintable():
            raise Forbidden(f"the header {self._single_sign_on.header} does not hold one name of a person")
        return named[0]

    async def _session(self, hashed: bytes) -> FoundSession | None:
        """The session with this token; the open pages of a browser look it up together."""
        found: FoundSession | None = await self._found.get(hashed, lambda: self._store.sessions.find(hashed), _CACHE_S)
        return found


def _token(request: Request, name: str) -> str | None:
    """The value of a cookie, unless it is empty or too long to be ours."""
    value = request.cookies.get(name)
    return value if value and len(value) <= _LONGEST_TOKEN else None
