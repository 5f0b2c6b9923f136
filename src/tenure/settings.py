"""One frozen object with every setting, read from the environment once; a bad value is refused by name.

    DATABASE_URL                        which PostgreSQL; without it, the embedded one
    TENURE_DISPATCHER_URL               the dispatcher through which apps and workers go, instead of to a database
    TENURE_KEY                          what they show there
    TENURE_MAX_PAYLOAD_BYTES            largest payload, result or error
    TENURE_DIRECT_URL                   the same database without the pooler in between, to listen and migrate
    TENURE_WAKEUPS                      on or off: whether workers are told of new jobs, or only poll
    TENURE_ADMIN_KEY                    a key that a dispatcher takes for an admin's
    TENURE_INTERNAL_RUN                 1: a dispatcher runs jobs by request, for rehearsals
    TENURE_MAX_BODY_BYTES               the largest body that a dispatcher reads
    TENURE_KEEP_JOBS                    and _PAYLOADS, _KEYS, _CLAIMS: how long what is past is kept (90d, 12h)
    TENURE_<CONTRACT>_LEASE_MS          and _HEARTBEAT_MS, _MAX_ATTEMPTS, _BACKOFF_BASE_MS, _BACKOFF_CAP_MS
    TASK_LOCK_MS, WORKER_MAX_RETRIES…   the same numbers under the names that the documents give them

A number given under two names with different values is refused, and so is one outside its contract's range.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from urllib.parse import urlsplit

from tenure.contract import Contract
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, Unsound
from tenure.intake import MAX_BYTES, span

#: What is kept for a time, under which name, and at least for how many seconds.
_KEPT = {
    "TENURE_KEEP_JOBS": ("jobs", 60), "TENURE_KEEP_PAYLOADS": ("payloads", 0), "TENURE_KEEP_KEYS": ("keys", 0),
    "TENURE_KEEP_CLAIMS": ("claims", 60),
}  # fmt: skip
_LONGEST = 36_500 * 86_400
#: A batch of documents, each of which has a limit of its own.
MAX_BODY_BYTES = 8 * 1024 * 1024
_SHORTEST_KEY = 16
#: Looks like a number of the contract `dispatcher`, and is none.
_DISPATCHER_URL = "TENURE_DISPATCHER_URL"
_NAMES = (
    _DISPATCHER_URL, "TENURE_KEY", "TENURE_MAX_PAYLOAD_BYTES", "TENURE_DIRECT_URL", "TENURE_WAKEUPS",
    "TENURE_ADMIN_KEY", "TENURE_INTERNAL_RUN", "TENURE_MAX_BODY_BYTES", "TENURE_POSTGRES_BIN",
)  # fmt: skip
#: Two names that are so much alike are one that was misspelt.
_ALMOST = 0.9


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says."""

    database_url: str | None = None
    #: Where there is one, apps and workers go to this dispatcher, and to no database.
    dispatcher_url: str | None = None
    #: What is shown to the dispatcher; None where it asks for nothing.
    key: str | None = field(default=None, repr=False)
    max_payload_bytes: int = MAX_BYTES
    #: Whether workers are told of new jobs at once; without, they find them by polling.
    wakeups: bool = True
    #: The database's own address, where `database_url` is a pooler's; None where they are the same.
    direct_url: str | None = None
    #: contract → number → value, for the numbers that were set.
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: what → seconds, for what upkeep is to keep otherwise than by default: `Keep(**settings.keep)`.
    keep: Mapping[str, float] = field(default_factory=dict)
    #: A key that a dispatcher takes for an admin's, beside those in the database.
    admin_key: str | None = None
    #: Whether a dispatcher runs jobs by request, for rehearsals (document 004).
    internal_run: bool = False
    #: The largest body that a dispatcher reads.
    max_body_bytes: int = MAX_BODY_BYTES

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, contracts: Mapping[str, Contract] = BUILT_IN) -> Settings:
        """Read the environment; refuses a value that is not a number or outside its range."""
        given = os.environ if environ is None else environ
        _check_names(given, contracts.values())
        return cls(
            database_url=given.get("DATABASE_URL") or None,
            dispatcher_url=dispatcher(_DISPATCHER_URL, given.get(_DISPATCHER_URL)),
            key=bearer("TENURE_KEY", given.get("TENURE_KEY")),
            max_payload_bytes=_whole(given, "TENURE_MAX_PAYLOAD_BYTES", MAX_BYTES),
            direct_url=given.get("TENURE_DIRECT_URL") or None,
            wakeups=_switch(given, "TENURE_WAKEUPS", True),
            numbers={contract.name: found for contract in contracts.values() if (found := _numbers(given, contract))},
            keep=_keep(given),
            admin_key=_admin_key(given),
            internal_run=_flag(given, "TENURE_INTERNAL_RUN"),
            max_body_bytes=_whole(given, "TENURE_MAX_BODY_BYTES", MAX_BODY_BYTES),
        )

    def through(self, dispatcher_url: str | None, key: str | None) -> Settings:
        """The same, with this dispatcher and this key where they are given; refuses what is no address or no key."""
        url = dispatcher("dispatcher_url", dispatcher_url) or self.dispatcher_url
        return replace(self, dispatcher_url=url, key=bearer("key", key) or self.key)


