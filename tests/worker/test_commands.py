"""`tenure worker` with several processes, and `tenure dev`: they begin, work, and leave nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg

from tenure.app import App
from tests.harness import Harness
from tests.worker import program
from tests.worker.processes import worker
from tests.worker.working import until


async def test_several_processes_share_the_work_and_end_when_nothing_is_due(app: App, dsn: str, db: Harness) -> None:
    await app.enqueue_many(program.nap.call(0.2) for _ in range(30))
    with worker(dsn, "--processes", "2", "--concurrency", "5", "--name", "twin", "--until-idle") as parent:
        assert parent.wait(60) == 0
    owners = {row["actor"] for row in db.sql("select actor from tenure.event where trigger = 'claim'")}
    assert owners == {"twin-1", "twin-2"}
    assert db.value("select count(*) from tenure.job_done where state = 'succeeded'") == 30


async def test_process_that_died_is_begun_again_and_a_signal_ends_all(app: App, dsn: str, db: Harness) -> None:
    with worker(dsn, "--processes", "2", "--name", "twin") as parent:
        await until(lambda: len(_children(parent.pid)) == 2)
        first = _children(parent.pid)[0]
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(_children(parent.pid)) == 2 and first not in _children(parent.pid))
        ticket = await app._enqueue(program.nap.call(0.1).job)
        assert await app.result(ticket, timeout=20) == "rested"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(20) == 0
        assert _children(parent.pid) == []


def _children(pid: int) -> list[int]:
    """The worker processes of a parent, without what they started."""
    task = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in task.read_text().split()] if task.exists() else []
    return [child for child in found if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_dev_runs_sample_tasks_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    dev = subprocess.Popen(
        [sys.executable, "-m", "tenure", "dev"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert dev.stderr is not None
    said = []
    while "works on" not in (line := dev.stderr.readline()):
        said.append(line)
        assert dev.poll() is None, said
    command = [sys.executable, "-m", "tenure"]
    made = subprocess.run(
        [*command, "enqueue", "greet", "--payload", '{"name": "Ada"}', "--json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"id": "1"' in made.stdout
    for _ in range(100):
        shown = subprocess.run(
            [*command, "jobs", "show", "1", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        if '"succeeded"' in shown.stdout:
            break
    assert "hello, Ada" in shown.stdout
    dev.send_signal(signal.SIGINT)
    assert dev.wait(30) == 0
    assert any("tenure enqueue greet" in line for line in said)
    host = str(tmp_path / ".tenure" / "data")
    try:
        psycopg.connect(f"postgresql://postgres@/postgres?host={host}", connect_timeout=2).close()
    except psycopg.OperationalError:
        return
    raise AssertionError("PostgreSQL was left running")
