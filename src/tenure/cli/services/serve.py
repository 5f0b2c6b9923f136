"""`tenure serve`: the dispatcher, for workers and callers that use Tenure over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.command import open_database
from tenure.cli.options import DatabaseUrl, LogFormat, LogLevel, set_up_logging
from tenure.cli.output import note
from tenure.cli.services.upkeep import run_upkeep
from tenure.errors import MissingExtra
from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.http.application import Application
    from tenure.http.dispatcher import Pages

#: The port of a dispatcher without `--port`.
PORT = 8420
Host = Annotated[str, typer.Option("--host", help="The address to listen on; beyond loopback only with keys.")]


def serve(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="The port; 0 takes a free one.")] = PORT,
    upkeep: Annotated[bool, typer.Option("--upkeep/--no-upkeep", help="Run upkeep beside the dispatcher.")] = True,
    database_url: DatabaseUrl = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; it answers every received request before it ends."""
    import uvloop

    from tenure.http.dispatcher import Dispatcher

    set_up_logging(log_level, log_format)
    settings = Settings.load()
    with open_database(database_url) as dsn:
        beside = [partial(run_upkeep, dsn, settings)] if upkeep else []
        dispatcher = Dispatcher(dsn, settings, host=host, port=port, beside=beside, pages=pages_of(settings))
        uvloop.run(dispatcher.run(lambda url, is_open: note("\n".join(describe_address(url, is_open)))))


def pages_of(settings: Settings) -> Callable[[Application], Pages] | None:
    """What makes the dashboard's pages; None, with a note, when their library is not installed."""
    try:
        from tenure.dashboard.site import Site
    except MissingExtra as missing:
        note(f"no dashboard: {missing}")
        return None
    return partial(Site, settings)


def describe_address(url: str, is_open: bool) -> list[str]:
    """The lines that say where the dispatcher listens, and whether it asks for a key."""
    warning = (
        "no key exists: every process on this machine may do everything. Next: tenure keys create NAME --scope admin"
    )
    return [f"the dispatcher is at {url}", *[warning] * is_open]
