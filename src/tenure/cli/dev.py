"""`tenure dev`: everything on one machine, in one process: PostgreSQL, a dispatcher, a worker, upkeep, tasks to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from tenure.cli import trying
from tenure.cli.database import told_if_made
from tenure.cli.serve import PORT, dispatcher, where
from tenure.cli.worker import found, tell
from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.app import App

_APP = typer.Argument(None, metavar="[APP]", help="Your application as module:app; default: sample tasks.")
_CONCURRENCY = typer.Option(20, "--concurrency", min=1, max=10_000, help="How many jobs at a time.")
_HOST = typer.Option("127.0.0.1", "--host", help="Where the dispatcher listens; beyond loopback only with keys.")
_LISTENS = typer.Option(None, "--port", min=0, max=65_535, help=f"Its port; default {PORT}, or a free one.")
_DATABASE = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dev")(dev)


def dev(
    application: str | None = _APP,
    concurrency: int = _CONCURRENCY,
    host: str = _HOST,
    port: int | None = _LISTENS,
    database_url: str | None = _DATABASE,
) -> None:
    """Start PostgreSQL, make the schema, and run a dispatcher and a worker with upkeep until Ctrl-C."""
    from tenure.postgres.migrate import migrate

    tell("info")
    if database_url:
        os.environ["DATABASE_URL"] = database_url
    app = found(application or "tenure.samples:app")
    with told_if_made():
        database = app.database_url()
    migrate(database)
    with _serving(app, host, port) as (url, is_open):
        _greet(app, application, url, is_open)
        app.run_worker(concurrency=concurrency)


@contextmanager
def _serving(app: App, host: str, port: int | None) -> Iterator[tuple[str, bool]]:
    """A dispatcher beside the worker, which has the main thread; its address, and whether it asks for no key."""
    try:
        one = dispatcher(app.database_url(), app.settings, host, PORT if port is None else port, upkeep=False)
    except BadInput:
        if port is not None:
            raise
        one = dispatcher(app.database_url(), app.settings, host, 0, upkeep=False)  # another one is at the usual port
    with one.in_a_thread() as is_open:
        yield one.url, is_open


def _greet(app: App, application: str | None, url: str, is_open: bool) -> None:
    what = application or "sample tasks"
    key = None if is_open else "$TENURE_KEY"
    if application is None:
        request = trying.curl(url, key, app.tasks["greet"], {"name": "Ada"})
    else:
        request = trying.request(url, key, app.tasks)
    lines = [
        f"{what}: {', '.join(sorted(app.tasks))}",
        *where(url, is_open),
        "Try, in another terminal in this directory:",
        "  tenure jobs list",
        "  tenure queues list",
        f"  {request}",
    ]
    if key:
        lines.insert(-1, "  export TENURE_KEY=$(tenure keys create trying --scope enqueue)")
    if application is None:
        place = lines.index("  tenure jobs list")
        lines[place:place] = [
            """  tenure enqueue greet --payload '{"name": "Ada"}'""",
            """  tenure enqueue long_report --payload '{"pages": 100}'   then: tenure jobs cancel ID""",
            """  tenure enqueue flaky --payload '{"luck": 0.2}'   then: tenure jobs show ID""",
        ]
    print("\n".join(lines), file=sys.stderr, flush=True)
