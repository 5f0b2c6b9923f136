"""The listener: hears wake-ups on a connection of its own, and knows whether it hears.

    connect ─▶ LISTEN ─▶ probe ─▶ heard("", "") ─▶ heard(contract, queue) … ─▶ probe … ─▶ lost ─▶ again, a little later

A listener that has gone deaf looks like one that has nothing to hear: a pooler in between gave the connection to
others, or the network swallows what comes. So from time to time it sends a word to itself over the channel; when that
does not come back, the connection is thrown away. It goes on for ever; nothing depends on it, because workers poll.
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

from tenure.postgres.connect import plain_dsn
from tenure.postgres.wake import CHANNEL, read

#: Seconds between two tries to connect: the first, and the longest; each is spread by a half.
_SOONEST, _LATEST = 0.1, 5.0
_PATIENCE = 5.0
#: Begins what a listener says to itself; no contract's name does.
_PROBE = "?"
_log = logging.getLogger("tenure.listen")


class _Deaf(Exception):
    """What the listener said to itself did not come back."""


class Listener:
    """Calls `heard(contract, queue)` for each wake-up, where an empty name stands for any.

    After each connect it calls `heard("", "")`: who knows what was missed. It wants a direct address, not a pooler's.
    """

    def __init__(
        self, dsn: str, heard: Callable[[str, str], None], *, probe: float = 30.0, patience: float = _PATIENCE
    ) -> None:
        self._address = plain_dsn(dsn, "tenure listener")
        self._heard = heard
        self._probe = probe
        self._patience = patience
        self._lost = False
        self._wait = _SOONEST
        self._hears = False

    @property
    def hears(self) -> bool:
        """Whether wake-ups are heard now, as far as the last probe could tell."""
        return self._hears

    async def run(self) -> None:
        """Listen until cancelled; what goes wrong is said once, and tried again."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._address, autocommit=True) as connection:
                    await self._listen(connection)
            except (psycopg.Error, OSError, _Deaf) as error:
                self._say_lost(error)
            finally:
                self._hears = False
            await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
            self._wait = min(2 * self._wait, _LATEST)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"listen {CHANNEL}")
        await self._check(connection)
        self._wait, self._hears = _SOONEST, True
        if self._lost:
            self._lost = False
            _log.info("wake-ups are heard again")
        self._tell("", "")
        while True:
            await self._hear(connection, self._probe)
            await self._check(connection)

    async def _hear(self, connection: psycopg.AsyncConnection[Any], seconds: float, until: str | None = None) -> bool:
        """Pass on what comes for so long, or until this word of our own comes; whether it came."""
        give_up = time.monotonic() + seconds
        came = False
        while not came and (left := give_up - time.monotonic()) > 0:
            # To its end, each time: what arrived together would be lost with a generator that is left early.
            async for note in connection.notifies(timeout=left, stop_after=1):
                if (named := read(note.payload)) is not None:
                    self._tell(*named)
                came = came or note.payload == until
        return came

    async def _check(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Say a word to ourselves, which must come back."""
        word = f"{_PROBE}{uuid4().hex}"
        async with asyncio.timeout(2 * self._patience):
            await connection.execute("select pg_notify(%s, %s)", (CHANNEL, word))
            if not await self._hear(connection, self._patience, word):
                raise _Deaf(f"nothing came back within {self._patience:g} s")

    def _tell(self, contract: str, queue: str) -> None:
        try:
            self._heard(contract, queue)
        except Exception:
            _log.exception("what was to be done at a wake-up failed")

    def _say_lost(self, why: Exception) -> None:
        if not self._lost:
            self._lost = True
            what = " ".join(str(why).split()) or type(why).__name__
            _log.warning(
                "wake-ups are not heard any more (%s); workers find jobs by polling, and listening is tried again. "
                "Next: behind a pooler, give the listener a direct address",
                what,
            )
