"""`tenure worker`: run an application's tasks, in one process or in several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.import_target import import_target
from tenure.cli.options import DatabaseUrl, LogFormat, LogLevel, set_up_logging
from tenure.errors import BadInput
from tenure.settings import Settings
from tenure.settings.parsers import parse_api_key, parse_dispatcher_url, parse_queue_url

if TYPE_CHECKING:
    from tenure.app import App

_App = Annotated[str, typer.Argument(metavar="APP", help="The application as module:app.")]
_Queues = Annotated[
    str | None, typer.Option("--queues", help="In claim order, with commas; default: the tasks' queues.")
]
_Contracts = Annotated[str | None, typer.Option("--contracts", help="Only these contracts, with commas; default: all.")]
_Concurrency = Annotated[int, typer.Option("--concurrency", min=1, max=10_000, help="Jobs at the same time.")]
_Processes = Annotated[
    int, typer.Option("--processes", min=1, max=256, help="Worker processes, each with its own concurrency.")
]
_Poll = Annotated[float, typer.Option("--poll", min=0.01, max=3_600, help="Seconds between claims without wake-ups.")]
_Grace = Annotated[float, typer.Option("--grace", min=0, help="Seconds that running jobs get to end after SIGTERM.")]
_Dispatcher = Annotated[
    str | None, typer.Option("--dispatcher", help="Use this dispatcher, no database; default: TENURE_DISPATCHER_URL.")
]
_Sqs = Annotated[
    str | None, typer.Option("--sqs", help="Receive tasks from this SQS queue and claim them from the dispatcher.")
]
_Key = Annotated[str | None, typer.Option("--key", help="The API key for the dispatcher; TENURE_KEY hides it from ps.")]
_MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", min=0, max=65_535, help="Serve /metrics at this port; 0: a free one.")
]
_MetricsHost = Annotated[str, typer.Option("--metrics-host", help="The address to serve /metrics at.")]


def worker(
    application: _App,
    queues: _Queues = None,
    contracts: _Contracts = None,
    concurrency: _Concurrency = 50,
    processes: _Processes = 1,
    name: Annotated[str | None, typer.Option("--name", help="The worker's name; default: host:pid.")] = None,
    poll: _Poll = 1.0,
    grace: _Grace = 30.0,
    upkeep: Annotated[bool, typer.Option("--upkeep/--no-upkeep", help="Run upkeep beside the worker.")] = True,
    wakeups: Annotated[bool, typer.Option("--wakeups/--no-wakeups", help="Listen for wake-ups.")] = True,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no job is due.")] = False,
    database_url: DatabaseUrl = None,
    dispatcher: _Dispatcher = None,
    key: _Key = None,
    sqs: _Sqs = None,
    metrics_port: _MetricsPort = None,
    metrics_host: _MetricsHost = "127.0.0.1",
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Run the tasks of an application until SIGTERM or Ctrl-C; a second signal ends it at once."""
    set_up_logging(log_level, log_format)
    _set_environment(database_url, dispatcher, key)
    _check_sqs(sqs, contracts)
    app = import_app(application)
    if (url := Settings.load().dispatcher_url) is not None and app.settings.dispatcher_url != url:
        raise BadInput(
            f"{application} does not go through the dispatcher at {url}: it was made with settings of its own. "
            "Next: let App() read them from the environment"
        )
    if app.settings.dispatcher_url is None:
        app.database_url()
    if processes > 1:
        from tenure.cli.services.worker_processes import run_processes

        if metrics_port and metrics_port + processes - 1 > 65_535:
            raise BadInput(f"{processes} processes need ports from {metrics_port} on, and the last port is 65535")
        raise typer.Exit(run_processes(processes, name, until_idle=until_idle, metrics_port=metrics_port))
    app.run_worker(
        queues=_split(queues), contracts=_split(contracts), concurrency=concurrency, name=name, poll=poll, grace=grace,
        upkeep=upkeep, wakeups=wakeups, sqs=sqs, until_idle=until_idle,
        metrics_port=metrics_port, metrics_host=metrics_host,
    )  # fmt: skip


def _set_environment(database_url: str | None, dispatcher: str | None, key: str | None) -> None:
    """Pass these options to the application and to worker processes as environment variables."""
    if database_url and dispatcher:
        raise BadInput("--database-url and --dispatcher exclude each other: a worker goes to one of the two")
    dispatcher, key = parse_dispatcher_url("--dispatcher", dispatcher), parse_api_key("--key", key)
    if key and not (dispatcher or Settings.load().dispatcher_url):
        raise BadInput("--key is shown to a dispatcher. Next: give --dispatcher too")
    options = {"DATABASE_URL": database_url, "TENURE_DISPATCHER_URL": dispatcher, "TENURE_KEY": key}
    os.environ.update({name: value for name, value in options.items() if value})
    if database_url:
        os.environ.pop("TENURE_DISPATCHER_URL", None)


def _check_sqs(sqs: str | None, contracts: str | None) -> None:
    """Refuse a message queue that this worker cannot use, before it connects or starts processes."""
    if sqs is None:
        return
    parse_queue_url("--sqs", sqs)
    if contracts is not None:
        raise BadInput("--sqs and --contracts exclude each other: a message may name a task of any contract")
    if Settings.load().dispatcher_url is None:
        raise BadInput("--sqs names tasks that a dispatcher has. Next: give --dispatcher too")


def import_app(application: str) -> App:
    """Import the application; refuses a value that is no App, and an App without tasks."""
    from tenure.app import App

    value = import_target(application)
    if not isinstance(value, App):
        raise BadInput(f"{application} is a {type(value).__name__}, not an App. Next: name it as module:app")
    if not value.tasks:
        raise BadInput(f"{application} has no tasks. Next: import the modules that declare them where the app is made")
    return value


def _split(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None
