"""The command line: one module for each command or group of commands.

Data goes to stdout, notes and progress to stderr, `--json` prints the data as JSON. Exit codes: 0 done, 1 refused or
failed (the message starts with its code), 2 a wrong call. A command imports what it needs when it runs, so
`tenure --help` loads no database driver.

    services/     worker, serve, upkeep, dev: they run until they are stopped
    jobs/  contracts/  dlq  queues  workers  types  keys  outbox   groups of commands
    migrate  enqueue  verify (and replay)  demo  openapi  conformance      single commands
    command  options  output  import_target                   shared by the commands
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tenure import __version__
from tenure.cli import (
    conformance,
    contracts,
    demo,
    dlq,
    enqueue,
    keys,
    migrate,
    openapi,
    outbox,
    queues,
    types,
    verify,
    workers,
)
from tenure.cli.contracts.verify import verify as verify_contracts
from tenure.cli.jobs import change, read
from tenure.cli.output import note_error
from tenure.cli.services import dev, serve, upkeep, worker
from tenure.errors import TenureError

if TYPE_CHECKING:
    from types import FrameType

_COMMANDS = (
    migrate.migrate, demo.demo, dev.dev, verify.verify, verify.replay, worker.worker, enqueue.enqueue, upkeep.upkeep,
    serve.serve, openapi.openapi,
    conformance.conformance,
)  # fmt: skip
#: Group → its help and its commands; `list_` is the command `list`.
_GROUPS: dict[str, tuple[str, tuple[Callable[..., None], ...]]] = {
    "contracts": (
        "List, show, draw, compare and verify contracts.",
        (verify_contracts, contracts.list_, contracts.show, contracts.diagram, contracts.diff),
    ),
    "jobs": (
        "List and show jobs, explain their state, cancel, move or rerun them.",
        (read.list_, read.show, read.events, read.why, change.cancel, change.transition, change.requeue, change.move),
    ),
    "dlq": (
        "Dead letters: jobs that were set aside with their reason.",
        (dlq.list_, dlq.show, dlq.requeue, dlq.discard, dlq.approve),
    ),
    "queues": ("List queues, pause and resume them.", (queues.list_, queues.pause, queues.resume)),
    "workers": ("List the workers.", (workers.list_,)),
    "outbox": (
        "Wake-ups for message queues: list those that are not published, and retry.",
        (outbox.list_, outbox.retry),
    ),
    "types": ("List, show and reset the options of job types.", (types.list_, types.show, types.reset)),
    "keys": ("API keys for the dispatcher: create, list, revoke.", (keys.create, keys.list_, keys.revoke)),
}
app = typer.Typer(
    name="tenure",
    help="Durable jobs on PostgreSQL: held under a lease, moved by a contract.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in _COMMANDS:
    app.command()(_command)
for _name, (_help, _members) in _GROUPS.items():
    _group = typer.Typer(no_args_is_help=True, help=_help)
    app.add_typer(_group, name=_name)
    for _command in _members:
        _group.command(_command.__name__.rstrip("_"))(_command)


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
            note_error(error)
        code = 1
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    else:
        code = 0
    return 128 + signals[0] if signals else code
