"""One way for failures: outside the queue nothing in the product calls the store's own verbs for them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tenure

SOURCES = Path(tenure.__file__).parent
#: The store itself, the queue, and the tools that replay histories against the store.
ALLOWED = ("postgres/", "proof/", "queue.py")


def reports_a_failure(node: ast.AST) -> bool:
    """Whether this is a call of `store.fail`, `store.fail_many` or `….report("fail", …)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    named = getattr(owner, "attr", getattr(owner, "id", "")).strip("_")
    if node.func.attr == "report":
        return any(isinstance(given, ast.Constant) and given.value == "fail" for given in node.args)
    return node.func.attr == "fail_many" or (node.func.attr == "fail" and named == "store")


@pytest.mark.req("S3-24")
def test_only_the_queue_reports_failures_to_the_store() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if any(map(reports_a_failure, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert "queue.py" in found
    assert [name for name in sorted(found) if not name.startswith(ALLOWED)] == []
