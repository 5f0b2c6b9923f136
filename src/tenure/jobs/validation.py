"""Checks of values that come from callers. Bad input raises `BadInput` with its name before anything is sent."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tenure.errors import BadInput, PayloadTooLarge
from tenure.jobs.expiry import check_expiry
from tenure.jobs.job import TIMEOUT, DatasetUse, Held, NewJob
from tenure.jobs.unique import check_unique, unique_scope

if TYPE_CHECKING:
    from tenure.contracts.declaration import Contract

MAX_BYTES = 1_048_576
MAX_DEPTH = 200
MAX_ID = 2**63 - 1
MAX_CLAIMS = 2**31 - 1
MAX_BATCH = 10_000
#: Every id range begins at a multiple of ID_UNIT. One statement reads ids from at most MAX_UNITS such units.
ID_UNIT, MAX_UNITS = 1_048_576, 8
MAX_DELAY_MS = 10 * 366 * 86_400_000

#: The largest declared shape of a dataset, in bytes: lists of generations show many of them.
MAX_SHAPE_BYTES = 65_536
#: The maximum length of each field that is a name, in characters.
LENGTHS: Mapping[str, int] = {
    "type": 200, "queue": 100, "tenant_id": 100, "key": 255, "trace_id": 200, "correlation_id": 200, "worker": 200,
    "created_by": 200, "state": 40, "contract": 40, "key name": 190, "app name": 100,
    "application": 200, "actor": 200, "reason": 1000, "person": 200, "node": 200, "reason_code": 100,
    "host": 255, "version": 100, "schedule": 100, "flow": 200, "argument": 200, "release": 200, "group": 64,
    "error": 500, "payload value": 500, "subject": 300,
    "dataset": 200, "scope": 200, "row key": 500, "location": 2000, "cursor": 200, "partition_key": 200,
}  # fmt: skip

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_PLAIN = (str, int, float, bool, type(None))
_SPAN = re.compile(r"([0-9]{1,12})\s*(s|m|h|d)")
#: Matches the exponents of numbers and skips strings.
_EXPONENT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|e[+-]([0-9]+)')
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def check_name(field: str, value: Any) -> str:
    """Return the name in this field; refuses one that is empty, too long, or not storable."""
    if not isinstance(value, str):
        raise BadInput(f"{field} must be a non-empty string, not {value!r}")
    return _storable_name(field, value)


@lru_cache(10_000)  # the same few queues and types are checked a million times
def _storable_name(field: str, value: str) -> str:
    if not value.strip():
        raise BadInput(f"{field} must be a non-empty string, not {value!r}")
    if len(value) > LENGTHS[field]:
        raise BadInput(f"{field} has {len(value)} characters; at most {LENGTHS[field]} are allowed")
    if "\x00" in value:
        raise BadInput(f"{field} contains a NUL character, which PostgreSQL cannot store; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{field} contains a lone surrogate, which is not text; remove it") from None
    return value


def normalize_person(person: str) -> str:
    """Return the form that all spellings of a name share: case, spacing and look-alike letters do not count."""
    return " ".join(unicodedata.normalize("NFKC", person).casefold().split())


def to_json(field: str, value: Any, max_bytes: int = MAX_BYTES) -> str:
    """Return a value as JSON text that PostgreSQL can store; refuses one that is too large or not JSON."""
    try:
        text = _encoder.encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{field} contains a lone surrogate, which is not text; remove it") from None
    except RecursionError:
        raise BadInput(f"{field} is nested deeper than {MAX_DEPTH} levels; flatten it") from None
    except (TypeError, ValueError) as error:
        raise BadInput(f"{field} is not JSON: {error}") from None
    if "e+" in text or "e-" in text:
        size += _exponent_digits(text)
    if size > max_bytes:
        raise PayloadTooLarge(
            f"{field} has {size} bytes; at most {max_bytes} are allowed. Store it elsewhere and send a reference"
        )
    if "\\u0000" in text and _NUL.search(text):
        raise BadInput(f"{field} contains a NUL character, which PostgreSQL cannot store; remove it")
    if isinstance(value, (dict, list, tuple)):
        _check_nesting(field, value)
    return text


def _exponent_digits(text: str) -> int:
    """Return how many more digits PostgreSQL stores: it writes 1e300 as a one and three hundred zeros."""
    return sum(int(exponent) for exponent in _EXPONENT.findall(text) if exponent)


def check_integer(field: str, value: Any, low: int, high: int) -> int:
    """Return an integer within a range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{field} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise BadInput(f"{field} is {value}; it must be within {low}..{high}")
    return value


def to_milliseconds(field: str, value: timedelta | float | None) -> int | None:
    """Return a timedelta, or a number of seconds, in milliseconds."""
    if value is None:
        return None
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and abs(seconds) <= MAX_DELAY_MS:
        return round(seconds * 1_000)
    raise BadInput(f"{field} must be a timedelta or a number of seconds, not {value!r}")


def parse_uuid(value: Any) -> UUID:
    """Return a lease token or a claim key as a UUID."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(str(value))
    except ValueError:
        raise BadInput(f"claim_key and lease_token must be UUIDs, not {value!r}") from None


def check_held(one: Held) -> Held:
    """Check a holder's proof (id, claims, token) and parse its token."""
    check_integer("id", one.id, 1, MAX_ID)
    check_integer("claims", one.claims, 0, MAX_CLAIMS)
    one.token = parse_uuid(one.token)
    return one


