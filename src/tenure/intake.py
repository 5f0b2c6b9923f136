"""What comes from outside is checked here, before any of it is sent: bad input is named, and nothing is written."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from tenure.contract import Contract
from tenure.errors import BadInput, PayloadTooLarge
from tenure.job import Held, NewJob

MAX_BYTES = 1_048_576
MAX_DEPTH = 200
MAX_ID = 2**63 - 1
MAX_CLAIMS = 2**31 - 1
MAX_BATCH = 10_000
MAX_DELAY_MS = 10 * 366 * 86_400_000

#: How long the names may be that a caller gives.
LENGTHS: Mapping[str, int] = {
    "type": 200, "queue": 100, "tenant_id": 100, "key": 255, "trace_id": 200, "correlation_id": 200, "worker": 200,
    "created_by": 200, "state": 40, "contract": 40, "key name": 190,
    "actor": 200, "reason": 1000, "person": 200, "node": 200, "reason_code": 100,
}  # fmt: skip

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_PLAIN = (str, int, float, bool, type(None))
_SPAN = re.compile(r"([0-9]{1,12})\s*(s|m|h|d)")
#: The exponents of numbers; texts are stepped over.
_EXPONENT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|e[+-]([0-9]+)')
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def name(kind: str, value: Any) -> str:
    """A name of this kind: not empty, not too long, and storable."""
    if not isinstance(value, str):
        raise BadInput(f"{kind} must be a text that is not empty, not {value!r}")
    return _storable_name(kind, value)


@lru_cache(10_000)  # the same few queues and types are checked a million times
def _storable_name(kind: str, value: str) -> str:
    if not value.strip():
        raise BadInput(f"{kind} must be a text that is not empty, not {value!r}")
    if len(value) > LENGTHS[kind]:
        raise BadInput(f"{kind} has {len(value)} characters; at most {LENGTHS[kind]} are allowed")
    if "\x00" in value:
        raise BadInput(f"{kind} contains a NUL character, which PostgreSQL cannot store; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{kind} contains a lone surrogate, which is not text; remove it") from None
    return value


def person_key(person: str) -> str:
    """What spellings of one person have in common: case, spacing and look-alikes do not make a second one."""
    return " ".join(unicodedata.normalize("NFKC", person).casefold().split())


def document(kind: str, value: Any, max_bytes: int = MAX_BYTES) -> str:
    """A value as JSON text that PostgreSQL can store."""
    try:
        text = _encoder.encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{kind} contains a lone surrogate, which is not text; remove it") from None
    except RecursionError:
        raise BadInput(f"{kind} is nested deeper than {MAX_DEPTH} levels; flatten it") from None
    except (TypeError, ValueError) as error:
        raise BadInput(f"{kind} is not JSON: {error}") from None
    if "e+" in text or "e-" in text:
        size += _unfolded(text)
    if size > max_bytes:
        raise PayloadTooLarge(
            f"{kind} has {size} bytes; at most {max_bytes} are allowed. Store it elsewhere and send a reference"
        )
    if "\\u0000" in text and _NUL.search(text):
        raise BadInput(f"{kind} contains a NUL character, which PostgreSQL cannot store; remove it")
    if isinstance(value, (dict, list, tuple)):
        _walk(kind, value)
    return text


def _unfolded(text: str) -> int:
    """How many digits PostgreSQL will write more than there are: it keeps 1e300 as a one and three hundred zeros."""
    return sum(int(exponent) for exponent in _EXPONENT.findall(text) if exponent)


def whole(kind: str, value: Any, low: int, high: int) -> int:
    """A whole number within a range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{kind} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise BadInput(f"{kind} is {value}; it must be within {low}..{high}")
    return value


def milliseconds(kind: str, value: timedelta | float | None) -> int | None:
    """A span of time, given as such or in seconds."""
    if value is None:
        return None
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and abs(seconds) <= MAX_DELAY_MS:
        return round(seconds * 1_000)
    raise BadInput(f"{kind} must be a timedelta or a number of seconds, not {value!r}")


