"""The listener: receives wake-ups on its own connection or a kept one, and checks that it still receives them.

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
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import psycopg

from tenure.postgres.connect import DEADLINES, IDLE_IN_TRANSACTION_MS, SERVER_DEADLINES, plain_dsn
from tenure.postgres.connection_health import is_read_only
from tenure.postgres.engine_connection import EngineConnection
from tenure.postgres.kept_connection import KeptConnection
from tenure.postgres.notify import CHANNEL, parse_payload

#: Seconds between two attempts to connect: the first and the longest wait; each is randomised down to a half.
_SOONEST, _LATEST = 0.1, 5.0
_PATIENCE = 5.0
_NAME = "tenure listener"
#: A listener is idle most of the time, so idle_session_timeout is off. A kept connection has the other settings.
_SETTINGS_WHEN_KEPT = {"idle_session_timeout": "0"}
_SETTINGS = {
    "statement_timeout": "10000",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    **_SETTINGS_WHEN_KEPT,
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
    not a pooler's, or the kept connection of an engine, which goes on with its calls.
    """

    def __init__(
        self,
        server: str | KeptConnection,
        on_wakeup: Callable[[str, str], None],
        *,
        probe: float = 30.0,
        patience: float = _PATIENCE,
    ) -> None:
        self._kept = server if isinstance(server, KeptConnection) else None
        self._address = plain_dsn(server, _NAME) if isinstance(server, str) else ""
        self._settings = _SETTINGS if self._kept is None else _SETTINGS_WHEN_KEPT
        self._on_wakeup = on_wakeup
        self._probe = probe
        self._patience = patience
        self._lost = False
        self._wait = _SOONEST
        #: The notification to itself that it waits for, and the future that is done when it has arrived.
        self._expected: tuple[str, asyncio.Future[None]] | None = None
        #: Whether wake-ups are received now, as of the last probe.
        self.is_listening = False

    async def run(self) -> None:
        """Listen until cancelled; logs a failure once and reconnects."""
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._listen(connection)
                finally:
                    self.is_listening = False
                    async with connection.in_use:
                        await connection.close()
            except (psycopg.Error, OSError, _NotReceiving) as error:
                self._log_lost(error)
            await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
            self._wait = min(2 * self._wait, _LATEST)

    async def _connect(self) -> EngineConnection:
        if self._kept is not None:
            return await self._kept.connection()
        connection = await EngineConnection.connect(self._address, autocommit=True)
        connection.start_reading()
        return connection

    async def _listen(self, connection: EngineConnection) -> None:
        connection.add_notify_handler(self._on_notification)
        async with connection.in_use:
            await connection.execute(f"listen {CHANNEL}")
        await self._check(connection)
        # The probe has shown that the session is the listener's own, and not lent by a pooler.
        settings = dict(self._settings)
        if connection.info.parameter_status("application_name") == DEADLINES["application_name"]:
            settings["application_name"] = _NAME
        async with connection.in_use:
            await connection.execute(_SET, (list(settings), list(settings.values())))
        self._wait, self.is_listening = _SOONEST, True
        if self._lost:
            self._lost = False
            _log.info("wake-ups are received again")
        self._notify_caller("", "")
        while True:
            with suppress(TimeoutError):  # not `wait_for`, which loses a cancel before Python 3.12
                async with asyncio.timeout(self._probe):
                    await connection.ended.wait()
                raise psycopg.OperationalError("the connection was lost")
            await self._check(connection)

    def _on_notification(self, notification: psycopg.Notify) -> None:
        if (named := parse_payload(notification.payload)) is not None:
            self._notify_caller(*named)
        elif self._expected is not None and notification.payload == self._expected[0]:
            self._expected[1].set_result(None)
            self._expected = None

    async def _check(self, connection: EngineConnection) -> None:
        """Notify ourselves and wait for it, on a server that accepts writes."""
        word, arrived = f"{_PROBE}{uuid4().hex}", asyncio.get_running_loop().create_future()
        self._expected = (word, arrived)
        async with connection.in_use, asyncio.timeout(2 * self._patience):
            sent = await connection.execute(_SEND, (CHANNEL, word))
            if not sent.rowcount:
                raise _NotReceiving(_QUEUE_FULL)
        try:
            async with asyncio.timeout(self._patience):
                await arrived
        except TimeoutError:
            raise _NotReceiving(f"the probe did not arrive within {self._patience:g} s") from None
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
