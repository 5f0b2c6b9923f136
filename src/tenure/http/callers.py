"""Who asks: a bearer key and what it may do, known before anything else of a request is looked at."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from tenure.http.refusals import Forbidden, ForeignTenant, Unauthorised
from tenure.key import LENGTH, PREFIX, SCOPES, digest

if TYPE_CHECKING:
    from tenure.postgres.store import Store

#: A key that was looked up is believed for so long: a revoked one works that much longer.
_BELIEVED_S = 2.0
#: So many keys are remembered, and so many that are none; whoever tries others must not fill the memory.
_REMEMBERED, _REFUSED = 10_000, 1_000
#: So many are looked up at once; whoever tries others must not take all connections.
_LOOKED_UP = 3
_EVERYTHING = frozenset(SCOPES)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s]+)(?::[0-9]{1,5})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may do; without a tenant, everybody's jobs."""

    name: str
    scopes: frozenset[str]
    tenant: str | None = None
    person: str | None = None
    #: Without any key, whoever is on this machine is taken at their word.
    says_who: bool = False

    @property
    def actor(self) -> str:
        """The name that the log gets."""
        return self.person or self.name

    def must(self, scopes: Iterable[str]) -> None:
        """Refuse who has none of these scopes; none asked for: any key will do."""
        wanted = tuple(scopes)
        if wanted and "admin" not in self.scopes and self.scopes.isdisjoint(wanted):
            raise Forbidden(
                f"this needs a key with the scope {' or '.join(wanted)}, and {self.name} has "
                f"{', '.join(sorted(self.scopes))}. Next: tenure keys create"
            )

    def of(self, tenant: str | None) -> str | None:
        """The tenant to ask for: the one that was named, or the key's own; refuses another one's."""
        if self.tenant is None or tenant in (None, self.tenant):
            return self.tenant or tenant
        raise ForeignTenant(f"{self.name} is bound to the tenant {self.tenant}. Next: use a key of the other tenant")

    def must_be_unbound(self) -> None:
        """Refuse a key that is bound to a tenant, for what tells of all of them."""
        if self.tenant is not None:
            raise ForeignTenant(
                f"this is about all tenants, and {self.name} is bound to {self.tenant}. "
                "Next: use a key that is bound to none"
            )


_LOOPBACK = Caller("loopback", _EVERYTHING, says_who=True)
_ADMIN = Caller("TENURE_ADMIN_KEY", _EVERYTHING)


class Keyring:
    """Knows the keys of a database, and asks it as seldom as it can."""

    def __init__(self, store: Store, admin_key: str | None = None) -> None:
        self._store = store
        self._admin = None if admin_key is None else digest(admin_key)
        self._known: dict[bytes, tuple[float, Caller]] = {}
        #: Until when a text is no key. Apart, so that nobody who tries texts makes us forget keys.
        self._refused: dict[bytes, float] = {}
        self._looking: dict[bytes, asyncio.Task[Caller | None]] = {}
        self._turns = asyncio.Semaphore(_LOOKED_UP)
        self._keyless_until = 0.0
        self._has_keys = admin_key is not None

    async def is_open(self) -> bool:
        """Whether there is no key anywhere; once there was one, never again."""
        if not self._has_keys and time.monotonic() >= self._keyless_until:
            self._has_keys = await self._store.keys.exist()
            self._keyless_until = time.monotonic() + _BELIEVED_S
        return not self._has_keys

    async def caller(self, request: Request) -> Caller:
        """Who sent this request; refuses who cannot be known."""
        given = request.headers.get("authorization")
        if given is None:
            if await self.is_open():
                return _from_here(request)
            raise Unauthorised("this dispatcher asks for a key. Next: send it as Authorization: Bearer tenure_…")
        kind, _, secret = given.partition(" ")
        if kind.lower() != "bearer" or not secret.strip():
            raise Unauthorised("the Authorization header holds no bearer key. Next: send it as Bearer tenure_…")
        text = secret.strip()
        found = await self._found(digest(text), is_ours=len(text) == LENGTH and text.startswith(PREFIX))
        if found is None:
            raise Unauthorised("this key is unknown, revoked or expired. Next: tenure keys list")
        return found

    async def _found(self, hashed: bytes, *, is_ours: bool) -> Caller | None:
        if self._admin is not None and hmac.compare_digest(hashed, self._admin):
            return _ADMIN
        if not is_ours:
            return None
        now = time.monotonic()
        until, known = self._known.get(hashed, (0.0, None))
        if now < until:
            return known
        if now < self._refused.get(hashed, 0.0):
            return None
        looking = self._looking.get(hashed)
        if looking is None:
            looking = self._looking[hashed] = asyncio.create_task(self._look(hashed))
            looking.add_done_callback(lambda _: self._looking.pop(hashed))
        return await asyncio.shield(looking)  # others wait for the same answer

    async def _look(self, hashed: bytes) -> Caller | None:
        async with self._turns:
            found = await self._store.keys.find(hashed)
        until = time.monotonic() + _BELIEVED_S
        if found is None or not found.live:
            self._known.pop(hashed, None)
            if len(self._refused) >= _REFUSED:
                self._refused.clear()
            self._refused[hashed] = until
            return None
        key = found.key
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        caller = Caller(f"key {key.name}", frozenset(key.scopes), key.tenant_id, key.person)
        self._known[hashed] = (until, caller)
        return caller


def _from_here(request: Request) -> Caller:
    """A keyless dispatcher trusts this machine alone, and no page in a browser that was led here by another name."""
    client = request.client
    if client is not None and not is_loopback(client.host):
        raise Unauthorised("without keys this dispatcher serves its own machine alone. Next: tenure keys create")
    host, origin = request.headers.get("host"), request.headers.get("origin")
    if host is not None and not is_loopback(_host_name(host)):
        raise Forbidden(
            f"without keys this dispatcher answers to localhost alone, not to {host[:200]!r}. Next: tenure keys create"
        )
    # A page of another site may send what needs no asking, a POST without a body; a browser then says whose it is.
    if origin is not None and origin.lower().partition("://")[2] != (host or "").lower():
        raise Forbidden(
            f"without keys this dispatcher takes nothing from pages of {origin[:200]!r}. Next: tenure keys create"
        )
    return _LOOPBACK


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; nothing where it is not one."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]").lower() if found else ""


def is_loopback(host: str) -> bool:
    """Whether an address, or localhost, is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
