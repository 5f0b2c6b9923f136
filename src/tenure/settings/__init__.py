"""One frozen object with every setting, read from the environment once; refuses a bad value by its name.

    DATABASE_URL                        the PostgreSQL to use; default: the embedded one
    TENURE_DISPATCHER_URL               apps and workers use this dispatcher over HTTP instead of a database
    TENURE_KEY                          the API key that they send to the dispatcher
    TENURE_MAX_PAYLOAD_BYTES            largest payload, result or error
    TENURE_DIRECT_URL                   the database without a pooler in between, for LISTEN and migrations
    TENURE_WAKEUPS                      on or off: workers listen for wake-ups, or only poll
    TENURE_REQUIRE_DATABASE             1: never start an embedded PostgreSQL
    TENURE_LOG_FORMAT                   text or json: the log format of commands
    TENURE_ADMIN_KEY                    an API key with all rights, accepted by a dispatcher
    TENURE_INTERNAL_RUN                 1: a dispatcher runs jobs by request, for rehearsals
    TENURE_PUBLIC_URL                   the address of a dispatcher for browsers, behind a proxy
    TENURE_TRACE_URL                    the address of a trace, with {trace_id}, for links of the dashboard
    TENURE_SSO_HEADER                   and _SCOPES, _PROXIES: a proxy names the person who uses the dashboard
    TENURE_MAX_BODY_BYTES               the largest request body that a dispatcher reads
    TENURE_KEEP_JOBS                    and _PAYLOADS, _KEYS, _CLAIMS, _WAKEUPS, _FIRES: retention times (90d, 12h)
    TENURE_SQS_QUEUES                   queues whose wake-ups upkeep publishes: mail=URL,default=URL
    TENURE_DISPATCHER_REWAKE_MS         publish the wake-up of a job again that still waits after this time
    TENURE_END_UNKNOWN_AFTER            end jobs whose type no live worker knew for this long; default: never
    TENURE_ALARMS                       on or off: whether upkeep looks for alarms
    TENURE_ALARM_RETRYING_SHARE         and _DLQ_ENTRIES, _OLDEST_WAITING…: thresholds of alarms
    TENURE_ALARM_WEBHOOK                and _WEBHOOK_SECRET, _WEBHOOK_PRIVATE, _COMMAND: to whom alarms are sent
    TENURE_<CONTRACT>_LEASE_MS          and _HEARTBEAT_MS, _MAX_ATTEMPTS, _BACKOFF_BASE_MS, _BACKOFF_CAP_MS
    TASK_LOCK_MS, WORKER_MAX_RETRIES…   the same numbers under the documents' names

Two different values for one number are refused, and so is a number outside its contract's range.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput, Unsound
from tenure.jobs.validation import MAX_BYTES, parse_duration
from tenure.settings.parsers import (
    FLAG,
    MAX_SPAN_S,
    one_of,
    parse_admin_key,
    parse_api_key,
    parse_command_line,
    parse_dispatcher_url,
    parse_number,
    parse_release,
    parse_rewake,
    parse_secret,
    parse_sqs_queues,
    parse_sso_header,
    parse_sso_proxies,
    parse_sso_scopes,
    parse_text,
    parse_trace_url,
    parse_webhook,
    parse_whole,
)

#: Setting → (field of `KeepTimes`, its minimum in seconds).
_KEEP_TIMES = {
    "TENURE_KEEP_JOBS": ("finished_jobs_s", 60),
    "TENURE_KEEP_PAYLOADS": ("payloads_s", 0),
    "TENURE_KEEP_KEYS": ("idempotency_keys_s", 0),
    "TENURE_KEEP_CLAIMS": ("claim_keys_s", 60),
    "TENURE_KEEP_WAKEUPS": ("wakeups_s", 60),
    "TENURE_KEEP_FIRES": ("schedule_fires_s", 60),
}
#: Setting → (field of `AlarmLimits`, its kind, its minimum and maximum).
_ALARM_LIMITS: Mapping[str, tuple[str, str, float, float]] = {
    "TENURE_ALARM_RETRYING_SHARE": ("retrying_share", "number", 0, 1),
    "TENURE_ALARM_RETRYING_FOR": ("retrying_for_s", "span", 0, 86_400),
    "TENURE_ALARM_RETRYING_LEAST": ("retrying_least", "count", 1, 1_000_000),
    "TENURE_ALARM_DLQ_ENTRIES": ("dlq_entries", "count", 1, 1_000_000),
    "TENURE_ALARM_DLQ_FACTOR": ("dlq_factor", "number", 1, 1_000),
    "TENURE_ALARM_DLQ_WINDOW": ("dlq_window_s", "span", 60, 86_400),
    "TENURE_ALARM_INVALID_TRANSITIONS": ("invalid_transitions", "count", 1, 1_000),
    "TENURE_ALARM_INVALID_WINDOW": ("invalid_window_s", "span", 1, 3_600),
    "TENURE_ALARM_OLDEST_WAITING": ("oldest_waiting_s", "span", 1, 366 * 86_400),
    "TENURE_ALARM_UNSERVED": ("unserved_s", "span", 1, 366 * 86_400),
    "TENURE_ALARM_BEHIND": ("behind_s", "span", 1, 366 * 86_400),
    "TENURE_ALARM_SNAPSHOT": ("snapshot_s", "span", 1, 366 * 86_400),
}
_END_UNKNOWN = "TENURE_END_UNKNOWN_AFTER"
LOG_FORMATS = ("text", "json")
#: Room for a batch of documents, each with its own limit.
MAX_BODY_BYTES = 8 * 1024 * 1024
#: These have the prefix of the contract `dispatcher`, but are no numbers of it.
_DISPATCHER_URL, _REWAKE = "TENURE_DISPATCHER_URL", "TENURE_DISPATCHER_REWAKE_MS"
#: Read by `tenure.embedded`.
_POSTGRES_BIN = "TENURE_POSTGRES_BIN"
#: From this similarity on (0 to 1), a name counts as a misspelt setting.
_SIMILARITY = 0.9
_CONTRACT_SIMILARITY = 0.85
#: A number of a contract that this process may not know: it is registered in the database.
_NUMBER = re.compile(r"TENURE_([A-Z][A-Z0-9_]*?)_(LEASE_MS|HEARTBEAT_MS|MAX_ATTEMPTS|BACKOFF_BASE_MS|BACKOFF_CAP_MS)")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of this process."""

    database_url: str | None = None
    #: With an address, apps and workers use this dispatcher and no database.
    dispatcher_url: str | None = None
    #: The API key for the dispatcher; None where it asks for none.
    key: str | None = field(default=None, repr=False)
    max_payload_bytes: int = MAX_BYTES
    #: Whether workers listen for wake-ups; without, they find new jobs by polling.
    wakeups: bool = True
    #: The database's address when `database_url` is a pooler; None when they are the same.
    direct_url: str | None = None
    #: contract → number → value, for the numbers that were set.
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: The retention times that are set, in seconds: `KeepTimes(**settings.keep)`.
    keep: Mapping[str, float] = field(default_factory=dict)
    #: Whether a process without an address is refused, instead of starting an embedded PostgreSQL.
    require_database: bool = False
    #: The log format of commands: `text` or `json`.
    log_format: str = "text"
    #: An admin key that a dispatcher accepts beside those in the database.
    admin_key: str | None = None
    #: Whether a dispatcher runs jobs by request, for rehearsals (document 004).
    internal_run: bool = False
    #: The largest request body that a dispatcher reads.
    max_body_bytes: int = MAX_BODY_BYTES
    #: queue → the address of the message queue to which upkeep publishes its wake-ups.
    sqs_queues: Mapping[str, str] = field(default_factory=dict)
    #: The wake-up of a job that still waits is published again after this time.
    rewake_ms: int = 60_000
    #: The version of the application, which failures of its workers name.
    release: str | None = None
    #: Whether upkeep looks for alarms.
    alarms: bool = True
    #: The thresholds of alarms that are set: `AlarmLimits(**settings.alarm_limits)`.
    alarm_limits: Mapping[str, float] = field(default_factory=dict)
    #: The address to which alarms are sent, the key that signs them, and whether it may be on a private network.
    alarm_webhook: str | None = None
    alarm_webhook_secret: str | None = field(default=None, repr=False)
    alarm_webhook_private: bool = False
    #: A command that gets each alarm as JSON on its standard input.
    alarm_command: str | None = None
    #: The address of a dispatcher that browsers use, when a proxy is in between.
    public_url: str | None = None
    #: The address of a trace in the user's tracing system; {trace_id} stands for its id.
    trace_url: str | None = None
    #: The header in which a proxy names the person who uses the dashboard; None: no proxy is believed.
    sso_header: str | None = None
    #: What every person may do whom a proxy names.
    sso_scopes: tuple[str, ...] = ("read",)
    #: The networks of the proxies that are believed.
    sso_proxies: tuple[str, ...] = ("127.0.0.1/32", "::1/128")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, contracts: Mapping[str, Contract] = BUILT_IN) -> Settings:
        """Read the environment; refuses a value that is not a number or outside its range."""
        environ = os.environ if environ is None else environ
        _check_names(environ, contracts.values())
        given = {field: parse(name, environ[name]) for name, (field, parse) in _PARSERS.items() if name in environ}
        known = {contract.name: found for contract in contracts.values() if (found := _numbers(environ, contract))}
        numbers = {**known, **_unknown_numbers(environ, contracts)}
        settings = cls(
            **given, numbers=numbers, keep=_keep_times(environ) | _end_unknown(environ),
            alarm_limits=_alarm_limits(environ),
        )  # fmt: skip
        if settings.alarm_webhook and not settings.alarm_webhook_secret:
            raise BadInput(
                "TENURE_ALARM_WEBHOOK is set without TENURE_ALARM_WEBHOOK_SECRET: its receiver could not tell who "
                "sends it. Next: set a secret of at least 16 characters on both sides"
            )
        return settings

    def with_dispatcher(self, dispatcher_url: str | None, key: str | None) -> Settings:
        """A copy with this dispatcher and this key, where they are not None; refuses a bad address or key."""
        url = parse_dispatcher_url("dispatcher_url", dispatcher_url) or self.dispatcher_url
        return replace(self, dispatcher_url=url, key=parse_api_key("key", key) or self.key)


