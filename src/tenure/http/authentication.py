"""Authentication: which caller sent a request, by its bearer key, and what that caller may do."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from tenure.http.error_response import Forbidden, ForeignTenant, Unauthorized
from tenure.jobs.api_key import LENGTH, PREFIX, SCOPES, hash_key

if TYPE_CHECKING:
    from tenure.postgres.store import Store

#: Seconds that the result of a key lookup is cached: a revoked key works that much longer.
_CACHE_S = 2.0
#: The largest number of cached keys, and of cached texts that are no key. Guessed keys must not fill the memory.
_MAX_KEYS, _MAX_REFUSED = 10_000, 1_000
#: Key lookups at the same time. Guessed keys must not take all connections.
_MAX_LOOKUPS = 3
_ALL_SCOPES = frozenset(SCOPES)
#: In these headers a proxy names the machine that it forwards for.
_FORWARDED = ("x-forwarded-for", "x-real-ip")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s]+)(?::[0-9]{1,5})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and what it may do. Without a tenant it may use the jobs of all tenants."""

    name: str
    scopes: frozenset[str]
    tenant: str | None = None
    person: str | None = None
    #: While no key exists, a caller on this machine may name the person who decides.
    may_name_person: bool = False

    @property
    def actor(self) -> str:
        """The name in the log."""
        return self.person or self.name

    def require_scope(self, wanted: tuple[str, ...]) -> None:
        """Refuse a caller that has none of these scopes; without any every caller is allowed."""
        if wanted and "admin" not in self.scopes and self.scopes.isdisjoint(wanted):
            raise Forbidden(
                f"this needs a key with the scope {' or '.join(wanted)}, and {self.name} has "
                f"{', '.join(sorted(self.scopes))}. Next: tenure keys create"
            )

    def resolve_tenant(self, tenant: str | None) -> str | None:
        """The requested tenant, or the key's own; refuses a tenant that is not the key's."""
        if self.tenant is None or tenant in (None, self.tenant):
            return self.tenant or tenant
        raise ForeignTenant(f"{self.name} is bound to the tenant {self.tenant}. Next: use a key of the other tenant")

    def require_all_tenants(self) -> None:
        """Refuse a key that is bound to a tenant, for calls about all tenants."""
        if self.tenant is not None:
            raise ForeignTenant(
                f"this is about all tenants, and {self.name} is bound to {self.tenant}. "
                "Next: use a key that is bound to none"
            )


_LOOPBACK = Caller("loopback", _ALL_SCOPES, may_name_person=True)
_ADMIN = Caller("TENURE_ADMIN_KEY", _ALL_SCOPES)


class Keyring:
    """The keys of a database, cached for a few seconds."""

    def __init__(self, store: Store, admin_key: str | None = None) -> None:
        self._store = store
        self._admin = None if admin_key is None else hash_key(admin_key)
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        #: Until when a text counts as no key. A separate cache, so that guessed keys do not displace real ones.
        self._refused: dict[bytes, float] = {}
        self._lookups: dict[bytes, asyncio.Task[Caller | None]] = {}
        self._lookup_slots = asyncio.Semaphore(_MAX_LOOKUPS)
        self._keyless_until = 0.0
        self._keyless_lookup = asyncio.Lock()
        self._has_keys = admin_key is not None

    async def is_open(self) -> bool:
        """Whether no key exists; after the first key this is never true again."""
        if self._must_ask_for_keys():
            async with self._keyless_lookup:  # other requests wait for the same answer
                if self._must_ask_for_keys():
                    self._has_keys = await self._store.keys.exist()
                    self._keyless_until = time.monotonic() + _CACHE_S
        return not self._has_keys

    def _must_ask_for_keys(self) -> bool:
        return not self._has_keys and time.monotonic() >= self._keyless_until

    async def caller(self, request: Request) -> Caller:
        """The caller of this request; refuses a request without a valid key."""
        header = request.headers.get("authorization")
        if header is None:
            if await self.is_open():
                return local_caller(request)
            raise Unauthorized("this dispatcher needs a key. Next: send it as Authorization: Bearer tenure_…")
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthorized("the Authorization header holds no bearer key. Next: send it as Bearer tenure_…")
        found = await self.caller_of_key(secret.strip())
        if found is None:
            raise Unauthorized("this key is unknown, revoked or expired. Next: tenure keys list")
        return found

    async def caller_of_key(self, key: str) -> Caller | None:
        """The caller that has this key; None if it is unknown, revoked or expired."""
        return await self._find(hash_key(key), has_key_form=len(key) == LENGTH and key.startswith(PREFIX))

    async def caller_of_hash(self, hashed: bytes) -> Caller | None:
        """The caller whose key has this hash; None if it is unknown, revoked or expired."""
        return await self._find(hashed, has_key_form=True)

    async def _find(self, hashed: bytes, *, has_key_form: bool) -> Caller | None:
        if self._admin is not None and hmac.compare_digest(hashed, self._admin):
            return _ADMIN
        if not has_key_form:
            return None
        now = time.monotonic()
        until, known = self._callers.get(hashed, (0.0, None))
        if now < until:
            return known
        if now < self._refused.get(hashed, 0.0):
            return None
        lookup = self._lookups.get(hashed)
        if lookup is None:
            lookup = self._lookups[hashed] = asyncio.create_task(self._look_up(hashed))
            lookup.add_done_callback(lambda _: self._lookups.pop(hashed))
        return await asyncio.shield(lookup)  # other requests wait for the same lookup

    async def _look_up(self, hashed: bytes) -> Caller | None:
        async with self._lookup_slots:
            found = await self._store.keys.find(hashed)
        until = time.monotonic() + _CACHE_S
        if found is None or not found.live:
            self._callers.pop(hashed, None)
            if len(self._refused) >= _MAX_REFUSED:
                self._refused.clear()
            self._refused[hashed] = until
            return None
        key = found.key
        if len(self._callers) >= _MAX_KEYS:
            self._callers.clear()
        caller = Caller(f"key {key.name}", frozenset(key.scopes), key.tenant_id, key.person)
        self._callers[hashed] = (until, caller)
        return caller


def local_caller(request: Request) -> Caller:
    """The caller while no key exists: this machine only, and no browser page of another site."""
    client = request.client
    senders = [] if client is None else [client.host]
    # A proxy on this machine forwards what others send.
    for name in _FORWARDED:
        senders += [sender.strip() for value in request.headers.getlist(name) for sender in value.split(",")]
    if not all(map(is_loopback, senders)):
        raise Unauthorized("without keys this dispatcher serves its own machine alone. Next: tenure keys create")
    host, origin = request.headers.get("host"), request.headers.get("origin")
    if host is not None and not is_loopback(_host_name(host)):
        raise Forbidden(
            f"without keys this dispatcher answers to localhost alone, not to {host[:200]!r}. Next: tenure keys create"
        )
    # A page of another site may send a POST without a body unasked; the browser then names that site as the origin.
    if origin is not None and origin.lower().partition("://")[2] != (host or "").lower():
        raise Forbidden(
            f"without keys this dispatcher takes nothing from pages of {origin[:200]!r}. Next: tenure keys create"
        )
    return _LOOPBACK


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; empty if the header is malformed."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").lower() if match else ""


def is_loopback(host: str) -> bool:
    """Whether an address, or localhost, is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
