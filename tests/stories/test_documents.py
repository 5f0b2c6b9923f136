"""Every snippet in the documents runs, on a PostgreSQL of its own, in a directory of its own.

A page's snippets are one program, in order. One that begins with a file's name in a comment (`# shop.py`) is that file:
it is run by itself, with pytest where it is a test, and the others can import it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tenure.embedded import Cluster
from tests.installed import with_plugin

ROOT = Path(__file__).parents[2]
#: Pages for people who never saw Tenure: a type checker accepts what they are told to write.
TYPED = ("README.md", "docs/guide.md", "docs/flows.md", "docs/datasets.md", "docs/own-contract.md")

# Snippets may use `await` at the top level, as `python -m asyncio` allows.
_RUN = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
space = {"__name__": "__main__"}
async def body():
    await eval(code, space)
asyncio.run(body()) if code.co_flags & inspect.CO_COROUTINE else exec(code, space)
"""
_FILE = re.compile(r"# (\w+\.py)\n")


def snippets(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL)


def documents() -> list[str]:
    found = [path for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if snippets(path)]
    return [str(path.relative_to(ROOT)) for path in found]


def laid_out(name: str, directory: Path) -> tuple[list[Path], str]:
    """Write a page's files to a directory; them, and the program that the other snippets are."""
    files, program = [], []
    for code in snippets(ROOT / name):
        if named := _FILE.match(code):
            files.append(directory / named[1])
            assert not files[-1].exists(), f"two snippets are {named[1]}"
            files[-1].write_text(code, encoding="utf-8")
        else:
            program.append(code)
    return files, "\n".join(program)


def python(directory: Path, *arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python there as a user would who has installed Tenure: with no address of a database."""
    return subprocess.run(
        [sys.executable, *arguments],
        input=code, text=True, capture_output=True, cwd=directory, env=with_plugin(directory / "site"), timeout=100,
    )  # fmt: skip


def run(code: str, name: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return python(directory, "-c", _RUN, name, code=code)


def run_files(files: list[Path], directory: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run each file of a page by itself; what each said."""
    said = {}
    for file in files:
        how = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if file.name.startswith("test_") else []
        said[file.name] = done = python(directory, *how, file.name)
        assert done.returncode == 0, f"{file.name}: {done.stdout}{done.stderr}"
    return said


@pytest.mark.parametrize("name", [name for name in documents() if name != "README.md"])
def test_snippets_of_a_document_run_in_order(name: str, tmp_path: Path) -> None:
    files, program = laid_out(name, tmp_path)
    run_files(files, tmp_path)
    done = run(program, name, tmp_path)
    assert done.returncode == 0, done.stderr
    if name == "docs/reference/store.md":
        assert done.stdout.startswith("queued True ")  # as its comments say
        assert done.stdout.endswith("LEASE_CONFLICT\n")


def test_the_readme_runs_as_it_is_and_so_does_its_worker(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files, program = laid_out("README.md", tmp_path)
    assert (files[0].name, program) == ("hello.py", "")
    with Cluster(tmp_path / ".tenure"):  # started once for all of them
        said = run_files(files, tmp_path)
        (command,) = re.findall(r"^\$ tenure (worker .*)$", text, flags=re.MULTILINE)
        worked = python(tmp_path, "-m", "tenure", *shlex.split(command), "--until-idle")
    assert f"it prints `{said['hello.py'].stdout.strip()}`" in text
    assert said["hello.py"].stderr == ""
    assert worked.returncode == 0, worked.stderr
    assert "works on mail, default, 50 at a time" in worked.stderr


def test_the_tutorial_can_be_pasted_into_the_interpreter_it_names(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "asyncio", code="\n".join(snippets(ROOT / "docs" / "tutorial.md")))
    assert "Error" not in done.stderr


def test_a_broken_snippet_would_be_noticed(tmp_path: Path) -> None:
    assert run("assert await __import__('asyncio').sleep(0, 1) == 2", "broken", tmp_path).returncode != 0


def test_a_type_checker_accepts_the_snippets_and_would_notice_a_wrong_one(tmp_path: Path) -> None:
    checked = []
    for name in TYPED:
        files, program = laid_out(name, tmp_path)
        page = tmp_path / f"{Path(name).stem.lower()}_page.py"
        page.write_text(f"async def page() -> None:\n    ...\n{indent(program, '    ')}", encoding="utf-8")
        checked += [*files, page]
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from bakery import bake\n\nbake.enqueue_sync(7)\n", encoding="utf-8")
    options = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, [*checked, wrong])],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "MYPYPATH": str(tmp_path)}, timeout=100,
    )  # fmt: skip
    lines = said.stdout.splitlines()
    assert [line for line in lines if not line.startswith(f"{wrong}:")] == []
    assert [line for line in lines if line.startswith(f"{wrong}:3: error")], said.stdout + said.stderr
