"""A key: who may talk to the dispatcher, what for, and for which tenant.

A key is 256 random bits after a prefix that scanners of leaked secrets can look for. One fast hash keeps it: nobody can
try that many, and each request must be cheap to recognise. The text itself is shown once, to who made it, and stored
nowhere; what is kept of it beside its hash is how it begins.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tenure import intake
from tenure.errors import BadInput

#: What a key may be for. Make jobs; claim and finish them; look and operate; agree to discards; all of this.
SCOPES: Final = ("enqueue", "work", "operate", "approve", "admin")
PREFIX: Final = "tenure_"
#: Every key has so many characters.
LENGTH: Final = len(PREFIX) + 43
_SHOWN = len(PREFIX) + 4
_LEAST_MS = 1_000


class Key(NamedTuple):
    """A key as it is kept: everything but its text."""

    id: int
    name: str
    #: How its text begins.
    hint: str
    scopes: tuple[str, ...]
    #: The only tenant whose jobs it may see and move; None: all tenants.
    tenant_id: str | None
    #: Who holds it. Two people are told apart by this, never by their keys.
    person: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None

    def allows(self, *scopes: str) -> bool:
        """Whether it may do what any one of these scopes is for; admin may do everything."""
        return "admin" in self.scopes or any(scope in self.scopes for scope in scopes)

    def is_live(self, now: datetime) -> bool:
        """Whether it opens anything at this moment of the database's clock."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Found(NamedTuple):
    """A key, and whether it was live by the database's clock when it was read."""

    key: Key
    live: bool


class NewKey(NamedTuple):
    """What a key is to be, checked."""

    name: str
    scopes: tuple[str, ...]
    tenant_id: str | None
    person: str | None
    created_by: str
    lifetime_ms: int | None


def made() -> str:
    """The text of a new key: the prefix and 43 characters that stand for 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(text: str) -> bytes:
    """What is kept of a key's text; any text has one, because it comes from strangers."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def hint(text: str) -> str:
    """How a key begins: enough to recognise it, too little to guess it."""
    return text[:_SHOWN]


def checked(
    name: str,
    scopes: Sequence[str],
    tenant_id: str | None,
    person: str | None,
    created_by: str,
    expires_in_s: float | None = None,
) -> NewKey:
    """What a key is to be; refuses unknown or no scopes, approvers without a name, and names that are none."""
    intake.name("key name", name)
    if tenant_id is not None:
        intake.name("tenant_id", tenant_id)
    if person is not None:
        intake.name("person", person)
    lifetime_ms = intake.milliseconds("expires_in_s", expires_in_s)
    if lifetime_ms is not None:
        intake.whole("lifetime in milliseconds", lifetime_ms, _LEAST_MS, intake.MAX_DELAY_MS)
    wanted = _scopes(scopes)
    if "approve" in wanted and person is None:
        raise BadInput(
            "a key that approves needs a person, because two people are told apart by name and not by key. "
            "Next: name the person who will hold it"
        )
    return NewKey(name, wanted, tenant_id, person, intake.name("created_by", created_by), lifetime_ms)


def _scopes(given: object) -> tuple[str, ...]:
    """Scopes, each once, in the order of the list above."""
    known = ", ".join(SCOPES)
    if not isinstance(given, (list, tuple)):
        raise BadInput(f"scopes are a list of texts, not {given!r}. Next: give one or more of {known}")
    if unknown := [scope for scope in given if scope not in SCOPES]:
        raise BadInput(f"there is no scope {unknown[0]!r}. Next: give one or more of {known}")
    if not given:
        raise BadInput(f"a key without a scope may do nothing. Next: give one or more of {known}")
    return tuple(scope for scope in SCOPES if scope in given)
