"""The list of requirements is the whole list, and the plugin that counts proofs counts only proofs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = ROOT / "tests" / "requirements.txt"
MUST_BE_PROVEN = ROOT / "tests" / "must_be_proven.txt"
#: How many requirements the list named at its last change; raise it with the list.
PROVEN_SO_FAR = 277
DOCUMENT = ROOT.parent / "shared" / "requirements.md"


def test_there_are_305_requirements_each_once_and_sorted() -> None:
    listed = LISTED.read_text().split()
    assert len(listed) == 305
    assert listed == sorted(set(listed))


def test_the_list_is_the_documents() -> None:
    if not DOCUMENT.exists():
        pytest.skip("the requirements document is not beside this repository")
    in_document = set(re.findall(r"\*\*(S[0-4]-\d\d) \[", DOCUMENT.read_text()))
    assert set(LISTED.read_text().split()) == in_document


def test_what_must_be_proven_is_a_requirement() -> None:
    lines = [line for line in MUST_BE_PROVEN.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))
    assert set(lines) <= set(LISTED.read_text().split())


def test_the_list_of_what_must_be_proven_only_grows() -> None:
    listed = set(ids_in(MUST_BE_PROVEN.read_text()))
    assert len(listed) >= PROVEN_SO_FAR
    if not (ROOT / ".git").exists():  # a source archive has no history
        return
    committed = git("log", "--format=%H", "--", "tests/must_be_proven.txt").split()
    before = {each for commit in committed for each in ids_in(git("show", f"{commit}:tests/must_be_proven.txt"))}
    assert before - listed == set()


def ids_in(text: str) -> list[str]:
    """Return the ids of a list of one id a line with comments."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def git(*arguments: str) -> str:
    """Run git on this repository; its output."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def run_inner_pytest(directory: Path, options: list[str], **files: str) -> tuple[int, str, list[str]]:
    """Run pytest with the plugin on files of its own: its exit code, its output, the ids it handed on."""
    for name, tests in files.items():
        (directory / f"test_{name}.py").write_text(f"import pytest\n\n{tests}")
    proven = directory / "proven"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", str(directory), "--rootdir", str(directory)),
            *("-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", *options),
        ],
        cwd=ROOT,
        env={**environment, "TENURE_PROVEN": str(proven)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr, proven.read_text().split() if proven.exists() else []


PASSING_AND_OTHERWISE = """
pytestmark = pytest.mark.req("S0-01")

@pytest.mark.req("S0-02", "S0-03")
@pytest.mark.parametrize("number", [1, 2])
def test_passes(number):
    pass

class TestInside:
    @pytest.mark.req("S1-01")
    async def test_passes_too(self):
        pass

@pytest.mark.req("S2-01")
def test_skips():
    pytest.skip("not here")

@pytest.mark.req("S2-02")
@pytest.mark.xfail(strict=False)
def test_fails_as_expected():
    assert False

@pytest.mark.req("S2-03")
@pytest.mark.xfail(strict=False)
def test_passes_against_expectation():
    pass

@pytest.fixture
def broken():
    raise RuntimeError

@pytest.mark.req("S2-04")
def test_never_starts(broken):
    pass

@pytest.mark.req("S2-05")
def test_fails():
    assert False
"""


in_one_process_and_under_xdist = pytest.mark.parametrize(
    "options",
    [pytest.param([], id="in one process"), pytest.param(["-n", "2"], id="under xdist", marks=pytest.mark.prove)],
)


BY_CONTRACT = """
@pytest.mark.req("S0-01", "S1-01", "S4-01")
@pytest.mark.parametrize("contract", ["phase27", "gate_b2", "standard", "dispatcher"])
def test_some_contracts_hold(contract):
    if contract == "gate_b2":
        pytest.skip("not here")
    assert contract != "dispatcher"

@pytest.mark.req("S2-01", "S3-01")
@pytest.mark.parametrize("way", [pytest.param(1, id="reliability-fail"), pytest.param(2, id="other-fail")])
def test_ways_named_by_their_ids(way):
    assert way == 1

@pytest.mark.req("S2-02", "S3-02")
@pytest.mark.parametrize("size", ["small"])
def test_parameters_that_name_no_contract(size):
    pass
"""


@in_one_process_and_under_xdist
def test_a_parameter_proves_only_its_own_contracts_ids(tmp_path: Path, options: list[str]) -> None:
    code, output, proven = run_inner_pytest(tmp_path, options, inner=BY_CONTRACT)
    assert code == 1, output
    assert proven == ["S0-01", "S2-01", "S2-02", "S3-02"], output


BAD_MARKS = {
    "unknown": ('req("S9-99")', "not in requirements.txt: S9-99"),
    "empty": ("req()", "test_empty: write the ids into the mark"),
    "bare": ("req", "test_bare: write the ids into the mark"),
    "many": ('req("S0-01", "S0-02", "S0-03", "S0-04", "S0-05")', "5 requirements on one test, at most 4"),
}


@in_one_process_and_under_xdist
def test_only_what_ran_and_passed_is_proven(tmp_path: Path, options: list[str]) -> None:
    code, output, proven = run_inner_pytest(tmp_path, options, inner=PASSING_AND_OTHERWISE)
    assert code == 1, output
    assert proven == ["S0-01", "S0-02", "S0-03", "S1-01"], output
    assert "requirements proven in this run: 4" in output


@in_one_process_and_under_xdist
def test_a_bad_mark_is_a_collection_error(tmp_path: Path, options: list[str]) -> None:
    files = {name: f"@pytest.mark.{mark}\ndef test_{name}():\n    pass\n" for name, (mark, _) in BAD_MARKS.items()}
    code, output, proven = run_inner_pytest(tmp_path, options, **files)
    assert code not in (0, 5), output
    for name, (_, reason) in BAD_MARKS.items():
        assert f"ERROR collecting test_{name}.py" in output
        assert reason in output
    assert proven == []
