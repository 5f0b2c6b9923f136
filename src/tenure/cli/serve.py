"""`tenure serve`: the dispatcher, for workers and callers that reach Tenure over HTTP."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import typer

from tenure.cli.database import database
from tenure.cli.worker import tell
from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.http.serve import Dispatcher

#: Where a dispatcher listens when nobody says otherwise.
PORT = 8420
_HOST = typer.Option("127.0.0.1", "--host", help="The address to listen on; beyond loopback only with keys.")
_PORT = typer.Option(PORT, "--port", min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
_UPKEEP = typer.Option(True, "--upkeep/--no-upkeep", help="Whether upkeep runs beside the dispatcher.")
_DATABASE = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_LEVEL = typer.Option("info", "--log-level", help="How much to tell: debug, info, warning or error.")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    host: str = _HOST,
    port: int = _PORT,
    upkeep: bool = _UPKEEP,
    database_url: str | None = _DATABASE,
    log_level: str = _LEVEL,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; what was heard is answered before it ends."""
    import uvloop

    tell(log_level)
    settings = Settings.load()
    with database(database_url) as dsn:
        uvloop.run(dispatcher(dsn, settings, host, port, upkeep=upkeep).run(_announce))


def dispatcher(dsn: str, settings: Settings, host: str, port: int, *, upkeep: bool) -> Dispatcher:
    """A dispatcher on this database, with upkeep beside it where that is wanted."""
    from tenure.http.serve import Dispatcher

    return Dispatcher(dsn, settings, host=host, port=port, beside=[partial(_keep_up, dsn, settings)] if upkeep else ())


def where(url: str, is_open: bool) -> list[str]:
    """What the person at the terminal is told: where it is, and who may come in."""
    unguarded = (
        "no key exists: whoever is on this machine may do everything. Next: tenure keys create NAME --scope admin"
    )
    return [f"the dispatcher is at {url}", *[unguarded] * is_open]


def _announce(url: str, is_open: bool) -> None:
    print("\n".join(where(url, is_open)), file=sys.stderr, flush=True)


async def _keep_up(dsn: str, settings: Settings) -> None:
    from tenure.cli.upkeep import CONNECTIONS
    from tenure.postgres.store import Store
    from tenure.upkeep import Keep, Upkeep

    async with Store.open(dsn, numbers=settings.numbers, connections=CONNECTIONS) as store:
        await Upkeep(store, Keep(**settings.keep)).run()
