"""Workers as processes: stopped, killed and frozen; their jobs come back."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tenure.app import App
from tests.harness import Harness
from tests.worker import program
from tests.worker.killing import run_and_kill
from tests.worker.processes import is_frozen, says, steady_worker
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
        await until(lambda: running(db) == 1)
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
