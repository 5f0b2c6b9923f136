"""The command line: one file per group of commands, each a thin edge over the rooms behind it.

Data goes to stdout, progress to stderr, `--json` gives the data for programs. Exit codes: 0 done, 1 refused or failed
(the message starts with its code), 2 a wrong call. What a command needs is imported when it runs, so that
`tenure --help` does not load a database driver.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import typer

from tenure import __version__
from tenure.cli import (
    contracts,
    demo,
    dev,
    dlq,
    enqueue,
    jobs,
    keys,
    migrate,
    openapi,
    proving,
    queues,
    serve,
    upkeep,
    worker,
)
from tenure.cli.shown import refusal
from tenure.errors import TenureError

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    name="tenure",
    help="Durable jobs on PostgreSQL: held under a lease, moved by a contract.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
migrate.add_to(app)
demo.add_to(app)
dev.add_to(app)
contracts.add_to(app)
proving.add_to(app)
jobs.add_to(app)
dlq.add_to(app)
worker.add_to(app)
enqueue.add_to(app)
queues.add_to(app)
keys.add_to(app)
upkeep.add_to(app)
serve.add_to(app)
openapi.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _tenure(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> int:
    """Run the command line; the exit code."""
    stopped_by: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # As Ctrl-C does, which a running event loop turns into a cancellation: what was started is stopped in order.
        stopped_by.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(number, frame)

    signal.signal(signal.SIGTERM, stop)
    try:
        app(standalone_mode=True)
    except TenureError as error:
        if not stopped_by:
            print(": ".join(refusal(error)), file=sys.stderr)
        code = 1
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    else:
        code = 0
    return 128 + stopped_by[0] if stopped_by else code
