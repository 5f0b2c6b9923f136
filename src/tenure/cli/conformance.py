"""`tenure conformance`: check that a server, or a worker in any language, keeps the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.command import Output
from tenure.cli.options import DatabaseUrl, Json
from tenure.cli.output import note
from tenure.errors import BadInput
from tenure.settings import Settings
from tenure.settings.parsers import parse_api_key, parse_dispatcher_url

if TYPE_CHECKING:
    from tenure.conformance.result import Result

#: The test databases are worth nothing after the run.
_POSTGRES_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "max_connections": "200"}


def conformance(
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="Check the server at this address.")] = None,
    worker: Annotated[
        str | None, typer.Option("--worker", help="Check the worker that this command starts, instead of a server.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The API key for the server; default TENURE_KEY.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this scenario or check; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=600, help="Seconds to wait for anything that must happen.")
    ] = 20,
    database_url: DatabaseUrl = None,
    in_json: Json = False,
) -> None:
    """Check a server at an address, or a foreign worker; exits with 1 and says what it did wrong."""
    if (url is None) == (worker is None):
        raise BadInput("give the address of a server, or --worker with a command. Next: tenure conformance --help")
    settings = Settings.load()
    print_result = (lambda result: None) if in_json else _print

    async def check() -> list[Result]:
        if worker is None:
            from tenure.conformance.check_server import check_server

            address = parse_dispatcher_url("the address", url) or ""
            api_key = parse_api_key("--key", key) or settings.key
            return await check_server(address, api_key, only or (), timeout_s=timeout, played=print_result)
        from tenure.conformance.check_worker import check_worker

        return await check_worker(worker, server, only or (), timeout_s=timeout, played=print_result)

    with contextlib.ExitStack() as stack:
        if worker is not None:
            server = database_url or settings.database_url or stack.enter_context(_temporary_server())
        results = asyncio.run(check())
    failed = [result.name for result in results if not result.passed]
    fields = [result.fields() for result in results]
    note("" if in_json else f"\n{len(results) - len(failed)} of {len(results)} passed")
    Output({"passed": not failed, "results": fields}, failed=bool(failed)).print(in_json)


@contextlib.contextmanager
def _temporary_server() -> Iterator[str]:
    """The address of an embedded PostgreSQL that is gone afterwards."""
    from tenure.embedded import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="tenure-conformance-") as directory,
        Cluster(Path(directory), settings=_POSTGRES_SETTINGS) as cluster,
    ):
        yield cluster.dsn


def _print(result: Result) -> None:
    """Print one result when it is there: its faults, and the end of the worker's output."""
    print(
        f"{'passed' if result.passed else 'FAILED'}  {result.name}: {result.about} ({result.seconds:.1f} s)", flush=True
    )
    _print_lines("    ", result.faults)
    _print_lines("      | ", result.output)


def _print_lines(start: str, lines: Sequence[str]) -> None:
    for line in lines:
        print(f"{start}{line}", flush=True)
