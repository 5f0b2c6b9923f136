"""The parts of libraries that Tenure overrides or reads without their documentation's promise.

A failure here means that a new version of the library has changed such a part: read what changed, adapt the file that
the message names, and only then raise the cap in pyproject.toml.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path

import uvicorn
from packaging.requirements import Requirement
from typer.core import TyperGroup
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tenure.cli.command_table import CommandTable
from tenure.http import dispatcher
from tenure.http.protocol_limits import LimitedProtocol

ROOT = Path(__file__).resolve().parents[2]
#: Private by their names, documented or the only way: of named tuples, and of the standard library.
KNOWN = {"_asdict", "_fields", "_make", "_replace", "_current_frames", "_exit", "_getframe", "_get_running_loop"}
#: `ThreadPoolExecutor._threads`: the program must not end while a handler's thread still runs.
KNOWN |= {"_threads"}


def own_names(kind: type) -> set[str]:
    """The names that a class defines itself."""
    return {name for name in vars(kind) if not name.startswith("__")}


def named(text: str, of: str) -> set[str]:
    """The attributes of this object that a source names."""
    return set(re.findall(rf"(?<![\w.]){re.escape(of)}\.(\w+)", text))


def test_uvicorns_connection_still_has_what_the_limits_build_on() -> None:
    used = named(inspect.getsource(LimitedProtocol), "self") - own_names(LimitedProtocol)
    base = inspect.getsource(HttpToolsProtocol)
    there = named(base, "self") | own_names(HttpToolsProtocol)
    assert {"timeout_keep_alive_task", "pipeline", "flow", "cycle", "parser"} <= used
    assert used - there == set(), "src/tenure/http/protocol_limits.py"
    assert [name for name in used if name.startswith("_")] == [], "a private name of uvicorn"
    of_cycle = named(inspect.getsource(LimitedProtocol), "cycle") | named(
        inspect.getsource(LimitedProtocol), "self.cycle"
    )
    assert of_cycle == {"response_complete", "response_started", "keep_alive"}
    assert of_cycle <= named(inspect.getsource(RequestResponseCycle), "self")


def test_uvicorns_connection_still_calls_what_the_limits_override() -> None:
    overridden = own_names(LimitedProtocol) & own_names(HttpToolsProtocol)
    assert {
        "connection_lost", "connection_made", "data_received", "on_body", "on_header", "on_headers_complete",
        "on_message_begin", "on_message_complete", "on_response_complete", "pause_writing", "resume_writing",
        "send_400_response", "shutdown", "timeout_keep_alive_handler",
    } == overridden, "src/tenure/http/protocol_limits.py"  # fmt: skip
    for name in overridden:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (LimitedProtocol, HttpToolsProtocol))
        assert [*ours.parameters] == [*theirs.parameters], name
    called = inspect.getsource(HttpToolsProtocol)
    assert "self.send_400_response(" in called
    assert "self.timeout_keep_alive_handler" in called
    assert "on_response=self.on_response_complete" in called


def test_uvicorns_server_still_has_what_the_dispatcher_uses() -> None:
    server = named(inspect.getsource(uvicorn.Server), "self") | own_names(uvicorn.Server)
    used = named(inspect.getsource(dispatcher), "server") | named(inspect.getsource(dispatcher), "self._server")
    assert {"should_exit", "force_exit", "started", "server_state", "serve"} <= used
    assert used - server == set(), "src/tenure/http/dispatcher.py"
    assert "with self.capture_signals():" in inspect.getsource(uvicorn.Server.serve)
    assert hasattr(ServerState(), "tasks")


def test_typers_group_still_resolves_commands_through_the_method_that_loads_them() -> None:
    ours, theirs = (inspect.signature(kind.resolve_command) for kind in (CommandTable, TyperGroup))
    assert [*ours.parameters] == [*theirs.parameters], "src/tenure/cli/command_table.py"
    assert "self.resolve_command(" in inspect.getsource(TyperGroup)


def test_the_versions_of_overridden_libraries_are_capped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    capped = {one.name for one in map(Requirement, wanted) if any(each.operator == "<" for each in one.specifier)}
    assert {"uvicorn", "typer"} <= capped


def test_no_other_private_name_of_a_library_is_used() -> None:
    """Names that Tenure itself defines somewhere are taken for its own."""
    defined, used = set[str](), dict[str, str]()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
                if isinstance(node.ctx, ast.Store):
                    defined.add(node.attr)
                else:
                    used[node.attr] = f"{path.relative_to(ROOT)}:{node.lineno}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                defined |= {alias.asname or alias.name for alias in node.names if alias.name.startswith("_")}
    assert {where for name, where in used.items() if name not in defined | KNOWN} == set()
