"""Wake-ups through a dispatcher: ask what was heard since the last answer, which may take its time, and ask again.

    ask ─▶ answer: nothing, a while later ─▶ ask …        answer: jobs, a cancel ─▶ heard(contract, queue) ─▶ ask …

What is missed while nobody asks is in the next answer; a dispatcher that does not know our cursor says that anything
may have happened. Nothing depends on it, because workers poll; so when the dispatcher is away it is tried less often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from tenure.errors import TenureError
from tenure.http.client_calls import Calls
from tenure.patience import Patience

#: How long the dispatcher may wait for something to tell.
_WAIT_S = 25.0
#: At least so long between two questions: what comes in between is in one answer. After nothing at once, longer.
_PAUSE_S, _NOTHING_S = 0.02, 0.25
_log = logging.getLogger("tenure.listen")


class Hearing:
    """Calls `heard(contract, queue)` for each wake-up, where an empty name stands for any."""

    def __init__(self, calls: Calls, heard: Callable[[str, str], None]) -> None:
        self._calls = calls
        self._heard = heard
        self._cursor = ""
        self._lost = False

    async def run(self) -> None:
        """Listen until cancelled; what goes wrong is said once, and tried again."""
        patience = Patience(longest_s=5.0)
        while True:
            asked = time.monotonic()
            try:
                wakeups = await self._ask()
            except TenureError as error:
                self._say_lost(error)
                await patience.wait()
                continue
            patience.reset()
            if self._lost:
                self._lost = False
                _log.info("wake-ups are heard again")
            for contract, queue in wakeups:
                self._tell(contract, queue)
            least = _PAUSE_S if wakeups else _NOTHING_S
            await asyncio.sleep(max(_PAUSE_S, asked + least - time.monotonic()))

    async def _ask(self) -> list[tuple[str, str]]:
        def read(told: Any) -> list[tuple[str, str]]:
            found = [(str(one["contract"]), str(one["queue"])) for one in told["wakeups"]]
            self._cursor = str(told["cursor"])
            return found

        asked = {"wait_seconds": f"{_WAIT_S:g}"} | ({"after": self._cursor} if self._cursor else {})
        return await self._calls.ask("GET", "/api/v1/wakeups", None, read, params=asked, wait_s=_WAIT_S)

    def _tell(self, contract: str, queue: str) -> None:
        try:
            self._heard(contract, queue)
        except Exception:
            _log.exception("what was to be done at a wake-up failed")

    def _say_lost(self, why: TenureError) -> None:
        if not self._lost:
            self._lost = True
            _log.warning(
                "wake-ups are not heard any more, and listening is tried again; jobs are found by polling: %s", why
            )
