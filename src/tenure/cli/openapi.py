"""`tenure openapi`: the dispatcher's OpenAPI, without a dispatcher."""

from __future__ import annotations

import json

import typer

from tenure.cli.serve import PORT

_SERVER = typer.Option(f"http://127.0.0.1:{PORT}", "--server", help="Where the dispatcher will be.")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("openapi")(openapi)


def openapi(server: str = _SERVER) -> None:
    """Print the OpenAPI 3.1 of the dispatcher, to make a client from; nothing is asked or started."""
    from tenure.http.openapi import described
    from tenure.http.server import routed

    print(json.dumps(described(routed(), server), indent=2))