def _check_names(environ: Mapping[str, str], contracts: Iterable[Contract]) -> None:
    """Refuse a name that is similar to a setting: it is misspelt and would be ignored silently."""
    known = {*_PARSERS, *_KEEP_TIMES, *_ALARM_LIMITS, _END_UNKNOWN, _POSTGRES_BIN}
    known |= {f"TENURE_{contract.name}_{number}".upper() for contract in contracts for number in contract.numbers()}
    names = {contract.name for contract in contracts}
    for name in environ:
        if name.startswith("TENURE_") and name not in known:
            if number := _NUMBER.fullmatch(name):  # of a contract of one's own, unless its name is almost a known one
                for meant in get_close_matches(number[1].lower(), names, 1, _CONTRACT_SIMILARITY):
                    raise BadInput(f"{name} is no setting. Next: did you mean TENURE_{meant.upper()}_{number[2]}?")
                continue
            for meant in get_close_matches(name, known, 1, _SIMILARITY):
                raise BadInput(f"{name} is no setting. Next: did you mean {meant}?")


def _keep_times(environ: Mapping[str, str]) -> dict[str, float]:
    family = {name.rpartition("_")[0] for name in _KEEP_TIMES}
    for name in environ:
        if name.rpartition("_")[0] in family and name not in _KEEP_TIMES:
            raise BadInput(f"{name} is no setting; retention times are set by {', '.join(_KEEP_TIMES)}")
    kept: dict[str, float] = {}
    for name, (field_name, minimum) in _KEEP_TIMES.items():
        if (text := environ.get(name)) is None:
            continue
        seconds = parse_duration(text)
        if seconds is None or not minimum <= seconds <= MAX_SPAN_S:
            at_least = f", at least {minimum}s" if minimum else ""
            raise BadInput(f"{name} must be a span of time like 90d, 12h, 30m or 45s{at_least}, not {text!r}")
        kept[field_name] = float(seconds)
    return kept


