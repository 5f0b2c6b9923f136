"""Play all scenarios with a worker, some at a time, each on a database of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from tenure.conformance.result import Fault, Result
from tenure.conformance.trouble_scenarios import TROUBLE
from tenure.conformance.worker_rules import faults_in
from tenure.conformance.worker_scenarios import NORMAL_WORK, Scenario
from tenure.conformance.worker_trial import trial
from tenure.errors import BadInput
from tenure.postgres.test_databases import TestDatabases

SCENARIOS: Final = {scenario.name: scenario for scenario in (*NORMAL_WORK, *TROUBLE)}
#: Scenarios at a time: they mostly wait.
_AT_ONCE: Final = 4


async def check_worker(
    command: str,
    server: str,
    names: Sequence[str] = (),
    *,
    timeout_s: float = 20,
    played: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Play scenarios (default: all) with the worker that this command starts; calls `played` after each.

    `server` is the address of a database on a server where databases may be created.
    """
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise BadInput(f"there is no scenario {unknown[0]!r}. Next: choose from {', '.join(SCENARIOS)}")
    databases = await asyncio.to_thread(TestDatabases, server)
    places, lending = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()

    async def play(scenario: Scenario) -> Result:
        async with places:
            async with lending:
                dsn = await asyncio.to_thread(databases.lend)
            try:
                result = await _play(scenario, command, dsn, timeout_s)
            finally:
                databases.take_back(dsn)
            played(result)
            return result

    chosen = [scenario for name, scenario in SCENARIOS.items() if not names or name in names]
    playing = [asyncio.create_task(play(scenario)) for scenario in chosen]
    try:
        return list(await asyncio.gather(*playing))
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await asyncio.to_thread(databases.close)


async def _play(scenario: Scenario, command: str, dsn: str, timeout_s: float) -> Result:
    begun = time.monotonic()
    async with trial(command, dsn, timeout_s) as running:
        ended_by = []
        try:
            await scenario.play(running)
        except Fault as fault:
            ended_by = [str(fault)]
        faults = (*faults_in(running.proxy.exchanges), *running.faults, *ended_by)
        output = running.worker.last_lines() if faults else ()
    return Result(scenario.name, scenario.about, faults, time.monotonic() - begun, output)
