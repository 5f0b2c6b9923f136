"""`./dev`: its words for parts of the tests, and the stages that must fail."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev() -> Any:
    """`./dev` as a module."""
    spec = spec_from_loader("dev_command", SourceFileLoader("dev_command", str(ROOT / "dev")))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("content", ["", "# only a comment\n", None])
def test_an_emptied_list_of_what_must_be_proven_fails(dev: Any, tmp_path: Path, content: str | None) -> None:
    dev.MUST_BE_PROVEN = tmp_path / "must_be_proven.txt"
    if content is not None:
        dev.MUST_BE_PROVEN.write_text(content)
    stages = dev.Stages()
    dev.check_requirements(stages, tmp_path / "proven")
    assert stages.rows == [("requirements", 0.0, "failed")]


def test_a_requirement_that_was_not_proven_fails(dev: Any, tmp_path: Path) -> None:
    dev.MUST_BE_PROVEN = tmp_path / "must_be_proven.txt"
    dev.MUST_BE_PROVEN.write_text("S0-01\nS0-02\n")
    proven = tmp_path / "proven"
    for content, result in (("S0-01\n", "failed"), ("S0-01\nS0-02\n", "ok")):
        proven.write_text(content)
        stages = dev.Stages()
        dev.check_requirements(stages, proven)
        assert stages.rows == [("requirements", 0.0, result)]


def test_every_long_test_belongs_to_a_part_of_prove(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(dev.Stages, "run", lambda _, name, command, **environment: commands.append(command))
    stages = dev.Stages()
    for _, run in dev.PROVE_PARTS.values():
        run(stages)
    run_by_parts = {argument for command in commands for argument in command if argument.startswith("tests/")}
    marked = "pytest.mark.prove"
    long = {path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py") if marked in path.read_text()}
    assert len(long) > 15
    assert {"/".join(path.parts[:2]) for path in long} <= run_by_parts


def test_the_parts_are_listed_with_what_they_show(dev: Any) -> None:
    listed = subprocess.run(
        [sys.executable, str(ROOT / "dev"), "prove", "--list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(dev.PROVE_PARTS)
    assert all(len(line.split()) > 3 for line in listed)


def test_parts_run_by_name_and_other_arguments_go_to_pytest(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: str) -> int:
        ran.append(command)
        return 0

    monkeypatch.setattr(dev, "setup", lambda **_: None)
    monkeypatch.setattr(dev, "run", run)
    assert dev.command_prove(["races", "mutants"]) == 0
    assert [command[-1] for command in ran] == ["tests/races", "tests.mutants.run"]
    assert dev.command_prove(["tests/faults", "-x"]) == 0
    assert ran[-1][-2:] == ["tests/faults", "-x"]


def test_quick_names_tests_that_exist(dev: Any) -> None:
    assert len(dev.QUICK) > 3
    assert [name for name in dev.QUICK if not (ROOT / name).exists()] == []