def _end_unknown(environ: Mapping[str, str]) -> dict[str, float]:
    """The seconds after which a job ends whose type no live worker knows; by default it waits for ever."""
    if not (text := environ.get(_END_UNKNOWN)):
        return {}
    seconds = float(text) if text.isascii() and text.isdecimal() else parse_duration(text)
    if seconds is None or not 60 <= seconds <= MAX_SPAN_S:
        raise BadInput(
            f"{_END_UNKNOWN} must be a number of seconds, or a span of time like 12h, at least 60s, not {text!r}"
        )
    return {"unknown_types_s": float(seconds)}


def _alarm_limits(environ: Mapping[str, str]) -> dict[str, float]:
    """The thresholds of alarms that are set."""
    found: dict[str, float] = {}
    for name, (field_name, kind, low, high) in _ALARM_LIMITS.items():
        if not (text := environ.get(name)):
            continue
        value = parse_duration(text) if kind == "span" else parse_number(text, whole=kind == "count")
        if value is None or not low <= value <= high:
            what = {"span": "a span of time like 5m or 45s", "count": "a whole number", "number": "a number"}[kind]
            unit = "s" if kind == "span" else ""
            raise BadInput(f"{name} must be {what} within {low:g}{unit}..{high:g}{unit}, not {text!r}")
        found[field_name] = value
    return found


