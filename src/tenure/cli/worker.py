"""`tenure worker`: run an application's tasks, in one process or in several."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import typer

from tenure.cli.database import told_if_made
from tenure.cli.importing import imported
from tenure.errors import BadInput
from tenure.settings import Settings, bearer
from tenure.settings import dispatcher as address

if TYPE_CHECKING:
    from tenure.app import App

_APP = typer.Argument(..., metavar="APP", help="Where the application is: module:app.")
_QUEUES = typer.Option(
    None, "--queues", help="Queues in the order in which they are asked, with commas; default: the tasks' own."
)
_CONTRACTS = typer.Option(None, "--contracts", help="Only jobs of these contracts, with commas; default: of all.")
_CONCURRENCY = typer.Option(50, "--concurrency", min=1, max=10_000, help="How many jobs at a time.")
_PROCESSES = typer.Option(1, "--processes", min=1, max=256, help="How many worker processes, each with that many jobs.")
_NAME = typer.Option(None, "--name", help="The worker's name; default host:pid.")
_POLL = typer.Option(
    1.0, "--poll", min=0.01, max=3_600, help="Seconds between two looks for jobs when no wake-up comes."
)
_GRACE = typer.Option(30.0, "--grace", min=0, help="Seconds that running jobs get to end after SIGTERM.")
_UPKEEP = typer.Option(True, "--upkeep/--no-upkeep", help="Whether upkeep runs beside the worker.")
_WAKEUPS = typer.Option(True, "--wakeups/--no-wakeups", help="Whether to listen for wake-ups.")
_UNTIL_IDLE = typer.Option(False, "--until-idle", help="End when nothing is due.")
_DATABASE = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_DISPATCHER = typer.Option(
    None, "--dispatcher", help="Work through this dispatcher, without a database; default TENURE_DISPATCHER_URL."
)
_KEY = typer.Option(
    None, "--key", help="The key to show to the dispatcher; better in TENURE_KEY, where ps cannot see it."
)
_LEVEL = typer.Option("info", "--log-level", help="How much to tell: debug, info, warning or error.")

#: A worker process that ended by itself is begun again after so long.
_AGAIN_S = 1.0


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker")(worker)


def worker(
    application: str = _APP,
    queues: str | None = _QUEUES,
    contracts: str | None = _CONTRACTS,
    concurrency: int = _CONCURRENCY,
    processes: int = _PROCESSES,
    name: str | None = _NAME,
    poll: float = _POLL,
    grace: float = _GRACE,
    upkeep: bool = _UPKEEP,
    wakeups: bool = _WAKEUPS,
    until_idle: bool = _UNTIL_IDLE,
    database_url: str | None = _DATABASE,
    dispatcher: str | None = _DISPATCHER,
    key: str | None = _KEY,
    log_level: str = _LEVEL,
) -> None:
    """Run the tasks of an application until SIGTERM or Ctrl-C; a second signal ends it at once."""
    tell(log_level)
    _set_out(database_url, dispatcher, key)
    app = found(application)
    if (given := Settings.load().dispatcher_url) is not None and app.settings.dispatcher_url != given:
        raise BadInput(
            f"{application} does not go through the dispatcher at {given}: it was made with settings of its own. "
            "Next: let App() read them from the environment"
        )
    if app.settings.dispatcher_url is None:
        with told_if_made():
            app.database_url()
    if processes > 1:
        raise typer.Exit(_several(processes, name))
    app.run_worker(
        queues=_split(queues), contracts=_split(contracts), concurrency=concurrency, name=name, poll=poll, grace=grace,
        upkeep=upkeep, wakeups=wakeups, until_idle=until_idle,
    )  # fmt: skip


def _set_out(database_url: str | None, dispatcher: str | None, key: str | None) -> None:
    """Let the application find what was given here where it looks for it, and its processes too."""
    if database_url and dispatcher:
        raise BadInput("--database-url and --dispatcher exclude each other: a worker goes to one of the two")
    dispatcher, key = address("--dispatcher", dispatcher), bearer("--key", key)
    if key and not (dispatcher or Settings.load().dispatcher_url):
        raise BadInput("--key is shown to a dispatcher. Next: give --dispatcher too")
    given = {"DATABASE_URL": database_url, "TENURE_DISPATCHER_URL": dispatcher, "TENURE_KEY": key}
    os.environ.update({name: value for name, value in given.items() if value})
    if database_url:
        os.environ.pop("TENURE_DISPATCHER_URL", None)


def found(application: str) -> App:
    """The application of this name; says what is there instead."""
    from tenure.app import App

    value = imported(application)
    if not isinstance(value, App):
        raise BadInput(f"{application} is a {type(value).__name__}, not an App. Next: name it as module:app")
    if not value.tasks:
        raise BadInput(f"{application} has no tasks. Next: import the modules that declare them where the app is made")
    return value


def tell(level: str) -> None:
    """Log to stderr, a readable line each."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise BadInput(f"--log-level is debug, info, warning or error, not {level!r}")
    if number > logging.DEBUG:
        # One line for each request, and for each try to connect, would hide what is ours to tell.
        for chatty, least in (
            ("httpx2", logging.WARNING),
            ("httpcore2", logging.WARNING),
            ("psycopg.pool", logging.CRITICAL),
        ):
            logging.getLogger(chatty).setLevel(least)
    logging.basicConfig(level=number, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")


def _split(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _several(processes: int, name: str | None) -> int:
    """Run so many of this command, one process each; begin again what ends by itself, and pass signals on."""
    arguments = _without(sys.argv[1:], "--processes", "--name")
    children: list[subprocess.Popen[bytes]] = []
    stopping: list[int] = []

    def begin(n: int) -> subprocess.Popen[bytes]:
        named = ["--name", f"{name}-{n}"] if name else []
        return subprocess.Popen([sys.executable, "-m", "tenure", *arguments, *named])

    def stop(number: int, _: object) -> None:
        stopping.append(number)
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    children += [begin(n) for n in range(1, processes + 1)]
    while not stopping and any(child.poll() != 0 for child in children):
        time.sleep(0.2)
        for n, child in enumerate(children, 1):
            if child.poll() not in (None, 0) and not stopping:
                logging.getLogger("tenure.worker").error("worker process %d ended with %s", n, child.returncode)
                time.sleep(_AGAIN_S)
                children[n - 1] = begin(n)
    for child in children:  # also those that were begun while the signal came
        if stopping and child.poll() is None:
            child.send_signal(stopping[0])
    # One that had hardly begun when the signal came ends by it, or by the Ctrl-C that it is taken for, as was asked.
    numbers = [*stopping, signal.SIGINT] if stopping else []
    as_asked = {0, *(-number for number in numbers), *stopping, *(128 + number for number in stopping)}
    return max(0 if (code := child.wait()) in as_asked else abs(code) for child in children)


def _without(arguments: list[str], *options: str) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        elif not argument.startswith(tuple(f"{option}=" for option in options)):
            kept.append(argument)
    return kept
