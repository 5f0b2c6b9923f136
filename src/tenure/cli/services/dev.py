"""`tenure dev`: PostgreSQL, a dispatcher, a worker, upkeep and sample tasks in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.options import DatabaseUrl, LogFormat, LogLevel, set_up_logging
from tenure.cli.output import note
from tenure.cli.services import example_request
from tenure.cli.services.serve import PORT, Host, describe_address, pages_of
from tenure.cli.services.worker import import_app
from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.app import App

_App = Annotated[str | None, typer.Argument(metavar="[APP]", help="Your application as module:app; default: samples.")]
_SAMPLES = (
    """  tenure enqueue greet --payload '{"name": "Ada"}'""",
    """  tenure enqueue long_report --payload '{"pages": 100}'   then: tenure jobs cancel ID""",
    """  tenure enqueue flaky --payload '{"luck": 0.2}'   then: tenure jobs show ID""",
)


def dev(
    application: _App = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=10_000, help="Jobs at the same time.")] = 20,
    host: Host = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help=f"Its port; default: {PORT}, else a free one.")
    ] = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Start PostgreSQL, make the schema, and run a dispatcher and a worker with upkeep until Ctrl-C."""
    import tenure.http  # noqa: F401 (a missing dispatcher is refused before a PostgreSQL is started)
    from tenure.postgres.migrate import migrate

    set_up_logging(log_level, log_format)
    if database_url:
        os.environ["DATABASE_URL"] = database_url
    app = import_app(application or "tenure.samples:app")
    migrate(app.database_url(), app.contracts)
    with _run_dispatcher(app, host, port) as (url, is_open):
        note("\n".join(_instructions(app, application, url, is_open)))
        app.run_worker(concurrency=concurrency)


@contextmanager
def _run_dispatcher(app: App, host: str, port: int | None) -> Iterator[tuple[str, bool]]:
    """Run a dispatcher in a thread; yields its address, and whether it asks for no key."""
    from tenure.http.dispatcher import Dispatcher

    make = partial(Dispatcher, app.database_url(), app.settings, host=host, pages=pages_of(app.settings))
    try:
        dispatcher = make(port=PORT if port is None else port)
    except BadInput:
        if port is not None:
            raise
        dispatcher = make(port=0)  # the usual port is in use: take a free one
    with dispatcher.in_a_thread() as is_open:
        yield dispatcher.url, is_open


def _instructions(app: App, application: str | None, url: str, is_open: bool) -> Iterator[str]:
    key = None if is_open else "$TENURE_KEY"
    yield f"{application or 'sample tasks'}: {', '.join(sorted(app.tasks))}"
    yield from describe_address(url, is_open)
    yield "Try, in another terminal in this directory:"
    if application is None:
        yield from _SAMPLES
        request = example_request.curl(url, key, app.tasks["greet"], {"name": "Ada"})
    else:
        request = example_request.request(url, key, app.tasks)
    yield "  tenure jobs list"
    yield "  tenure queues list"
    if key:
        yield "  export TENURE_KEY=$(tenure keys create trying --scope enqueue)"
    yield f"  {request}"
