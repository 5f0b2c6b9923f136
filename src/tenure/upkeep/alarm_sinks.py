"""Sinks of alarms: the log, a webhook, and a command. Each is sent every notice at least once, by one process.

    take (a minute) ─▶ send ─▶ mark sent, or failed and when to try again: 10, 20, 40 … 3,600 s

The webhook connects only to the address that was resolved and judged: not to loopback, private or link-local networks
unless a setting allows it; a redirect is a failure. Its body is signed, with the time, so that a receiver can refuse
old copies.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import ipaddress
import logging
import shlex
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit

from tenure.errors import UNREACHABLE
from tenure.jobs.alarm import Notice
from tenure.jobs.formats import dump_json, to_one_line
from tenure.postgres.store import Store
from tenure.settings import Settings

_log = logging.getLogger("tenure.alarms")
#: Seconds for which a taken notice is this process's own; a sink has less.
_HOLD_S, _TIMEOUT_S = 60.0, 15.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 10.0, 3_600.0
_LEVELS: Final = {"P1": logging.ERROR, "P2": logging.WARNING, "P3": logging.INFO}


class Sink(Protocol):
    """Where notices are sent."""

    name: str

    async def send(self, notice: Notice) -> None:
        """Send a notice; raises the reason why not."""


class NotSent(Exception):
    """A notice was not sent, for the reason in its text."""


def to_body(notice: Notice) -> bytes:
    """The JSON that webhooks and commands get."""
    return dump_json({"id": notice.id, "change": notice.change, "alarm": notice.alarm.to_json()}).encode()


class LogSink:
    """Writes a line to the log of this process."""

    name = "log"

    async def send(self, notice: Notice) -> None:
        """Log the notice: P1 as an error, P2 as a warning; that it is over, as information."""
        alarm = notice.alarm
        if notice.change == "cleared":
            _log.info("%s alarm %d is over: %s", alarm.severity, alarm.id, alarm.summary)
        else:
            level = _LEVELS[alarm.severity]
            _log.log(
                level, "%s alarm %d, %s: %s. Next: %s", alarm.severity, alarm.id, alarm.kind, alarm.summary, alarm.next
            )


class WebhookSink:
    """Posts signed JSON to an address."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        may_be_private: bool = False,
        timeout_s: float = _TIMEOUT_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._secret, self._now = urlsplit(url), secret.encode(), now
        self._may_be_private, self._timeout_s = may_be_private, timeout_s

    async def send(self, notice: Notice) -> None:
        """Send the notice, in a thread."""
        body, at = to_body(notice), int(self._now())
        signature = hmac.new(self._secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json", "User-Agent": "tenure", "Tenure-Notice": notice.id,
            "Tenure-Signature": f"t={at},v1={signature}", "Connection": "close",
        }  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(self._post, body, headers)
        except TimeoutError:
            raise NotSent(f"no answer within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise NotSent(f"{type(error).__name__}: {error}") from error

    def _post(self, body: bytes, headers: dict[str, str]) -> None:
        host, port = self._url.hostname or "", self._url.port or (443 if self._url.scheme == "https" else 80)
        address = resolve(host, port, may_be_private=self._may_be_private)
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s / 2)
        # The connection goes to the address that was judged: a second lookup could have another answer.
        connection.sock = socket.create_connection((address, port), timeout=self._timeout_s / 2)
        try:
            if self._url.scheme == "https":
                connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
            connection.request("POST", _target(self._url), body, headers | {"Host": self._url.netloc})
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 200 <= status < 300:
            hint = ", and redirects are not followed" if 300 <= status < 400 else ""
            raise NotSent(f"it answered {status}{hint}")


def _target(url: SplitResult) -> str:
    return (url.path or "/") + (f"?{url.query}" if url.query else "")


def resolve(host: str, port: int, *, may_be_private: bool) -> str:
    """Return an address of this host; refuses one on this machine or a private network, unless that is allowed."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[4][0]) for address in found]
    if not may_be_private:
        for address in addresses:
            if not is_public(address):
                raise NotSent(
                    f"{host} is {address}, which is on this machine or a private network. "
                    "Next: another address, or TENURE_ALARM_WEBHOOK_PRIVATE=1"
                )
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, also if it is written as IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        # Addresses that stand for an IPv4 address: mapped, 6to4, and those of NAT64.
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local:  # retired, and still routed inside of some networks
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


class CommandSink:
    """Runs a command, without a shell, with the notice as JSON on its standard input."""

    name = "command"

    def __init__(self, command: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._words, self._timeout_s = shlex.split(command), timeout_s

    async def send(self, notice: Notice) -> None:
        """Run the command; anything but exit code 0 within the time is a failure."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NotSent(f"{self._words[0]} cannot be run: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                _, errors = await process.communicate(to_body(notice) + b"\n")
        except TimeoutError:
            raise NotSent(f"{self._words[0]} did not end within {self._timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = to_one_line(errors.decode(errors="replace"))
            raise NotSent(f"{self._words[0]} ended with {process.returncode}{': ' if last else ''}{last}")


def sinks_of(settings: Settings) -> list[Sink]:
    """The sinks that the settings want; always the log."""
    sinks: list[Sink] = [LogSink()]
    if settings.alarm_webhook and settings.alarm_webhook_secret:
        private = settings.alarm_webhook_private
        sinks.append(WebhookSink(settings.alarm_webhook, settings.alarm_webhook_secret, may_be_private=private))
    if settings.alarm_command:
        sinks.append(CommandSink(settings.alarm_command))
    return sinks


async def send_notices(store: Store, sinks: Sequence[Sink]) -> int:
    """Send every notice that is due, to every sink; returns how many were sent."""
    sent = await asyncio.gather(*(_send_to(store, sink) for sink in sinks))
    return sum(sent)


async def _send_to(store: Store, sink: Sink) -> int:
    taken = await store.alarms.take(sink.name, hold_s=_HOLD_S, limit=3)
    done = 0
    for notice in taken:
        error = await _try(sink.send(notice))
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(notice.tries - 1, 20))
        await store.alarms.mark(notice, sink.name, error, wait_s)
        if error is None:
            done += 1
        else:
            _log.warning("alarm %d could not be sent to the %s: %s", notice.alarm.id, sink.name, error)
    return done


async def _try(sending: Awaitable[None]) -> str | None:
    """Why a notice was not sent; None if it was."""
    try:
        await sending
    except UNREACHABLE:
        raise
    except Exception as error:
        return str(error) or type(error).__name__
    return None
