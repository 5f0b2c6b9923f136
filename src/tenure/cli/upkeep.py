"""`tenure upkeep`: what time does to jobs, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import typer

from tenure.cli.database import database
from tenure.cli.shown import as_json, table
from tenure.patience import once_there
from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.upkeep import Report, Upkeep

#: Parts that are at work at the same time, and one to spare.
CONNECTIONS = 8


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("upkeep")(upkeep)


def upkeep(
    once: bool = typer.Option(False, "--once", help="Run one round of everything, say what it did, and end."),
    database_url: str | None = typer.Option(None, help="Which database; default DATABASE_URL, else the embedded one."),
    in_json: bool = typer.Option(False, "--json", help="What was done, as JSON on stdout."),
) -> None:
    """Reap, promote, settle, forget, retire and vacuum, until told to stop; any number of these may run."""
    settings = Settings.load()
    with database(database_url) as dsn:
        if once:
            _tell(asyncio.run(_round(dsn, settings)), in_json)
        else:
            with _logged():
                done = asyncio.run(_until_stopped(dsn, settings))
            _sum_up(done, in_json)


async def _round(dsn: str, settings: Settings) -> list[Report]:
    from tenure.postgres.store import Store
    from tenure.upkeep import Keep
    from tenure.upkeep import once as one_round

    async with Store.open(dsn, numbers=settings.numbers, connections=1) as store:
        return await one_round(store, Keep(**settings.keep))


def _tell(reports: list[Report], in_json: bool) -> None:
    if in_json:
        print(as_json([report._asdict() for report in reports]))
    else:
        rows = [[report.part, report.contract or "", f"{report.did:,}", report.trouble or ""] for report in reports]
        print("\n".join(table(("part", "contract", "did", "trouble"), rows)))
    if any(report.trouble for report in reports):
        raise typer.Exit(1)


async def _until_stopped(dsn: str, settings: Settings) -> Upkeep | None:
    """Run the loops until SIGTERM or SIGINT; what they did can be asked afterwards."""
    from tenure.postgres.store import Store
    from tenure.upkeep import Keep, Upkeep

    loops: list[Upkeep] = []

    async def run() -> None:
        connect = partial(Store.connect, dsn, numbers=settings.numbers, connections=CONNECTIONS)
        store = await once_there(connect, who="upkeep", is_stopping=lambda: False)
        assert store is not None
        try:
            loops.append(Upkeep(store, Keep(**settings.keep)))
            print("upkeep runs; Ctrl-C or SIGTERM ends it", file=sys.stderr, flush=True)
            await loops[0].run()
        finally:
            await store.close()

    running = asyncio.create_task(run())
    with _stopping(running), contextlib.suppress(asyncio.CancelledError):
        await running
    return loops[0] if loops else None


@contextlib.contextmanager
def _stopping(running: asyncio.Task[None]) -> Iterator[None]:
    """While this lasts, being told to stop is no error: the loops are cancelled."""
    loop, before = asyncio.get_running_loop(), {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, running.cancel)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Plain lines on stderr: `12:03:07 upkeep reap standard: 3`."""
    log, handler = logging.getLogger("tenure"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s upkeep %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    # The pool would tell of every attempt to connect; the loops tell when the database went away and when it is back.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _sum_up(done: Upkeep | None, in_json: bool) -> None:
    counts, troubles = (done.counts, done.troubles) if done else ({}, {})
    if in_json:
        print(as_json({"counts": counts, "jumps": done.jumps if done else 0, "troubles": troubles}))
        return
    said = ", ".join(f"{part} {count:,}" for part, count in sorted(counts.items())) or "there was nothing to do"
    print(f"upkeep ends: {said}", file=sys.stderr)
    for part, trouble in troubles.items():
        print(f"  {part}: {trouble}", file=sys.stderr)