def dispatcher(name: str, text: str | None) -> str | None:
    """A dispatcher's address as it is used, without a slash at its end; refuses what is none, by this name."""
    if not text:
        return None
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or not text.isprintable() or not text.isascii() or " " in text:
        raise BadInput(f"{name} must be an address like https://tenure.example.com, not {_blurred(text)!r}")
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise BadInput(f"{name} must be an address alone, without a user, a query or a fragment; the key is TENURE_KEY")
    return text.rstrip("/")


def bearer(name: str, text: str | None) -> str | None:
    """A key that can be sent; refuses what no key looks like, by this name and without showing it."""
    if not text:
        return None
    if not text.isascii() or not text.isprintable() or " " in text:
        raise BadInput(f"{name} must be a key as `tenure keys create` shows it: no blank, no line break, only ASCII")
    return text


def _blurred(text: str) -> str:
    """An address without what may be a password in it."""
    _, found, rest = text.rpartition("@")
    return f"…@{rest}" if found else text


def _check_names(environ: Mapping[str, str], contracts: Iterable[Contract]) -> None:
    """Refuse a name that is almost a setting's: misspelt, it would be silently ignored."""
    known = {*_NAMES, *_KEPT}
    known |= {f"TENURE_{contract.name}_{number}".upper() for contract in contracts for number in contract.numbers()}
    for name in environ:
        if name.startswith("TENURE_") and name not in known:
            for meant in get_close_matches(name, known, 1, _ALMOST):
                raise BadInput(f"{name} is no setting. Next: did you mean {meant}?")


def _keep(environ: Mapping[str, str]) -> dict[str, float]:
    family = {name.rpartition("_")[0] for name in _KEPT}
    for name in environ:
        if name.rpartition("_")[0] in family and name not in _KEPT:
            raise BadInput(f"{name} is no setting; what is kept is set by {', '.join(_KEPT)}")
    kept: dict[str, float] = {}
    for name, (what, low) in _KEPT.items():
        if (text := environ.get(name)) is None:
            continue
        seconds = span(text)
        if seconds is None or not low <= seconds <= _LONGEST:
            least = f", at least {low}s" if low else ""
            raise BadInput(f"{name} must be a span of time like 90d, 12h, 30m or 45s{least}, not {text!r}")
        kept[what] = float(seconds)
    return kept


def _numbers(environ: Mapping[str, str], contract: Contract) -> dict[str, int]:
    prefix = f"TENURE_{contract.name}_".upper()
    names = {f"{prefix}{number.upper()}": number for number in contract.numbers()}
    for name in environ:
        if name.startswith(prefix) and name not in names and name != _DISPATCHER_URL:
            raise BadInput(f"{name} is no setting; those of contract {contract.name} are {', '.join(names)}")
    found: dict[str, int] = {}
    source: dict[str, str] = {}
    for name, number in {**names, **contract.knobs}.items():
        if name not in environ:
            continue
        value = _whole(environ, name, 0)
        if number in found and found[number] != value:
            raise BadInput(f"{name}={value} and {source[number]}={found[number]} set the same number; keep one of them")
        if contract.numbers()[number] is None:
            raise BadInput(f"{name} is set, but contract {contract.name} has no {number}; remove it")
        found[number], source[number] = value, name
    try:
        contract.with_numbers(found)
    except Unsound as error:
        names = {number: name for number, name in source.items() if any(number in fault for fault in error.faults)}
        named = ", ".join((names or source).values())
        raise BadInput(f"{named}: {'; '.join(error.faults)}") from None
    return found


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise BadInput(f"{name} must be a whole number, not {text!r}") from None
    if value < 0:
        raise BadInput(f"{name} must not be negative, and is {value}")
    return value


def _admin_key(environ: Mapping[str, str]) -> str | None:
    key = environ.get("TENURE_ADMIN_KEY") or None
    if key is not None and len(key) < _SHORTEST_KEY:
        raise BadInput(
            f"TENURE_ADMIN_KEY has {len(key)} characters; whoever guesses it may do everything. Next: give "
            f"at least {_SHORTEST_KEY} random ones"
        )
    return key


def _flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "0")
    if text not in ("0", "1"):
        raise BadInput(f"{name} must be 0 or 1, not {text!r}")
    return text == "1"


def _switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    text = environ.get(name)
    if text is None:
        return default
    if text not in ("on", "off"):
        raise BadInput(f"{name} must be on or off, not {text!r}")
    return text == "on"