def check_max_attempts(contract: Contract, value: int) -> int:
    """Return the limit of a job, within the contract's range."""
    budget = contract.budget
    return check_integer(f"{budget.name} of contract {contract.name}", value, budget.minimum, budget.maximum)


def check_lease_ms(contract: Contract, value: int | None) -> int | None:
    """Return a lease length within the contract's range; None means the default of the job type or the contract."""
    if value is None:
        return None
    return check_integer(
        f"lease_ms of contract {contract.name}", value, contract.lease.minimum_ms, contract.lease.maximum_ms
    )


def check_new_job(contract: Contract, job: NewJob, max_bytes: int = MAX_BYTES) -> str:
    """Check a job before enqueue; returns its payload as JSON text."""
    check_name("type", job.type)
    check_name("queue", job.queue)
    check_name("tenant_id", job.tenant_id)
    for field, text in (("key", job.key), ("trace_id", job.trace_id), ("correlation_id", job.correlation_id)):
        if text is not None:
            check_name(field, text)
    check_integer("priority", job.priority, 0, 9)
    if job.delay_ms is not None:
        check_integer("delay_ms", job.delay_ms, 0, MAX_DELAY_MS)
    if job.run_at is not None:
        if job.delay_ms is not None:
            raise BadInput("give either run_at or delay_ms, not both")
        run_at: Any = job.run_at  # callers without a type checker may pass anything
        if not isinstance(run_at, datetime) or run_at.tzinfo is None:
            raise BadInput(f"run_at must be a datetime with a time zone, not {job.run_at!r}")
        to_utc("run_at", run_at)
    if job.max_attempts is not None:
        check_max_attempts(contract, job.max_attempts)
    if job.notify is not True and job.notify is not False:
        raise BadInput(f"notify must be True or False, not {job.notify!r}")
    if job.expires:
        check_expiry(contract, job.expires_at, job.expires_ms, job.run_at, job.delay_ms)
    if job.uses_datasets:
        check_uses("reads", job.reads, max_bytes)
        check_uses("writes", job.writes, max_bytes)
    payload = to_json("payload", job.payload, max_bytes)
    if job.unique is not None:
        unique_scope(check_unique(job.unique), job.payload, TIMEOUT)
    return payload


def check_uses(field: str, uses: Sequence[DatasetUse], max_bytes: int = MAX_BYTES) -> None:
    """Check the datasets that a job reads or writes."""
    if not isinstance(uses, tuple) or not all(isinstance(use, DatasetUse) for use in uses):
        raise BadInput(f"{field} must be a tuple of DatasetUse, not {uses!r}")
    for use in uses:
        check_name("dataset", use.name)
        if use.generation is not None:
            check_integer(f"generation of dataset {use.name!r}", use.generation, 1, MAX_ID)
        longest = min(max_bytes, MAX_SHAPE_BYTES)
        if use.shape_json is not None and len(use.shape_json.encode()) > longest:
            raise PayloadTooLarge(f"the shape of dataset {use.name!r} has more than {longest} bytes. Next: shorten it")
    names = [use.name for use in uses]
    if twice := next((name for n, name in enumerate(names) if name in names[:n]), None):
        raise BadInput(f"{field} names dataset {twice!r} twice. Next: name it once, with one generation")


def differ_only_in_payload(jobs: Sequence[NewJob]) -> bool:
    """Whether these jobs, most often calls of one task, differ only in their payloads and are due now."""
    if not jobs or type(first := jobs[0]) is not NewJob:
        return False
    task, contract, version, queue, tenant = first.type, first.contract, first.version, first.queue, first.tenant_id
    priority, limit = first.priority, first.max_attempts
    for job in jobs:
        if not (
            type(job) is NewJob and job.type == task and job.contract == contract and job.version == version
            and job.queue == queue and job.tenant_id == tenant and job.priority is priority
            and job.max_attempts is limit and job.run_at is None and job.delay_ms is None and job.key is None
            and job.trace_id is None and job.correlation_id is None and job.notify is first.notify
            and job.unique is None and job.expires_ms is None and job.expires_at is None
            and not job.reads and not job.writes
        ):  # fmt: skip
            return False
    return True


def to_utc(field: str, value: datetime) -> datetime:
    """Return a time in UTC, so that one moment has one value in every zone."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise BadInput(f"{field} is {value}, which cannot be written in UTC") from None


def parse_duration(text: str) -> int | None:
    """Return the seconds of a text like 30s, 5m, 2h or 7d; None for any other text."""
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else int(found[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[found[2]]


def _check_nesting(field: str, value: Any) -> None:
    """Refuse values that the encoder accepts: keys that are not strings, and too deep nesting."""
    if type(value) is dict and all(type(key) is str and type(part) in _PLAIN for key, part in value.items()):
        return
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise BadInput(f"{field} is nested deeper than {MAX_DEPTH} levels; flatten it")
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise BadInput(f"{field} is not JSON: its keys must be strings, not {key!r}")
            item = item.values()
        for part in item:
            if isinstance(part, (dict, list, tuple)):
                pending.append((part, depth + 1))
