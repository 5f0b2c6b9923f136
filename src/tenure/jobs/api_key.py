"""An API key: what its holder may do at the dispatcher, and for which tenant.

A key is 256 random bits after a prefix that secret scanners recognise. The database stores one fast SHA-256 hash: 256
random bits cannot be guessed, and every request must be checked cheaply. The key itself is shown once, to its creator,
and is stored nowhere; besides the hash only its first characters are kept.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tenure.errors import BadInput
from tenure.jobs import validation

#: read: look only; enqueue: create jobs; work: claim and finish them; operate: read and operate; approve: discards;
#: admin: all.
SCOPES: Final = ("read", "enqueue", "work", "operate", "approve", "admin")
PREFIX: Final = "tenure_"
#: The length of every key, in characters.
LENGTH: Final = len(PREFIX) + 43
_HINT_LENGTH = len(PREFIX) + 4
_MIN_LIFETIME_MS = 1_000


class ApiKey(NamedTuple):
    """A stored API key, without its text."""

    id: int
    name: str
    #: The first characters of its text.
    hint: str
    scopes: tuple[str, ...]
    #: The only tenant whose jobs it may read and change; None: all tenants.
    tenant_id: str | None
    #: The person who holds it. Two-person rules compare persons, never keys.
    person: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None

    def is_live(self, now: datetime) -> bool:
        """Whether the key is valid at this time of the database's clock."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class FoundApiKey(NamedTuple):
    """A key, and whether it was valid by the database's clock when it was read."""

    key: ApiKey
    live: bool


class NewApiKey(NamedTuple):
    """The checked properties of a new key."""

    name: str
    scopes: tuple[str, ...]
    tenant_id: str | None
    person: str | None
    created_by: str
    lifetime_ms: int | None


def generate_key() -> str:
    """Return a new key: the prefix and 43 characters that encode 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_key(text: str) -> bytes:
    """Return the hash of a key's text. Every string has one, because callers may send anything."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def key_hint(text: str) -> str:
    """Return the first characters of a key: enough to recognise it, too few to guess it."""
    return text[:_HINT_LENGTH]


def check_new_key(
    name: str,
    scopes: Sequence[str],
    tenant_id: str | None,
    person: str | None,
    created_by: str,
    expires_in_s: float | None = None,
) -> NewApiKey:
    """Check the properties of a new key; refuses unknown or missing scopes, and approve without a person."""
    validation.check_name("key name", name)
    if tenant_id is not None:
        validation.check_name("tenant_id", tenant_id)
    if person is not None:
        validation.check_name("person", person)
    lifetime_ms = validation.to_milliseconds("expires_in_s", expires_in_s)
    if lifetime_ms is not None:
        validation.check_integer("lifetime in milliseconds", lifetime_ms, _MIN_LIFETIME_MS, validation.MAX_DELAY_MS)
    checked_scopes = _scopes(scopes)
    if "approve" in checked_scopes and person is None:
        raise BadInput(
            "a key that approves needs a person, because approvals compare the names of people and not their keys. "
            "Next: name the person who will hold it"
        )
    return NewApiKey(
        name, checked_scopes, tenant_id, person, validation.check_name("created_by", created_by), lifetime_ms
    )


def _scopes(scopes: object) -> tuple[str, ...]:
    """Return the scopes, each once, in the order of SCOPES."""
    known = ", ".join(SCOPES)
    if not isinstance(scopes, (list, tuple)):
        raise BadInput(f"scopes must be a list of strings, not {scopes!r}. Next: give one or more of {known}")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise BadInput(f"there is no scope {unknown[0]!r}. Next: give one or more of {known}")
    if not scopes:
        raise BadInput(f"a key without a scope permits nothing. Next: give one or more of {known}")
    return tuple(scope for scope in SCOPES if scope in scopes)
