"""`tenure openapi`: print the dispatcher's OpenAPI document without a dispatcher."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tenure.cli.services.serve import PORT


def openapi(
    server: Annotated[
        str, typer.Option("--server", help="The address of the dispatcher.")
    ] = f"http://127.0.0.1:{PORT}",
) -> None:
    """Print the OpenAPI 3.1 document of the dispatcher, to generate clients; connects nowhere."""
    from tenure.http.openapi import openapi_document
    from tenure.http.route_table import ROUTES

    print(json.dumps(openapi_document(ROUTES, server), indent=2))
