"""The command line: one module for each command or group of commands.

Data goes to stdout, notes and progress to stderr, `--json` prints the data as JSON. Exit codes: 0 done, 1 refused or
failed (the message starts with its code), 2 a wrong call. Only the module of the command that runs is imported, and a
command imports what it needs when it runs: `tenure --help` loads no library but typer.

    services/     worker, serve, upkeep, dev: they run until they are stopped
    jobs/  contracts/  dlq  queues  schedules  flows  workers  types  keys  outbox  alarms   groups of commands
    migrate  enqueue  doctor  verify (and replay)  demo  openapi  conformance   single commands
    command_table                                             the names of all commands, and their modules
    command  options  output  import_target                   shared by the commands
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from tenure import __version__
from tenure.cli.command_table import COMMANDS, GROUPS, CommandTable
from tenure.errors import TenureError

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    cls=CommandTable,
    name="tenure",
    help="Durable jobs on PostgreSQL: held under a lease, moved by a contract.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 110},
)
for _name, _line in {name: line for table in (COMMANDS, GROUPS) for name, (line, _) in table.items()}.items():
    app.command(_name, help=_line)(lambda: None)  # CommandTable puts the real one in its place


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def _tenure(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> int:
    """Run the command line; returns the exit code."""
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # Like Ctrl-C, which a running event loop turns into a cancellation: every started part stops in order.
        signals.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(number, frame)

    signal.signal(signal.SIGTERM, stop)
    try:
        app(standalone_mode=True)
    except TenureError as error:
        if not signals:
            from tenure.cli.output import note_error

            note_error(error)
        code = 1
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    else:
        code = 0
    return 128 + signals[0] if signals else code
