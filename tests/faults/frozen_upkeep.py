"""Upkeep that stops itself once (SIGSTOP), between the two statements of a transaction: `python -m … ADDRESS MS`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from tenure.postgres import connect
from tenure.postgres.engine import Engine
from tenure.postgres.statement import Plan
from tenure.postgres.store import Store
from tenure.upkeep import Upkeep
from tests.faults.steps import stepwise
from tests.upkeep.running import QUICK

T = TypeVar("T")


class FreezingEngine(Engine):
    """Stops the process before it moves what it has picked and locked, the first time."""

    frozen = False

    async def run(self, plan: Callable[[], Plan[T]], *, beat: bool = False) -> T:
        return await super().run(lambda: stepwise(plan(), self._stopping()), beat=beat)

    def _stopping(self) -> Callable[[str], None]:
        """The points of one plan: its transaction picks, then moves."""
        passed: list[str] = []

        def point(name: str) -> None:
            passed.append(name)
            if passed[-3:] == ["begin", "find_expired", "expire"] and not self.frozen:
                self.frozen = True
                os.kill(os.getpid(), signal.SIGSTOP)

        return point


async def _main(address: str) -> None:
    engine = await FreezingEngine.connect(address, None, 4)
    await Upkeep(Store(engine), periods=QUICK).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
    connect.IDLE_IN_TRANSACTION_MS = int(sys.argv[2])
    asyncio.run(_main(sys.argv[1]))
