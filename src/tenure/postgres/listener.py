"""The listener: receives wake-ups on its own connection, and checks that it still receives them.

    connect ─▶ LISTEN ─▶ probe ─▶ on_wakeup("", "") ─▶ on_wakeup(contract, queue) … ─▶ probe … ─▶ lost ─▶ reconnect

A broken listener looks like an idle one: a pooler gave the connection to others, or the network drops packets. So the
listener regularly sends itself a notification. If it does not arrive, the listener opens a new connection. It does the
same if the server becomes read-only: jobs are then made on another server. It runs for ever. Nothing depends on it,
because workers poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg

from tenure.postgres.connect import IDLE_IN_TRANSACTION_MS, SERVER_DEADLINES, plain_dsn
from tenure.postgres.connection_health import is_read_only
from tenure.postgres.notify import CHANNEL, parse_payload

#: Seconds between two attempts to connect: the first and the longest wait; each is randomised down to a half.
_SOONEST, _LATEST = 0.1, 5.0
_PATIENCE = 5.0
#: A listener is idle most of the time, so idle_session_timeout is off.
_SETTINGS = {
    "statement_timeout": "10000",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    "idle_session_timeout": "0",
    **SERVER_DEADLINES,
}
_SET = "select set_config(name, value, false) from unnest(%s::text[], %s::text[]) as setting (name, value)"
#: The prefix of a listener's own notifications; no contract name begins with it.
_PROBE = "?"
#: Reading the queue usage lets PostgreSQL free read entries; nothing else does once the queue is full.
_SEND = "select pg_notify(%s, %s) where pg_notification_queue_usage() < 0.99"
_QUEUE_FULL, _READ_ONLY = "PostgreSQL's notification queue is full", "the server is read-only"
_log = logging.getLogger("tenure.listen")


class _NotReceiving(Exception):
    """The probe has shown that no wake-ups arrive from this server, and why."""


class Listener:
    """Calls `on_wakeup(contract, queue)` for each wake-up; an empty name stands for any.

    After each connect it calls `on_wakeup("", "")`, because wake-ups may have been missed. It needs a direct address,
    not a pooler's.
    """

    def __init__(
        self, dsn: str, on_wakeup: Callable[[str, str], None], *, probe: float = 30.0, patience: float = _PATIENCE
    ) -> None:
        self._address = plain_dsn(dsn, "tenure listener")
        self._on_wakeup = on_wakeup
        self._probe = probe
        self._patience = patience
        self._lost = False
        self._wait = _SOONEST
        #: Whether wake-ups are received now, as of the last probe.
        self.is_listening = False

    async def run(self) -> None:
        """Listen until cancelled; logs a failure once and reconnects."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._address, autocommit=True) as connection:
                    await self._listen(connection)
            except (psycopg.Error, OSError, _NotReceiving) as error:
                self._log_lost(error)
            finally:
                self.is_listening = False
            await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
            self._wait = min(2 * self._wait, _LATEST)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"listen {CHANNEL}")
        await self._check(connection)
        # The probe has shown that the session is the listener's own, and not lent by a pooler.
        await connection.execute(_SET, (list(_SETTINGS), list(_SETTINGS.values())))
        self._wait, self.is_listening = _SOONEST, True
        if self._lost:
            self._lost = False
            _log.info("wake-ups are received again")
        self._notify_caller("", "")
        while True:
            await self._receive(connection, self._probe)
            await self._check(connection)

    async def _receive(
        self, connection: psycopg.AsyncConnection[Any], seconds: float, until: str | None = None
    ) -> bool:
        """Pass on notifications for this long, or until this one arrives; returns whether it did."""
        give_up = time.monotonic() + seconds
        came = False
        while not came and (left := give_up - time.monotonic()) > 0:
            # Exhaust the generator each time: leaving it early loses notifications that arrived together.
            async for note in connection.notifies(timeout=left, stop_after=1):
                if (named := parse_payload(note.payload)) is not None:
                    self._notify_caller(*named)
                came = came or note.payload == until
        return came

    async def _check(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Notify ourselves and wait for it, on a server that accepts writes."""
        word = f"{_PROBE}{uuid4().hex}"
        async with asyncio.timeout(2 * self._patience):
            sent = await connection.execute(_SEND, (CHANNEL, word))
            if not sent.rowcount:
                raise _NotReceiving(_QUEUE_FULL)
            if not await self._receive(connection, self._patience, word):
                raise _NotReceiving(f"the probe did not arrive within {self._patience:g} s")
        if is_read_only(connection):  # the server reported it with its last answer
            raise _NotReceiving(_READ_ONLY)

    def _notify_caller(self, contract: str, queue: str) -> None:
        try:
            self._on_wakeup(contract, queue)
        except Exception:
            _log.exception("the wake-up callback failed")

    def _log_lost(self, why: Exception) -> None:
        if not self._lost:
            self._lost = True
            what = " ".join(str(why).split()) or type(why).__name__
            next_step = "behind a pooler, give the listener a direct address"
            if what == _QUEUE_FULL or isinstance(why, psycopg.errors.ProgramLimitExceeded):
                next_step = "end the session that listens inside an open transaction"
            elif what == _READ_ONLY or isinstance(why, psycopg.errors.ReadOnlySqlTransaction):
                next_step = "name every server in the address of the database, so that the primary is found"
            _log.warning(
                "wake-ups are not received (%s); workers find jobs by polling, and the listener reconnects. Next: %s",
                what,
                next_step,
            )