def token(value: Any) -> UUID:
    """A lease token or claim key: a UUID."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(str(value))
    except ValueError:
        raise BadInput(f"{value!r} is not a UUID; a claim key and a lease token are") from None


def held(one: Held) -> Held:
    """A holder's proof, as a claim gave it."""
    whole("id", one.id, 1, MAX_ID)
    whole("claims", one.claims, 0, MAX_CLAIMS)
    one.token = token(one.token)
    return one


def limit(contract: Contract, value: int) -> int:
    """The job's limit in the document's own sense, within the contract's range."""
    budget = contract.budget
    return whole(f"{budget.name} of contract {contract.name}", value, budget.minimum, budget.maximum)


def lease_ms(contract: Contract, value: int | None) -> int | None:
    """A lease length within the contract's range; None leaves it to the job's type and the contract."""
    if value is None:
        return None
    return whole(f"lease_ms of contract {contract.name}", value, contract.lease.minimum_ms, contract.lease.maximum_ms)


def new_job(contract: Contract, job: NewJob, max_bytes: int = MAX_BYTES) -> str:
    """Check a job to be made; its payload as JSON text."""
    name("type", job.type)
    name("queue", job.queue)
    name("tenant_id", job.tenant_id)
    for kind, text in (("key", job.key), ("trace_id", job.trace_id), ("correlation_id", job.correlation_id)):
        if text is not None:
            name(kind, text)
    whole("priority", job.priority, 0, 9)
    if job.delay_ms is not None:
        whole("delay_ms", job.delay_ms, 0, MAX_DELAY_MS)
    if job.run_at is not None:
        if job.delay_ms is not None:
            raise BadInput("give either run_at or delay_ms, not both")
        given: Any = job.run_at  # whatever the caller's type checker let through
        if not isinstance(given, datetime) or given.tzinfo is None:
            raise BadInput(f"run_at must be a datetime with a time zone, not {job.run_at!r}")
        moment("run_at", given)
    if job.max_attempts is not None:
        limit(contract, job.max_attempts)
    return document("payload", job.payload, max_bytes)


def are_alike(jobs: Sequence[NewJob]) -> bool:
    """Whether these jobs, most often calls of one task, differ in their payloads alone, and are due now."""
    if not jobs or type(first := jobs[0]) is not NewJob:
        return False
    kind, contract, version, queue, tenant = first.type, first.contract, first.version, first.queue, first.tenant_id
    priority, limit = first.priority, first.max_attempts
    for job in jobs:
        if not (
            type(job) is NewJob and job.type is kind and job.contract is contract and job.version is version
            and job.queue is queue and job.tenant_id is tenant and job.priority is priority
            and job.max_attempts is limit and job.run_at is None and job.delay_ms is None and job.key is None
            and job.trace_id is None and job.correlation_id is None
        ):  # fmt: skip
            return False
    return True


def moment(kind: str, value: datetime) -> datetime:
    """A time in UTC, so that one moment is one value whatever its zone."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise BadInput(f"{kind} is {value}, which no calendar has in UTC") from None


def span(text: str) -> int | None:
    """Seconds as people write them, 30s, 5m, 2h or 7d; None when it is no such text."""
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else int(found[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[found[2]]


def _walk(kind: str, value: Any) -> None:
    """Refuse what the encoder would let pass: keys that are not texts, and bottomless nesting."""
    if type(value) is dict and all(type(key) is str and type(part) in _PLAIN for key, part in value.items()):
        return
    standing = [(value, 1)]
    while standing:
        item, depth = standing.pop()
        if depth > MAX_DEPTH:
            raise BadInput(f"{kind} is nested deeper than {MAX_DEPTH} levels; flatten it")
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise BadInput(f"{kind} is not JSON: its keys must be texts, not {key!r}")
            item = item.values()
        for part in item:
            if isinstance(part, (dict, list, tuple)):
                standing.append((part, depth + 1))
