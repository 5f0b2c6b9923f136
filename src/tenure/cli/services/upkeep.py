"""`tenure upkeep`: upkeep as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from functools import partial
from typing import Annotated

import typer

from tenure.cli.command import Output, open_database
from tenure.cli.options import DatabaseUrl, Json, LogFormat, LogLevel, set_up_logging
from tenure.cli.output import note, table
from tenure.client.retry import wait_until_available
from tenure.errors import TenureError
from tenure.settings import Settings

#: One for each part that can run at the same time, and one to spare.
CONNECTIONS = 8


def upkeep(
    once: Annotated[bool, typer.Option("--once", help="Run one round, print the result, and end.")] = False,
    database_url: DatabaseUrl = None,
    in_json: Json = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Reap, promote, settle, forget, retire and vacuum until stopped; any number of these may run."""
    set_up_logging(log_level, log_format)
    settings = Settings.load()
    with open_database(database_url) as dsn:
        # Printed before the embedded PostgreSQL stops: a second signal may end the process in that time.
        asyncio.run(_run_once(dsn, settings) if once else _run_until_stopped(dsn, settings)).print(in_json)


async def run_upkeep(dsn: str, settings: Settings) -> None:
    """Run the loops of upkeep until cancelled."""
    from tenure.postgres.store import Store
    from tenure.upkeep import Upkeep

    async with Store.open(dsn, numbers=settings.numbers, connections=CONNECTIONS) as store:
        await Upkeep.configured(store, settings, dsn).run()


async def _run_once(dsn: str, settings: Settings) -> Output:
    from tenure.postgres.store import Store
    from tenure.upkeep import AlarmWatch, KeepTimes, Report
    from tenure.upkeep import once as run_once

    async with Store.open(dsn, numbers=settings.numbers, connections=1) as store:
        reports = await run_once(store, KeepTimes(**settings.keep))
        if (alarms := AlarmWatch.configured(settings)) is not None:
            for part, work in (("alarms", alarms.evaluate), ("send alarms", alarms.send)):
                try:
                    reports.append(Report(part, await work(store)))
                except TenureError as error:
                    reports.append(Report(part, 0, trouble=str(error)))
    rows = [(report.part, report.contract, f"{report.did:,}", report.trouble) for report in reports]
    failed = any(report.trouble for report in reports)
    lines = table(("part", "contract", "did", "trouble"), rows)
    return Output([report._asdict() for report in reports], lines, failed=failed)


async def _run_until_stopped(dsn: str, settings: Settings) -> Output:
    """Run the loops until SIGTERM or SIGINT; returns a summary of their work."""
    from tenure.postgres.store import Store
    from tenure.upkeep import Upkeep

    loops: Upkeep | None = None

    async def run() -> None:
        nonlocal loops
        connect = partial(Store.connect, dsn, numbers=settings.numbers, connections=CONNECTIONS)
        store = await wait_until_available(connect, name="upkeep")
        try:
            loops = Upkeep.configured(store, settings, dsn)
            note("upkeep runs; Ctrl-C or SIGTERM ends it")
            await loops.run()
        finally:
            await store.close()

    running = asyncio.create_task(run())
    loop, handlers = asyncio.get_running_loop(), {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    for number in handlers:
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    for number, handler in handlers.items():
        loop.remove_signal_handler(number)
        signal.signal(number, handler)
    counts, troubles, jumps = (loops.counts, loops.troubles, loops.jumps) if loops else ({}, {}, 0)
    done = ", ".join(f"{part} {count:,}" for part, count in sorted(counts.items())) or "there was nothing to do"
    notes = [f"upkeep ends: {done}", *(f"  {part}: {trouble}" for part, trouble in troubles.items())]
    return Output({"counts": counts, "jumps": jumps, "troubles": troubles}, notes=notes)
