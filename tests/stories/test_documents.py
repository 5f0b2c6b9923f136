"""Every snippet in the documents runs, on a PostgreSQL of its own, in a directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Snippets may use `await` at the top level, as `python -m asyncio` allows.
_RUN = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
space = {"__name__": "__main__"}
async def body():
    await eval(code, space)
asyncio.run(body()) if code.co_flags & inspect.CO_COROUTINE else exec(code, space)
"""


def snippets(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL)


def documents() -> list[str]:
    found = [path for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if snippets(path)]
    return [str(path.relative_to(ROOT)) for path in found]


def run(code: str, name: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _RUN, name], input=code, text=True, capture_output=True, cwd=directory, timeout=60
    )


@pytest.mark.parametrize("name", documents())
def test_snippets_of_a_document_run_in_order(name: str, tmp_path: Path) -> None:
    done = run("\n".join(snippets(ROOT / name)), name, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_tutorial_can_be_pasted_into_the_interpreter_it_names(tmp_path: Path) -> None:
    code = "\n".join(snippets(ROOT / "docs" / "tutorial.md"))
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"], input=code, text=True, capture_output=True, cwd=tmp_path, timeout=60
    )
    assert "Error" not in done.stderr


def test_a_broken_snippet_would_be_noticed(tmp_path: Path) -> None:
    assert run("assert await __import__('asyncio').sleep(0, 1) == 2", "broken", tmp_path).returncode != 0


def test_the_readme_tells_of_a_retry_and_of_a_late_call_that_is_refused(tmp_path: Path) -> None:
    (code,) = snippets(ROOT / "README.md")
    done = run(code, "README.md", tmp_path)
    assert done.stdout.startswith("queued True ")
    assert done.stdout.endswith("LEASE_CONFLICT\n")
