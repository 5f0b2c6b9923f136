"""The conformance kit for workers: right workers pass, and each broken one is named for its fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.conformance.check_worker import SCENARIOS, check_worker
from tenure.conformance.result import Result
from tenure.errors import BadInput
from tests.conformance.workers import BASH_WORKER, BROKEN, ROOT, TENURE_WORKER, broken_node, node, require

#: A slice that meets every part of the kit: `./dev prove conformance` plays all scenarios.
SLICE = ("heartbeat", "cancel-soft", "lost-lease", "lost-answers", "sigterm")


def told(results: list[Result]) -> str:
    return json.dumps([result.fields() for result in results if not result.passed], indent=2)


async def test_the_worker_in_node_passes_a_slice(server: str) -> None:
    results = await check_worker(node(), server, SLICE, timeout_s=60)
    assert [result.name for result in results if result.passed] == [name for name in SCENARIOS if name in SLICE], told(
        results
    )


@pytest.mark.prove
@pytest.mark.parametrize("worker", ["node", "bash", "tenure"])
async def test_a_right_worker_passes_every_scenario(server: str, worker: str) -> None:
    if worker == "bash":
        require("curl", "jq")
    command = node() if worker == "node" else {"bash": str(BASH_WORKER), "tenure": TENURE_WORKER}[worker]
    results = await check_worker(command, server, timeout_s=60)
    assert len(results) == len(SCENARIOS)
    assert all(result.passed for result in results), told(results)


@pytest.mark.parametrize(
    "name", [name if number < 5 else pytest.param(name, marks=pytest.mark.prove) for number, name in enumerate(BROKEN)]
)
async def test_a_broken_worker_is_named_for_its_fault(server: str, tmp_path: Path, name: str) -> None:
    _, scenario, fault = BROKEN[name]
    (result,) = await check_worker(broken_node(name, tmp_path), server, [scenario], timeout_s=20)
    assert not result.passed
    assert fault in "\n".join(result.faults)


async def test_a_worker_that_does_nothing_is_a_fault_and_no_hang(server: str) -> None:
    (result,) = await check_worker("sleep 1000", server, ["claim"], timeout_s=1)
    assert result.faults == ("did not bring job 2 to its end (succeeded) within 1 s",)


async def test_a_worker_that_ends_is_shown_with_its_last_words(server: str) -> None:
    (result,) = await check_worker("sh -c 'echo no such module; exit 3'", server, ["claim"])
    assert result.faults == ("did not bring job 2 to its end (succeeded): its process ended with exit code 3",)
    assert result.output == ("no such module",)


async def test_a_wrong_call_of_the_kit_is_refused(server: str) -> None:
    with pytest.raises(BadInput, match="there is no scenario 'clam'"):
        await check_worker("sleep 1", server, ["clam"])
    with pytest.raises(BadInput, match="cannot be started"):
        await check_worker("/no/such/worker", server, ["claim"])


def test_the_command_prints_faults_and_exits_with_1(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tenure", "conformance", "--database-url", server, "--only", "claim"]
    right = subprocess.run(
        [*command, "--worker", node(), "--json", "--timeout", "60"], cwd=ROOT, capture_output=True, text=True
    )
    assert (right.returncode, json.loads(right.stdout)["passed"]) == (0, True), right.stderr
    wrong = [*command, "--worker", broken_node("claims any type", tmp_path)]
    done = subprocess.run(wrong, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "FAILED  claim" in done.stdout
    assert "    claimed without naming its types" in done.stdout
    assert "0 of 1 passed" in done.stderr