def _unknown_numbers(environ: Mapping[str, str], contracts: Mapping[str, Contract]) -> dict[str, dict[str, int]]:
    """Numbers of contracts that only the database knows; the registry checks them when it reads the contract."""
    found: dict[str, dict[str, int]] = {}
    for name in environ:
        number = _NUMBER.fullmatch(name)
        if number is not None and (contract := number[1].lower()) not in contracts and name not in _KEEP_TIMES:
            found.setdefault(contract, {})[number[2].lower()] = parse_whole(name, environ[name])
    return found


def _numbers(environ: Mapping[str, str], contract: Contract) -> dict[str, int]:
    prefix = f"TENURE_{contract.name}_".upper()
    names = {f"{prefix}{number.upper()}": number for number in contract.numbers()}
    for name in environ:
        other = _NUMBER.fullmatch(name)
        if other is not None and other[1].lower() != contract.name:
            continue  # of a contract whose name begins alike
        if name.startswith(prefix) and name not in names and name not in (_DISPATCHER_URL, _REWAKE):
            raise BadInput(f"{name} is no setting; those of contract {contract.name} are {', '.join(names)}")
    found: dict[str, int] = {}
    source: dict[str, str] = {}
    for name, number in {**names, **contract.knobs}.items():
        if name not in environ:
            continue
        value = parse_whole(name, environ[name])
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


#: Setting → (field of `Settings`, its parser).
_PARSERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "DATABASE_URL": ("database_url", parse_text),
    "TENURE_DIRECT_URL": ("direct_url", parse_text),
    "TENURE_REQUIRE_DATABASE": ("require_database", FLAG),
    _DISPATCHER_URL: ("dispatcher_url", parse_dispatcher_url),
    _REWAKE: ("rewake_ms", parse_rewake),
    "TENURE_SQS_QUEUES": ("sqs_queues", parse_sqs_queues),
    "TENURE_KEY": ("key", parse_api_key),
    "TENURE_MAX_PAYLOAD_BYTES": ("max_payload_bytes", parse_whole),
    "TENURE_MAX_BODY_BYTES": ("max_body_bytes", parse_whole),
    "TENURE_WAKEUPS": ("wakeups", one_of({"on": True, "off": False})),
    "TENURE_INTERNAL_RUN": ("internal_run", FLAG),
    "TENURE_LOG_FORMAT": ("log_format", one_of({"": "text", "text": "text", "json": "json"})),
    "TENURE_ADMIN_KEY": ("admin_key", parse_admin_key),
    "TENURE_RELEASE": ("release", parse_release),
    "TENURE_ALARMS": ("alarms", one_of({"on": True, "off": False})),
    "TENURE_ALARM_WEBHOOK": ("alarm_webhook", parse_webhook),
    "TENURE_ALARM_WEBHOOK_SECRET": ("alarm_webhook_secret", parse_secret),
    "TENURE_ALARM_WEBHOOK_PRIVATE": ("alarm_webhook_private", FLAG),
    "TENURE_ALARM_COMMAND": ("alarm_command", parse_command_line),
    "TENURE_PUBLIC_URL": ("public_url", parse_dispatcher_url),
    "TENURE_TRACE_URL": ("trace_url", parse_trace_url),
    "TENURE_SSO_HEADER": ("sso_header", parse_sso_header),
    "TENURE_SSO_SCOPES": ("sso_scopes", parse_sso_scopes),
    "TENURE_SSO_PROXIES": ("sso_proxies", parse_sso_proxies),
}
