"""Workers as processes: stopped, killed and frozen; their jobs come back."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tenure.app import App
from tenure.task import Task
from tests.harness import Harness
from tests.worker import program
from tests.worker.killing import run_and_kill
from tests.worker.processes import is_frozen, line, says, steady_worker
from tests.worker.working import until


def running(db: Harness) -> int:
    """How many jobs are held."""
    count: int = db.value("select count(*) from tenure.job where role = 'active'")
    return count


async def test_sigterm_lets_a_running_job_end_and_claims_no_more(
    app: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = await app._enqueue(program.hold.call(str(gate)).job)
    with steady_worker(dsn, "--concurrency", "1") as process:
        await until(Path(f"{gate}.began").exists)
        second = await app._enqueue(program.nap.call(0.0).job)
        process.send_signal(signal.SIGTERM)
        await says(process, "stops: 1 jobs are running")
        gate.touch()
        assert process.wait(60) == 0
    assert db.row(first.id)["state"] == "succeeded"
    assert db.row(second.id)["state"] == "queued"


async def test_what_does_not_end_in_time_is_handed_back_at_no_cost(app: App, dsn: str, db: Harness) -> None:
    ticket = await app._enqueue(program.nap.call(600.0).job)
    with steady_worker(dsn, "--grace", "0.5") as process:
        await until(lambda: running(db) == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    row = db.row(ticket.id)
    assert (row["state"], row["claims"], row["raises"]) == ("queued", 1, 1)


async def test_thread_that_does_not_end_does_not_keep_the_process(app: App, dsn: str, db: Harness) -> None:
    ticket = await app._enqueue(program.doze.call(600.0).job)
    with steady_worker(dsn, "--grace", "0.5") as process:
        await until(lambda: running(db) == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert db.row(ticket.id)["state"] == "queued"


def signalled(process: subprocess.Popen[str]) -> int | None:
    """Send a worker another signal; its exit code if it has ended."""
    process.send_signal(signal.SIGTERM)
    return process.poll()


async def test_second_signal_ends_the_worker_at_once(app: App, dsn: str, db: Harness) -> None:
    await app._enqueue(program.nap.call(600.0).job)
    with steady_worker(dsn, "--grace", "600") as process:
        await until(lambda: running(db) == 1)
        process.send_signal(signal.SIGTERM)
        await says(process, "stops")
        # Those within a second of the first are one signal to a whole group of processes.
        await until(lambda: signalled(process) is not None)
        assert process.wait() == 128 + signal.SIGTERM
    assert running(db) == 1  # its lease will run out


async def test_killed_workers_job_comes_back_and_the_execution_is_spent(
    app: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    ticket = await app._enqueue(program.hold.call(str(gate)).job)
    await run_and_kill(dsn, db, ticket.id, times=1)
    gate.touch()
    with steady_worker(dsn):
        assert await app.result(ticket, timeout=60) == "let go"
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "expire", "claim", "succeed"]


async def test_frozen_workers_late_result_is_refused(app: App, dsn: str, db: Harness) -> None:
    ticket = await app._enqueue(program.stand_still.call(0.0).job)
    with steady_worker(dsn, "--no-upkeep") as frozen:
        await until(lambda: running(db) == 1)
        await until(lambda: is_frozen(frozen))
        db.sql("update tenure.job set type = 'nap', payload = '{\"seconds\": 0}' where id = %s", ticket.id)
        db.expire(ticket.id)
        with steady_worker(dsn):
            assert await app.result(ticket, timeout=60) == "rested"
            before = db.fingerprint(ticket.id)
            frozen.send_signal(signal.SIGCONT)
            frozen.send_signal(signal.SIGTERM)
            assert frozen.wait(60) == 0
    assert db.fingerprint(ticket.id) == before


@pytest.mark.parametrize("task", [program.swallow_cancels, program.sleep_in_a_thread], ids=lambda task: str(task.name))
async def test_handler_that_cannot_be_ended_does_not_keep_the_process(
    app: App, dsn: str, db: Harness, task: Task[[str], None], tmp_path: Path
) -> None:
    ticket = await app._enqueue(task.call(str(tmp_path / "began")).job)
    with steady_worker(dsn, "--grace", "0.1") as process:
        await until((tmp_path / "began").exists)
        process.send_signal(signal.SIGTERM)
        if task is program.swallow_cancels:
            await says(process, f"job {ticket.id} of swallow_cancels: its handler was cancelled 3 times and still runs")
        assert process.wait(60) == 0
    row = db.row(ticket.id)
    assert (row["state"], row["claims"], row["raises"]) == ("queued", 1, 1)


async def test_first_ctrl_c_says_what_it_waits_for_and_the_second_ends_at_once(
    app: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    ids = await app.enqueue_many(program.meet.call(str(tmp_path), 8) for _ in range(7))
    with steady_worker(dsn, "--grace", "500") as process:
        await until(lambda: len(list(tmp_path.iterdir())) == 7)
        process.send_signal(signal.SIGINT)
        said = await line(process, "stops: 7 jobs are running")
        assert sum(f"job {job_id} of meet" in said for job_id in ids) == 5
        assert "and 2 more" in said
        assert "it waits up to 500 s for them, then hands them back; a second signal ends it at once" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    assert running(db) == 7  # their leases will run out


async def test_ctrl_c_says_what_it_waits_for_also_where_only_warnings_are_shown(
    app: App, dsn: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    ticket = await app._enqueue(program.hold.call(str(gate)).job)
    with steady_worker(dsn, "--log-level", "warning", "--grace", "20") as process:
        await until(Path(f"{gate}.began").exists)
        process.send_signal(signal.SIGINT)
        said = await line(process, f"stops: 1 jobs are running (job {ticket.id} of hold)")
        assert " WARNING " in said
        gate.touch()
        assert process.wait(60) == 0


async def test_second_ctrl_c_ends_a_worker_whose_loop_is_blocked(
    app: App, dsn: str, db: Harness, tmp_path: Path
) -> None:
    await app._enqueue(program.block.call(str(tmp_path / "gate")).job)
    with steady_worker(dsn) as process:
        await until(lambda: running(db) == 1)
        await until(lambda: signalled(process) is not None)
        assert process.wait() == 128 + signal.SIGTERM


async def test_ctrl_c_with_nothing_running_ends_the_worker(dsn: str) -> None:
    with steady_worker(dsn, "--queues", "default") as process:
        await says(process, "works on")
        process.send_signal(signal.SIGINT)
        await says(process, "stops: 0 jobs are running")
        assert process.wait(60) == 0
