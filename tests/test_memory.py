"""The directory in memory for the tests' PostgreSQL: of killed runs nothing stays, of living ones everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import memory


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an empty directory stand for memory, and any machine have enough of it."""
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "NEEDED", 0)


def test_a_killed_runs_directory_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f"tenure-tests-{ended.pid}-abc"
    (left / "cluster").mkdir(parents=True)
    foreign = tmp_path / "PostgreSQL.123"
    foreign.touch()
    first, second = memory.directory(), memory.directory()
    assert first is not None
    assert second is not None
    assert set(tmp_path.iterdir()) == {Path(first), Path(second), foreign}


@pytest.mark.parametrize("missing", ["memory", "file system"])
def test_without_memory_there_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(memory, "NEEDED", 1 << 60 if missing == "memory" else 1)
    if missing == "file system":
        monkeypatch.setattr(memory, "MEMORY", tmp_path / "none")
    assert memory.directory() is None
    assert list(tmp_path.iterdir()) == []
