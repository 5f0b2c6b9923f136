"""The catalogue of mutants fits the sources: a bug that cannot be planted, or whose killer is gone, proves nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tests.mutants import run
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, SOUNDNESS, Mutant

PROOF = ROOT / "docs" / "explanation" / "proof.md"
FEWEST = 30


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of the functions in a file below tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_sources_and_its_killers_exist(mutant: Mutant) -> None:
    assert mutant.line() > 0
    assert mutant.killers
    for killer in mutant.killers:
        if killer == SOUNDNESS:
            assert mutant.file.startswith("contracts/"), "only a contract is refused at import"
            assert mutant.killers == (SOUNDNESS,)
        else:
            file, _, test = killer.partition("::")
            assert test.partition("[")[0] in names_in(file)


def test_no_mutant_is_only_a_name_that_does_not_exist(tmp_path: Path) -> None:
    in_python = [mutant for mutant in MUTANTS if mutant.file.endswith(".py")]
    for mutant in in_python:
        (tmp_path / f"{mutant.name}.py").write_text(mutant.planted(), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--target-version=py311", "--select=F821,E9", "."]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert len(in_python) > FEWEST


def test_pytest_finds_every_killer_with_its_parameters() -> None:
    nodes = list(dict.fromkeys(node for mutant in MUTANTS for node in mutant.nodes))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *nodes]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    collected = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert collected.returncode == 0, collected.stderr


def test_there_are_enough_mutants_and_no_two_of_one_name_or_bug() -> None:
    assert len(MUTANTS) >= FEWEST
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    bugs = Counter((mutant.file, mutant.find, mutant.put) for mutant in MUTANTS)
    assert [bug for bug, times in bugs.items() if times > 1] == []


def test_every_contract_has_a_mutant() -> None:
    assert {f"contracts/{name}.py" for name in BUILT_IN} <= {mutant.file for mutant in MUTANTS}


def test_the_page_shows_the_catalogue() -> None:
    page = PROOF.read_text()
    assert run.markdown(MUTANTS) in page, "python -m tests.mutants.run --markdown prints what belongs there"


def seen(kind: str, text: str = "", sqlstate: str | None = None, where: str = "tests/test_x.py") -> dict[str, Any]:
    """A test that failed by this error."""
    error = {"kinds": f"{kind} builtins.Exception", "sqlstate": sqlstate, "text": text}
    return {"node": "tests/test_x.py::test_y", "phase": "call", "outcome": "failed", "errors": [error],
            "where": str(ROOT / where)}  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "judged"),
    [
        (seen("builtins.AssertionError", "assert 1 == 2"), True),
        (seen("builtins.Failed", "DID NOT RAISE StaleLease"), True),
        (seen("tenure.errors.StaleLease"), True),
        (seen("builtins.ValueError", "too many values to unpack (expected 1)"), True),
        (seen("builtins.ValueError", "too many values to unpack (expected 1)", where="src/tenure/jobs/job.py"), False),
        (seen("subprocess.TimeoutExpired", "timed out after 60 seconds", where="lib/subprocess.py"), True),
        (seen("builtins.Failed", "Timeout (>60.0s) from pytest-timeout."), False),
        (seen("builtins.NameError", "name 'x' is not defined"), False),
        (seen("psycopg.errors.SyntaxError psycopg.Error", sqlstate="42601"), False),
    ],
)
def test_only_what_a_test_judged_counts_as_a_kill(failed: dict[str, Any], judged: bool) -> None:
    assert run.is_judgement(failed) is judged
    assert (run.lives(run.Run(1, "", [failed]), "tests/test_x.py::test_y") is None) is judged


@pytest.mark.parametrize(
    ("code", "testimony"),
    [
        (0, [{**seen(""), "outcome": "passed"}]),
        (1, [{**seen("builtins.AssertionError"), "phase": "setup"}]),
        (1, [{**seen("builtins.AssertionError"), "node": "tests/test_x.py::test_other"}]),
        (2, [{**seen(""), "phase": "collect", "node": "tests/test_x.py"}]),
        (4, []),
    ],
)
def test_a_mutant_lives_when_its_killer_passes_or_does_not_run(code: int, testimony: list[dict[str, Any]]) -> None:
    assert run.lives(run.Run(code, "", testimony), "tests/test_x.py::test_y") is not None
