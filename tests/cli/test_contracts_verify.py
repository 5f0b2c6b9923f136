"""`tenure contracts verify` as a person or a CI job runs it: what it says, on which stream, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.model.invariants import INVARIANTS
from tests.broken import BROKEN
from tests.cli.forked import tenure

MODULE = """
from dataclasses import replace

from tenure.contracts.standard import STANDARD

CHORES = replace(STANDARD, name="chores")
NUMBER = 7
"""

#: A failure is put off, and put off, and put off.
ODD_MODULE = """
from dataclasses import replace

from tenure.contracts.declaration import Retryable, RetryVerdict
from tenure.contracts.standard import STANDARD

CHORES = replace(STANDARD, name="odd_chores", retryable=Retryable("class", {"OddError": RetryVerdict("snooze")}))
"""

#: A declaration that is refused while its module is imported.
UNSOUND_MODULE = """
from dataclasses import replace

from tenure.contracts.simple import SIMPLE

CHORES = replace(SIMPLE, name="chores", paths=tuple(path for path in SIMPLE.paths if path.trigger != "expire"))
"""


def verify(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it where there is no database."""
    return tenure("contracts", "verify", *arguments, cwd=cwd)


def said(*arguments: str, cwd: Path) -> tuple[int, Any]:
    """Its exit code and its JSON; there is nothing else on any stream."""
    done = verify(*arguments, "--json", cwd=cwd)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def saved(contract: Contract, directory: Path) -> str:
    """A file with the contract's description."""
    (directory / "own.json").write_text(json.dumps(contract.describe()))
    return "own.json"


def test_without_names_all_six_contracts_are_explored_in_some_thousand_steps(tmp_path: Path) -> None:
    done = verify(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name in BUILT_IN:
        assert f"\n{name}: all " in f"\n{done.stdout}"
    assert done.stdout.count(f"    held: {', '.join(INVARIANTS)}\n") == 6
    tried = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) steps tried, ", done.stdout)]
    assert len(tried) == 6
    assert sum(tried) < 250_000, "nobody waits for more than some seconds"
    assert "BROKEN" not in done.stdout
    assert list(tmp_path.iterdir()) == [], "a database was made"


def test_json_is_the_only_thing_on_stdout_and_has_the_counts(tmp_path: Path) -> None:
    code, answer = said("phase27", "gate_b2", cwd=tmp_path)
    assert (code, answer["held"]) == (0, True)
    assert [one["contract"] for one in answer["contracts"]] == ["phase27", "gate_b2"]
    for one in answer["contracts"]:
        assert (one["held"], one["broken"], one["unsound"], one["unknown"]) == (list(INVARIANTS), [], [], [])
        assert (one["complete"], one["workers"]) == (True, 2)
        assert min(one["states"], one["steps"], one["refused"], int(one["histories"]), one["seconds"] + 1) > 0


def test_the_same_call_gives_the_same_numbers(tmp_path: Path) -> None:
    first, second = (said("simple", cwd=tmp_path)[1]["contracts"][0] for _ in range(2))
    assert first | {"seconds": 0} == second | {"seconds": 0}


def test_more_workers_and_more_runs_go_deeper(tmp_path: Path) -> None:
    _, answer = said("phase27", cwd=tmp_path)
    code, deeper = said("phase27", "--workers", "3", "--runs", "4", cwd=tmp_path)
    (before,), (after,) = answer["contracts"], deeper["contracts"]
    assert (code, after["workers"], after["runs"], after["depth"]) == (0, 3, 4, 40)
    assert (before["workers"], before["runs"], before["depth"]) == (2, 3, 30)
    assert after["states"] > before["states"]
    assert after["held"] == list(INVARIANTS)


def test_a_bound_that_cuts_histories_off_says_what_is_not_known(tmp_path: Path) -> None:
    done = verify("simple", "--depth", "4", cwd=tmp_path)
    assert done.returncode == 0
    assert "worlds, of more," in done.stdout
    assert "not known: an end, because there are more worlds. Next: a greater --depth" in done.stdout
    (one,) = said("simple", "--depth", "4", cwd=tmp_path)[1]["contracts"]
    assert (one["complete"], one["unknown"], "an end" in one["held"]) == (False, ["an end"], False)


@pytest.mark.parametrize("option", [("--workers", "1"), ("--runs", "0"), ("--depth", "0"), ("--workers", "many")])
def test_a_bound_that_makes_no_sense_is_a_wrong_call(option: tuple[str, str], tmp_path: Path) -> None:
    assert verify("simple", *option, cwd=tmp_path).returncode == 2


