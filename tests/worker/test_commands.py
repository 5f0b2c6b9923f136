"""`tenure worker` with several processes, and `tenure dev`: they begin, work, and leave nothing running."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import psycopg
import pytest

from tenure.app import App
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker import program
from tests.worker.processes import steady_worker
from tests.worker.working import until


async def test_several_processes_share_the_work_and_end_when_nothing_is_due(
    app: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    # Ten at a time are more than one process has slots: the first ten end only beside each other.
    await app.enqueue_many(program.meet.call(str(tmp_path), 10) for _ in range(30))
    with steady_worker(dsn, "--processes", "2", "--concurrency", "5", "--name", "twin", "--until-idle") as parent:
        assert parent.wait(100) == 0
    owners = {row["actor"] for row in db.sql("select actor from tenure.event where trigger = 'claim'")}
    assert owners == {"twin-1", "twin-2"}
    assert db.value("select count(*) from tenure.job_done where state = 'succeeded'") == 30


async def test_process_that_died_is_begun_again_and_a_signal_ends_all(app: App, dsn: str, db: Harness) -> None:
    with steady_worker(dsn, "--processes", "2", "--name", "twin") as parent:
        await until(lambda: len(_children(parent.pid)) == 2)
        first = _children(parent.pid)[0]
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(_children(parent.pid)) == 2 and first not in _children(parent.pid))
        ticket = await app._enqueue(program.nap.call(0.1).job)
        assert await app.result(ticket, timeout=60) == "rested"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 0
        assert _children(parent.pid) == []


def _children(pid: int) -> list[int]:
    """The worker processes of a parent, without what they started."""
    task = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in task.read_text().split()] if task.exists() else []
    return [child for child in found if b"worker" in _command(child)]


def _command(pid: int) -> bytes:
    """The command line of a process, nothing if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _without_database() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}


def _begun(place: Path, *arguments: str, environment: dict[str, str]) -> tuple[subprocess.Popen[str], list[str]]:
    """`tenure dev` at work, and the lines that it has said until then."""
    command = [sys.executable, "-m", "tenure", "dev", *arguments]
    dev = subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)
    assert dev.stderr is not None
    said: list[str] = []
    while "works on" not in (line := dev.stderr.readline()):
        said.append(line)
        assert dev.poll() is None, said
    return dev, said


def _asked(said: list[str], environment: dict[str, str]) -> str:
    """Run the request that it printed, as it is printed; the id of the job that it made."""
    (line,) = [line.strip() for line in said if line.strip().startswith("curl ")]
    if shutil.which("curl"):
        done = subprocess.run(["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
        answer = json.loads(done.stdout)
    else:
        address, *more = shlex.split(line)[2:]
        heads = [os.path.expandvars(value) for name, value in itertools.pairwise(more) if name == "-H"]
        headers = dict(head.split(": ", 1) for head in heads)
        answer = httpx2.post(address, headers=headers, content=more[-1]).json()
    assert answer.get("made"), answer
    return str(answer["id"])


@pytest.mark.timeout(300)  # each look at the job is a process of its own
def test_dev_runs_samples_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    environment = _without_database()
    dev, said = _begun(tmp_path, environment=environment)
    assert said[0][8:] == f" WARNING made a PostgreSQL in {tmp_path / '.tenure'}; set DATABASE_URL to use another\n"
    assert _asked(said, environment) == "1"
    command = [sys.executable, "-m", "tenure"]
    made = subprocess.run(
        [*command, "enqueue", "greet", "--payload", '{"name": "Ada"}', "--json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"id": "2"' in made.stdout
    assert "made a PostgreSQL" not in made.stderr
    for _ in range(100):
        shown = subprocess.run(
            [*command, "jobs", "show", "1", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        if '"succeeded"' in shown.stdout:
            break
    assert "hello, Ada" in shown.stdout
    dev.send_signal(signal.SIGINT)
    assert dev.wait(60) == 0
    assert any("tenure enqueue greet" in line for line in said)
    host = str(tmp_path / ".tenure" / "data")
    try:
        psycopg.connect(f"postgresql://postgres@/postgres?host={host}", connect_timeout=60).close()
    except psycopg.OperationalError:
        return
    raise AssertionError("PostgreSQL was left running")


_SHOP = """
import enum
from datetime import date

import tenure

app = tenure.App(queue="orders")


class Size(enum.Enum):
    SMALL = "s"


class Cake:
    def __init__(self, layers):
        self.layers = layers


@app.task
async def a_cake_that_nobody_can_write_down(cake: Cake) -> None: ...


@app.task(queue="oven's", contract="reliability", priority=2)
async def bake(ctx: tenure.Context, name: str, size: Size, hours: float, day: date, *, note: str = "") -> str:
    return f"{name} {size.value} {hours}"
"""


async def test_the_request_that_dev_prints_for_an_own_app_makes_a_job_that_its_worker_runs(
    dsn: str, db: Harness, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(_SHOP)
    _, text = await store.keys.create("trying", ["enqueue"], None, None, "ada", None)
    dev, said = _begun(tmp_path, "shop:app", "--port", "0", environment={**os.environ, "DATABASE_URL": dsn})
    try:
        job_id = _asked(said, {**os.environ, "TENURE_KEY": text})
        await until(lambda: db.value("select count(*) from tenure.job_done") == 1)
        row = db.row(int(job_id))
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
    assert (row["state"], row["result"]) == ("succeeded", "Ada s 1.0")
    assert (row["contract"], row["queue"], row["priority"]) == ("reliability", "oven's", 2)
