"""What a program or a command imports before it does anything: judged by the modules, never by the time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tenure.cli.command_table import COMMANDS, GROUPS

LIBRARIES = {"psycopg", "psycopg_pool", "pydantic", "rich", "starlette", "uvicorn", "uvloop", "httpx2", "cronsim"}
MODULES = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
COMMAND = "from tenure.cli import main; sys.exit(main())"


def started(program: str, *arguments: str, **environ: str) -> tuple[str, set[str]]:
    """Run a program in a Python of its own: what it prints, and the modules that it has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES + program, *arguments], capture_output=True, text=True, check=True,
        env={**os.environ, **environ},
    )  # fmt: skip
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_help_loads_no_library_but_typer_and_no_command(arguments: list[str]) -> None:
    printed, modules = started(COMMAND, *arguments)
    assert printed
    assert "typer" in modules
    assert modules & (LIBRARIES - {"pydantic"}) == set()
    assert "asyncio" not in modules
    assert {name for name in modules if name.startswith("tenure.cli.")} == {"tenure.cli.command_table"}
    if arguments == ["--help"]:  # typer reads options with pydantic
        assert "pydantic" not in modules


@pytest.mark.parametrize("command", ["jobs", "jobs list", "serve"])
def test_help_of_a_command_loads_that_command_only(command: str) -> None:
    arguments = [*command.split(), "--help"]
    printed, modules = started(COMMAND, *arguments)
    assert f"Usage: -c {command}" in printed
    assert modules & (LIBRARIES - {"pydantic"}) == set()  # typer reads options with pydantic
    loaded = {name.split(".")[2] for name in modules if name.startswith("tenure.cli.")}
    shared = {"command_table", "command", "options", "output", "import_target", "bulk"}
    assert loaded - shared == {"jobs" if "jobs" in arguments else "services"}


def test_no_command_loads_a_driver_a_server_or_the_diagrams_before_it_runs() -> None:
    _, modules = started(
        "from tenure.cli.command_table import *\nfor name in [*COMMANDS, *GROUPS]: load_command(name)\n"
        "for group in GROUPS:\n for name in load_command(group).commands: load_member(group, name)"
    )
    unwanted = LIBRARIES - {"pydantic"} | {"tenure.contracts.diagram", "tenure.contracts.versions"}
    assert modules & unwanted == set()
    assert "tenure.cli.jobs.change" in modules


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tenure jo", ["jobs"]),
        ("tenure jobs req", ["requeue"]),
        ("tenure jobs list --que", ["--queue"]),
        ("tenure serve --po", ["--port"]),
        ("tenure ", [*COMMANDS, *GROUPS]),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, expected: list[str]) -> None:
    program = "import sys; sys.argv[0] = 'tenure'\n" + COMMAND
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    printed, modules = started(program, _TENURE_COMPLETE="complete_bash", **asked)
    assert printed.split() == expected
    assert modules & (LIBRARIES - {"pydantic"}) == set()


def test_every_line_of_the_help_is_shown_in_full(at_once: Callable[..., tuple[int, str, str]]) -> None:
    _, printed, _ = at_once("--help")
    lines = {name: line for table in (COMMANDS, GROUPS) for name, (line, _) in table.items()}
    width = max(map(len, lines))
    for name, line in lines.items():
        assert f"  {name:<{width}}  {line}\n" in printed


@pytest.mark.parametrize("arguments", [["jbs"], ["jobs", "lst"]], ids=" ".join)
def test_a_misspelt_command_is_refused_with_the_one_that_exists(
    at_once: Callable[..., tuple[int, str, str]], arguments: list[str]
) -> None:
    code, _, told = at_once(*arguments)
    assert code == 2
    assert f"Did you mean {'list' if len(arguments) > 1 else 'jobs'!r}?" in told


def test_importing_the_package_loads_no_library() -> None:
    _, modules = started("import tenure")
    assert {name for name in modules if name.startswith("tenure")} == {"tenure"}
    assert modules & {*LIBRARIES, "typer", "asyncio"} == set()


def test_an_application_and_its_tasks_load_neither_a_driver_nor_a_server() -> None:
    task = "@app.task(queue='mail')\nasync def send(to: str) -> int: return 1"
    _, modules = started(f"import tenure\napp = tenure.App(embedded=False)\n{task}")
    assert "tenure.app" in modules
    assert modules & {*LIBRARIES, "typer"} == set()
    assert not [name for name in modules if name.startswith(("tenure.postgres", "tenure.worker", "tenure.http"))]
