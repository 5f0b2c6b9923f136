"""`manage.py tenure worker` as processes: several at once, killed, and with processes of their own for jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.harness import Harness
from tests.integrations.processes import ROOT, environment, python, running, wait_for

pytestmark = pytest.mark.usefixtures("project")

SITE = {"DJANGO_SETTINGS_MODULE": "tests.integrations.settings"}
WORKER = ("-m", "django", "tenure", "worker", "--poll", "0.05", "--concurrency", "4")


def test_workers_share_the_jobs_and_each_job_runs_once(dsn: str, db: Harness, tmp_path: Path) -> None:
    from tests.integrations.tasks import hold

    gate = tmp_path / "gate"
    results = [hold.enqueue(str(gate)) for _ in range(12)]
    began = Path(f"{gate}.began")
    with (
        running(dsn, ROOT, tmp_path / "one", *WORKER, **SITE) as one,
        running(dsn, ROOT, tmp_path / "other", *WORKER, "--processes", "2", **SITE) as other,
    ):
        wait_for(lambda: began.exists() and len(began.read_text().split()) == 12, "all runs", tmp_path / "one")
        gate.touch()
        wait_for(lambda: not db.value("select count(*) from tenure.job"), "the end of all", tmp_path / "one")
        runners = {hold.get_result(result.id).return_value for result in results}
        assert len(runners) == 3  # four jobs each
        assert one.pid in runners
        assert other.pid not in runners
    assert len(began.read_text().split()) == 12


def test_the_job_of_a_killed_worker_runs_again_in_a_process_of_its_own(dsn: str, db: Harness, tmp_path: Path) -> None:
    from tests.integrations.tasks import hold

    gate = tmp_path / "gate"
    result = hold.enqueue(str(gate))
    with running(dsn, ROOT, tmp_path / "first", *WORKER, **SITE) as first:
        wait_for(Path(f"{gate}.began").exists, "the first run", tmp_path / "first")
        result.refresh()
        assert (result.status, result.attempts, result.is_finished) == ("RUNNING", 1, False)
        first.send_signal(signal.SIGKILL)
        first.wait()
    gate.touch()
    db.expire(int(result.id))
    with running(dsn, ROOT, tmp_path / "second", *WORKER, **SITE) as second:
        wait_for(lambda: not db.value("select count(*) from tenure.job"), "the second run", tmp_path / "second")
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 2)
        assert result.return_value not in (first.pid, second.pid)
        assert [error.exception_class.__name__ for error in result.errors] == ["InfrastructureFailure"]
    db.log_is_sound(int(result.id))


def test_a_backend_whose_tasks_have_processes_of_their_own(dsn: str, db: Harness, tmp_path: Path) -> None:
    from tests.integrations.tasks import own_process

    result = own_process.enqueue()
    python(dsn, ROOT, *WORKER, "--until-idle", **SITE)
    result.refresh()
    assert result.return_value is not None, result.errors
    assert result.return_value[0] != result.return_value[1] != os.getpid()


def test_the_command_passes_words_options_and_exit_codes_on(dsn: str) -> None:
    import subprocess
    import sys

    from tests.integrations.tasks import add

    result = add.enqueue(1)
    shown = python(dsn, ROOT, "-m", "django", "tenure", "jobs", "show", result.id, "--json", **SITE).stdout
    assert '"tests.integrations.tasks.add"' in shown
    assert "worker" in python(dsn, ROOT, "-m", "django", "tenure", "help", **SITE).stdout
    command = [sys.executable, "-m", "django", "tenure", "--backend", "nowhere", "worker"]
    done = subprocess.run(command, cwd=ROOT, env=environment(dsn, SITE), text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    command = [sys.executable, "-m", "django", "tenure", "jobs", "show", "77"]
    done = subprocess.run(command, cwd=ROOT, env=environment(dsn, SITE), text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "JOB_NOT_FOUND" in done.stderr
