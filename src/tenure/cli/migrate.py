"""`tenure migrate`: bring a database to this release."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from tenure.cli.database import database
from tenure.settings import Settings


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate")(migrate)


def migrate(
    print_sql: bool = typer.Option(False, "--print", help="Print the SQL of a whole set-up and connect to nothing."),
    grants: bool = typer.Option(
        False, "--grants", help="Also make the roles tenure_owner, tenure_app and tenure_read."
    ),
    lock_timeout: int = typer.Option(5_000, help="Give up on a locked table after so many milliseconds.", min=1),
    database_url: str | None = typer.Option(
        None, help="Which database; default TENURE_DIRECT_URL, DATABASE_URL, the embedded one."
    ),
    as_json: bool = typer.Option(False, "--json", help="What was done, as JSON."),
) -> None:
    """Make or upgrade the schema, register the contracts, build their views. Safe again, and while workers run."""
    from tenure.postgres import migrate as room

    if print_sql:
        print(room.printed(grants=grants), end="")
        return
    with database(database_url or Settings.load().direct_url, migrated=False) as dsn:
        report = room.migrate(dsn, lock_timeout_ms=lock_timeout, grants=grants)
    if as_json:
        print(json.dumps(asdict(report)))
        return
    done = [
        *(f"applied {name}" for name in report.applied),
        *(f"registered contract {name}" for name in report.registered),
        *(f"took over the numbers of contract {name}" for name in report.renumbered),
        *(f"rebuilt {name}" for name in report.rebuilt),
        *(f"granted to role {name}" for name in report.granted),
        *([f"made {report.ranges} id ranges"] if report.ranges else []),
    ]
    print("\n".join(done) if done else "nothing to do: the database is at this release")