def test_a_broken_contract_in_a_file_tells_its_faults_and_its_story_and_exits_with_one(tmp_path: Path) -> None:
    contract, _, _ = BROKEN["a lost last run goes back to the queue"]
    done = verify(saved(contract, tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "    not sound: path expire_at_cap: ends in PENDING, which is not final and does not settle\n" in done.stdout
    assert done.stdout.endswith("""\
    BROKEN: budget. The shortest story:
        A job is enqueued that may be run once  [PENDING]
        1. worker A claims the job (claim 1)  [RUNNING, held]
        2. worker A hands the job back  [PENDING]
        3. worker A claims the job (claim 2)  [RUNNING, held]
        → budget: the job is claimed twice, and may be run once
""")


def test_a_broken_contract_as_json_has_its_faults_and_its_story(tmp_path: Path) -> None:
    contract, _, _ = BROKEN["no promote"]
    code, answer = said("standard", saved(contract, tmp_path), cwd=tmp_path)
    good, bad = answer["contracts"]
    assert (code, answer["held"], good["broken"], good["unsound"]) == (1, False, [], [])
    assert any("nothing ends its wait" in fault for fault in bad["unsound"])
    (story,) = bad["broken"]
    assert story["invariant"] == "an end"
    assert story["story"][-1] == f"→ an end: {story['what']}"
    assert set(bad["held"]) == set(INVARIANTS) - {"an end"}


def test_a_contract_that_is_refused_at_import_is_explored_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "household.py").write_text(UNSOUND_MODULE)
    done = verify("household:CHORES", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("chores: all ")
    assert (
        "not sound: state RUNNING: a dead worker's job has no way back (no expire or reclaim path); write"
        in done.stdout
    )
    assert "        2. time passes: the lease runs out  [RUNNING, lease run out]\n" in done.stdout


def test_contracts_of_a_users_own_modules_guard_its_ci(tmp_path: Path) -> None:
    (tmp_path / "household.py").write_text(MODULE)
    (tmp_path / "odd.py").write_text(ODD_MODULE)
    good, odd = verify("household:CHORES", cwd=tmp_path), verify("household:CHORES", "odd:CHORES", cwd=tmp_path)
    assert (good.returncode, odd.returncode) == (0, 1)
    assert good.stdout.startswith("chores: all ")
    assert "BROKEN: retries. The shortest story:" in odd.stdout
    assert "2. worker A reports a failure that leads to snooze  [queued]" in odd.stdout


def test_a_declaration_without_a_machine_tells_its_faults(tmp_path: Path) -> None:
    description = BUILT_IN["standard"].describe()
    description["paths"][1]["hops"] = []
    (tmp_path / "own.json").write_text(json.dumps(description))
    done = verify("own.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("standard: cannot be explored\n    not sound: path succeed: no hop\n")
    code, answer = said("own.json", cwd=tmp_path)
    assert (code, answer["contracts"][0]["held"]) == (1, [])


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("nonesuch", "E-UNKNOWN-CONTRACT", "no contract 'nonesuch' is known; known are: standard@1, phase27@1"),
        ("simple@9", "E-UNKNOWN-CONTRACT", "no contract 'simple@9' is known"),
        ("nowhere.json", "E-BAD-INPUT", "'nowhere.json' is no contract's name, and as a file it cannot be read"),
        ("nowhere:CHORES", "E-BAD-INPUT", "nowhere:CHORES cannot be imported: ModuleNotFoundError: No module named "
         "'nowhere'. Next: run this where nowhere can be imported"),
        ("lacking:ONE", "E-BAD-INPUT", "lacking:ONE cannot be imported: ModuleNotFoundError: No module named "
         "'nonesuch' (lacking.py, line 1). Next: install what lacking imports"),
        ("household:NOTHING", "E-BAD-INPUT", "household:NOTHING cannot be imported: AttributeError: module 'household' "
         "has no attribute 'NOTHING'. Next: give a name that household has"),
        ("household:NUMBER", "E-BAD-INPUT", "household:NUMBER is of the type int, not a tenure Contract"),
        ("crooked:ONE", "E-BAD-INPUT",
         "crooked:ONE cannot be imported: ZeroDivisionError: division by zero (crooked.py,"),
        ("leaving:ONE", "E-BAD-INPUT", "leaving:ONE cannot be imported: SystemExit: 0 (leaving.py, line 2). "
         "Next: correct leaving; python -c 'import leaving' shows the whole traceback"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_refused_before_anything_is_explored(
    name: str, code: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "household.py").write_text(MODULE)
    (tmp_path / "crooked.py").write_text("numbers = 0\nshare = 1 / numbers\n")
    (tmp_path / "lacking.py").write_text("import nonesuch\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    done = verify("phase27", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{code}: {message}")


def test_a_person_at_a_terminal_sees_how_far_it_is(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tenure", "contracts", "verify", "phase27"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, text=True, timeout=100)
    os.close(theirs)
    seen = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert done.stdout.startswith("phase27: all ")
    assert "█" not in done.stdout
    assert "phase27" in seen
    assert "1/30 steps, " in seen
    assert seen.endswith("\r\x1b[K"), "the bar is wiped away"


def test_the_page_about_proof_shows_what_the_command_prints(tmp_path: Path) -> None:
    pages = Path(__file__).parents[2] / "docs" / "explanation"
    page, declaration = ((pages / name).read_text(encoding="utf-8") for name in ("proof.md", "contracts.md"))
    good = re.findall(r"```python\n(.*?)```", declaration, flags=re.DOTALL)[0]
    removed, added = (re.findall(rf"^\{sign} +(\(.*\)),$", page, flags=re.MULTILINE)[0] for sign in "-+")
    assert good.count(removed) == 1
    for text in (good, good.replace(removed, added)):
        (tmp_path / "chores.py").write_text(text)
        shown = verify("chores:CHORES", cwd=tmp_path).stdout
        assert without_seconds(shown) in without_seconds(page)
    assert without_seconds(verify("phase27", "gate_b2", cwd=tmp_path).stdout) in without_seconds(page)


def without_seconds(text: str) -> str:
    """The text, however long it took."""
    return re.sub(r"in \d+\.\d s$", "in … s", text, flags=re.MULTILINE)
