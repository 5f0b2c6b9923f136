"""`tenure dev`: everything on one machine, in one process: PostgreSQL, a worker, upkeep, and tasks to try."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import typer

from tenure.cli.worker import found, tell

if TYPE_CHECKING:
    from tenure.app import App

_APP = typer.Argument(None, metavar="[APP]", help="Your application as module:app; default: sample tasks.")
_CONCURRENCY = typer.Option(20, "--concurrency", min=1, max=10_000, help="How many jobs at a time.")
_DATABASE = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dev")(dev)


def dev(application: str | None = _APP, concurrency: int = _CONCURRENCY, database_url: str | None = _DATABASE) -> None:
    """Start PostgreSQL, make the schema, and run a worker with upkeep until Ctrl-C; nothing is left running."""
    from tenure.postgres.migrate import migrate

    tell("info")
    if database_url:
        os.environ["DATABASE_URL"] = database_url
    app = found(application or "tenure.samples:app")
    migrate(app.database_url())
    _greet(app, application)
    app.run_worker(concurrency=concurrency)


def _greet(app: App, application: str | None) -> None:
    what = application or "sample tasks"
    lines = [
        f"{what}: {', '.join(sorted(app.tasks))}", "Try, in another terminal in this directory:",
        "  tenure jobs list",
        "  tenure queues list",
    ]  # fmt: skip
    if application is None:
        lines[2:2] = [
            """  tenure enqueue greet --payload '{"name": "Ada"}'""",
            """  tenure enqueue long_report --payload '{"pages": 100}'   then: tenure jobs cancel ID""",
            """  tenure enqueue flaky --payload '{"luck": 0.2}'   then: tenure jobs show ID""",
        ]
    print("\n".join(lines), file=sys.stderr, flush=True)
