"""One way for failures: outside the queue nothing in the product calls the store's own verbs for them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tenure

SOURCES = Path(tenure.__file__).parent
#: The store itself, the queue, and the tools that replay histories against the store.
ALLOWED = ("postgres/", "proof/", "queue.py")


#: They report any verb to the store, and failures to `HolderReports` before; planted bugs show that tests notice.
ROUTE_FAILURES = {"client/direct.py", "http/job_calls.py"}


def reports_a_failure(node: ast.AST) -> bool:
    """Whether this calls `store.fail`, or `store.report` or `report_one` with "fail" or a verb known at run time."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    named = getattr(owner, "attr", getattr(owner, "id", "")).strip("_")
    if node.func.attr in ("report", "report_one") and named == "store":
        verb = node.args[0] if node.args else None
        return not isinstance(verb, ast.Constant) or verb.value == "fail"
    return node.func.attr == "fail" and named == "store"


@pytest.mark.req("S3-24")
def test_only_the_queue_reports_failures_to_the_store() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if any(map(reports_a_failure, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert {name for name in found if not name.startswith(ALLOWED)} == ROUTE_FAILURES
