"""The names of all commands, one line about each, and their modules.

`tenure --help` prints the lines; a module is imported when its command or group is called, asked for help or completed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

#: Command → its line in `tenure --help`, and module:function; the function's docstring is its own help.
COMMANDS: dict[str, tuple[str, str]] = {
    "migrate": ("Create or upgrade the schema and register the contracts.", "migrate:migrate"),
    "demo": ("Run jobs, kill workers, and check that nothing was lost.", "demo:demo"),
    "dev": ("Run everything on this machine: database, API, worker.", "services.dev:dev"),
    "doctor": ("Name what is wrong, and the next command for it.", "doctor:doctor"),
    "verify": ("Audit a live database against its contracts.", "verify:verify"),
    "stats": ("Show what the jobs of each type did.", "stats:stats"),
    "top": ("Watch what jobs do, in the terminal.", "top:top"),
    "replay": ("Run recorded jobs again and compare.", "verify:replay"),
    "worker": ("Run the tasks of an application.", "services.worker:worker"),
    "enqueue": ("Create a job.", "enqueue:enqueue"),
    "upkeep": ("Reap expired leases, promote due jobs, drop old history.", "services.upkeep:upkeep"),
    "serve": ("Serve the HTTP API and the dashboard.", "services.serve:serve"),
    "conformance": ("Check a server, or a worker in any language.", "conformance:conformance"),
    "openapi": ("Print the OpenAPI document of the HTTP API.", "openapi:openapi"),
}
#: Group → its help, and module → its functions; the function `list_` is the command `list`.
GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "contracts": (
        "List, show, draw, compare and verify contracts.",
        {"contracts.verify": "verify", "contracts": "list_ show diagram diff"},
    ),
    "jobs": (
        "Find and explain jobs; cancel, move or rerun them.",
        {
            "jobs.read": "list_ show events why",
            "jobs.count": "count",
            "jobs.change": "cancel transition requeue move retry_now",
        },
    ),
    "dlq": ("Dead letters: jobs that were set aside.", {"dlq": "list_ show groups requeue discard approve"}),
    "operations": (
        "Changes of many jobs: list, run, abort, resume.",
        {"operations": "list_ show items run abort resume"},
    ),
    "queues": ("List queues, pause and resume them.", {"queues": "list_ pause resume"}),
    "schedules": (
        "List, pause, resume, run schedules; show what is next.",
        {"schedules": "list_ show pause resume run next_ delete"},
    ),
    "flows": ("List and draw flows, cancel and resume them.", {"flows": "list_ show cancel resume"}),
    "datasets": (
        "Versioned output of jobs: show, cut over, roll back.",
        {"datasets": "list_ show rows cutover rollback history"},
    ),
    "workers": ("List the workers, and those that are gone; show one.", {"workers": "list_ show"}),
    "alarms": ("List alarms, test their sinks, mute them.", {"alarms": "list_ test mute unmute"}),
    "outbox": ("Wake-ups for message queues: list, retry.", {"outbox": "list_ retry"}),
    "types": ("List, show and reset the options of job types.", {"types": "list_ show reset"}),
    "keys": ("Create, list and revoke API keys.", {"keys": "create list_ revoke"}),
}
#: Without rich, which alone takes longer to import than typer.
_PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}


class CommandTable(TyperGroup):
    """The root of the command line, or a group; a command is built when it is resolved, and until then has no options.

    The root imports no command. A group imports its functions, because their docstrings are its help.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name and the command that these arguments begin with, and the other arguments."""
        name, known, rest = super().resolve_command(ctx, args)
        if name is None or known is None:
            return name, known, rest
        return name, load_member(self.name, name) if self.name in GROUPS else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a command or a group of the root."""
    if name in COMMANDS:
        module, function = COMMANDS[name][1].split(":")
        return _build(name, getattr(import_module(f"tenure.cli.{module}"), function))
    group = typer.Typer(cls=CommandTable, name=name, **_PLAIN)
    group.callback(help=GROUPS[name][0], no_args_is_help=True)(lambda: None)
    for member, its_function in _members(name).items():
        group.command(member, help=its_function.__doc__)(lambda: None)
    return typer.main.get_command(group)


def load_member(group: str, name: str) -> Any:
    """Import a command of a group."""
    return _build(name, _members(group)[name])


def _members(group: str) -> dict[str, Callable[..., None]]:
    return {
        function.rstrip("_").replace("_", "-"): getattr(import_module(f"tenure.cli.{module}"), function)
        for module, functions in GROUPS[group][1].items()
        for function in functions.split()
    }


def _build(name: str, function: Callable[..., None]) -> Any:
    alone = typer.Typer(**_PLAIN)
    alone.command(name)(function)
    return typer.main.get_command(alone)
