"""The parsers of settings: each takes the setting's name and its text, and refuses a bad value by that name."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tenure.errors import BadInput
from tenure.jobs.api_key import SCOPES
from tenure.jobs.validation import check_name

#: The longest span of time of a setting: a hundred years.
MAX_SPAN_S: Final = 36_500 * 86_400
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")
_MIN_REWAKE_MS = 1_000
_MIN_KEY_LENGTH = 16


def parse_dispatcher_url(name: str, text: str | None) -> str | None:
    """The address of a dispatcher without a slash at its end; the error of a bad one names this setting."""
    if not text:
        return None
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url or not text.isprintable() or not text.isascii() or " " in text:
        raise BadInput(f"{name} must be an address like https://tenure.example.com, not {_without_password(text)!r}")
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise BadInput(f"{name} must be an address alone, without a user, a query or a fragment; the key is TENURE_KEY")
    return text.rstrip("/")


def parse_api_key(name: str, text: str | None) -> str | None:
    """An API key that can be sent; the error of a bad one names this setting and does not show the key."""
    if not text:
        return None
    if not text.isascii() or not text.isprintable() or " " in text:
        raise BadInput(f"{name} must be a key as `tenure keys create` shows it: no blank, no line break, only ASCII")
    return text


def _without_password(text: str) -> str:
    """An address without its user and password."""
    _, found, rest = text.rpartition("@")
    return f"…@{rest}" if found else text


def parse_number(text: str, *, whole: bool) -> float | None:
    """The number in this text; None if there is none."""
    if not re.fullmatch(r"[0-9]{1,9}" if whole else r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return None
    return int(text) if whole else float(text)


def parse_whole(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise BadInput(f"{name} must be a whole number, not {text!r}") from None
    if value < 0:
        raise BadInput(f"{name} must not be negative, and is {value}")
    return value


def parse_text(name: str, text: str) -> str | None:
    return text or None


def parse_release(name: str, text: str | None) -> str | None:
    """Return the version of an application; refuses one that is too long or cannot be stored."""
    return check_name("release", text) if text else None


def parse_admin_key(name: str, text: str) -> str | None:
    if 0 < len(text) < _MIN_KEY_LENGTH:
        raise BadInput(
            f"{name} has {len(text)} characters, which can be guessed, and it has all rights. Next: use "
            f"at least {_MIN_KEY_LENGTH} random characters"
        )
    return text or None


def parse_secret(name: str, text: str) -> str | None:
    if 0 < len(text) < _MIN_KEY_LENGTH:
        raise BadInput(f"{name} has {len(text)} characters, which can be guessed. Next: use at least {_MIN_KEY_LENGTH}")
    return text or None


def parse_rewake(name: str, text: str) -> int:
    if not _MIN_REWAKE_MS <= (value := parse_whole(name, text)) <= MAX_SPAN_S * 1_000:
        raise BadInput(f"{name} must be a number of milliseconds, at least {_MIN_REWAKE_MS}, not {text!r}")
    return value


def parse_trace_url(name: str, text: str) -> str | None:
    if text and (not text.startswith(("https://", "http://")) or "{trace_id}" not in text or not text.isprintable()):
        raise BadInput(f"{name} must be like https://traces.example.com/trace/{{trace_id}}, not {text!r}")
    return text or None


def parse_sso_header(name: str, text: str) -> str | None:
    if text and _HEADER_NAME.fullmatch(text) is None:
        raise BadInput(f"{name} must be the name of a header like X-Remote-User, not {text!r}")
    return text or None


def parse_sso_scopes(name: str, text: str) -> tuple[str, ...]:
    scopes = tuple(scope.strip() for scope in text.split(","))
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise BadInput(f"{name} has {unknown[0]!r}, which is no scope; there are {', '.join(SCOPES)}")
    return scopes


def parse_sso_proxies(name: str, text: str) -> tuple[str, ...]:
    networks = tuple(network.strip() for network in text.split(","))
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise BadInput(f"{name} must be addresses or networks like 10.0.0.0/8: {error}") from None
    return networks


def parse_sqs_queues(name: str, text: str) -> dict[str, str]:
    """Parse queue=address pairs."""
    found: dict[str, str] = {}
    for pair in filter(None, (one.strip() for one in text.split(","))):
        queue, separator, url = pair.partition("=")
        if not separator or queue in found:
            problem = f"names queue {queue} twice" if separator else f"has {pair!r}, which is no QUEUE=ADDRESS"
            raise BadInput(f"{name} {problem}. Next: write it like mail=https://sqs.eu-west-1.amazonaws.com/1/mail")
        found[check_name("queue", queue.strip())] = parse_queue_url(f"{name}: {queue}", url.strip())
    return found


def parse_queue_url(name: str, url: str) -> str:
    """Return the address of a standard message queue; the error of a bad one names this setting."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path.strip("/") != ""
    except ValueError:
        is_url = False
    if not is_url or not url.isprintable() or " " in url or "@" in parts.netloc or parts.query or parts.fragment:
        example = "https://sqs.eu-west-1.amazonaws.com/123456789012/mail"
        raise BadInput(f"{name} must be the address of a message queue like {example}, not {url!r}")
    if parts.path.endswith(".fifo"):
        raise BadInput(f"{name} must be a standard queue, not {url!r}. Next: make a queue whose name has no .fifo")
    return url


def parse_webhook(name: str, text: str) -> str | None:
    """The address of a webhook; whether it is on a private network is judged when it is resolved."""
    if not text:
        return None
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url or not text.isprintable() or not text.isascii() or " " in text or "@" in parts.netloc or "#" in text:
        shown = _without_password(text)
        raise BadInput(f"{name} must be an address like https://alerts.example.com/tenure, not {shown!r}")
    return text


def parse_command_line(name: str, text: str) -> str | None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"{name} is no command line ({error}), and is {text!r}") from None
    return text if words else None


def one_of(values: Mapping[str, Any]) -> Callable[[str, str], Any]:
    """Return the parser of a setting that has one of these texts, each with its value."""

    def parse(name: str, text: str) -> Any:
        if text not in values:
            raise BadInput(f"{name} must be {' or '.join(filter(None, values))}, not {text!r}")
        return values[text]

    return parse


FLAG: Final = one_of({"0": False, "1": True})
