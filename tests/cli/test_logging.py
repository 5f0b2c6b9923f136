"""What commands log, as text and as JSON: a line for each record, with the job that it belongs to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.forked import tenure
from tests.harness import Harness
from tests.upkeep.running import expired
from tests.worker.processes import end

ROOT = Path(__file__).parents[2]
WORKER = ("worker", "tests.cli.logging_program:app", "--until-idle")


@pytest.mark.parametrize("how", ["by an option", "by a setting"])
async def test_worker_logs_json_with_the_job_of_each_line(store: Store, dsn: str, how: str) -> None:
    ids = [(await store.enqueue(NewJob(name, max_attempts=1))).job_id for name in ("fails", "elsewhere")]
    if how == "by an option":
        done = tenure(*WORKER, "--log-format", "json", cwd=ROOT, DATABASE_URL=dsn)
    else:
        done = tenure(*WORKER, cwd=ROOT, DATABASE_URL=dsn, TENURE_LOG_FORMAT="json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = {line["message"]: line for line in lines if line["logger"] == "shop"}
    assert {text: (line["job_id"], line["task"], line["attempt"]) for text, line in told.items()} == {
        "about to fail": (ids[0], "fails", 1), "in a process of its own": (ids[1], "elsewhere", 1),
    }  # fmt: skip
    (failed,) = [line for line in lines if line["logger"] == "tenure.worker.failures"]
    assert failed["message"] == f"job {ids[0]} of fails, attempt 1 failed, dead after 1 attempt"
    assert (failed["level"], failed["decision"], failed["error_type"]) == ("ERROR", "dead", "ValueError")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert failed["traceback"].endswith("\nValueError: odd")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"]) for line in lines)


def until_logged(what: str, dsn: str, place: Path, *command: str) -> str:
    """Run a command until it logs this; the line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tenure", *command],
        stderr=subprocess.PIPE, text=True, cwd=place, env={**os.environ, "DATABASE_URL": dsn},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        return next(line for line in process.stderr if what in line)
    finally:
        end(process)


@pytest.mark.parametrize(
    "command", [("serve", "--port", "0"), ("upkeep",), ("dev", "--port", "0")], ids=lambda one: one[0]
)
async def test_a_service_logs_json(
    store: Store, db: Harness, dsn: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    await expired(store, db)  # each of them runs upkeep, which says at DEBUG what it did
    line = until_logged("reap standard: 1", dsn, tmp_path, *command, "--log-format", "json", "--log-level", "debug")
    assert line.startswith("{"), line
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("DEBUG", "tenure.upkeep", "reap standard: 1")


async def test_worker_logs_text_with_the_job_of_each_line(store: Store, dsn: str) -> None:
    job_id = (await store.enqueue(NewJob("elsewhere"))).job_id
    done = tenure(*WORKER, cwd=ROOT, DATABASE_URL=dsn)
    line = rf"\d\d:\d\d:\d\d INFO    \[job {job_id} elsewhere, attempt 1\] in a process of its own"
    assert re.search(f"^{line}$", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize("command", [WORKER, ("serve",), ("upkeep", "--once"), ("dev",)], ids=lambda given: given[0])
def test_a_format_that_is_none_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    done = tenure(*command, "--log-format", "xml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "E-BAD-INPUT: --log-format is text or json, not 'xml'\n")
    done = tenure(*command, cwd=tmp_path, TENURE_LOG_FORMAT="xml")
    assert (done.returncode, done.stderr) == (1, "E-BAD-INPUT: TENURE_LOG_FORMAT must be text or json, not 'xml'\n")
