"""The metrics that one worker serves."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tenure.app import App
from tenure.cli.services.worker_processes import run_processes
from tenure.errors import BadInput
from tenure.metrics.worker import METRICS
from tests.cli.forked import tenure
from tests.harness import Harness
from tests.worker.working import steady, until

pytestmark = pytest.mark.core
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"


def scraped(url: str) -> dict[str, float]:
    """Every line of the answer, and what promtool says about it."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    if (promtool := shutil.which("promtool")) is not None:
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, number in lines}


async def test_a_worker_shows_its_slots_its_jobs_its_loop_and_its_upkeep(
    dsn: str, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    app = steady(dsn)

    @app.task
    async def nothing() -> None: ...

    caplog.set_level("INFO", "tenure.worker")
    async with app:
        worker = app.worker(concurrency=7, poll=0.05, metrics_port=0)
        run = asyncio.create_task(worker.run(handle_signals=False))
        await until(lambda: "shows its metrics at" in caplog.text)
        url = re.findall(r"http://127\.0\.0\.1:\d+/metrics", caplog.text)[0]
        await app.enqueue_many(nothing.call() for _ in range(5))
        await until(lambda: worker.counts["succeeded"] == 5)
        worker.wake_up("standard", "")
        found: dict[str, float] = {}
        while not (
            found.get('tenure_process_upkeep_runs_total{part="look"}')
            and found["tenure_process_loop_delay_seconds_count"]
        ):
            found = await asyncio.to_thread(scraped, url)
            await asyncio.sleep(0.05)
        assert (found["tenure_process_slots"], found["tenure_process_slots_busy"]) == (7, 0)
        assert found['tenure_process_jobs_total{event="claimed"}'] == 5
        assert found['tenure_process_jobs_total{event="succeeded"}'] == 5
        assert found["tenure_process_wakeups_total"] >= 1
        assert 0 <= found["tenure_process_upkeep_lag_seconds"] < 60
        last = found['tenure_process_loop_delay_seconds_bucket{le="+Inf"}']
        assert last == found["tenure_process_loop_delay_seconds_count"]
        assert {
            name.split("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in found
        } == {*METRICS}
        worker.stop()
        await run
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(scraped, url)


async def test_a_port_that_is_none_or_taken_is_refused(dsn: str) -> None:
    for port in (-1, 65_536):
        with pytest.raises(BadInput, match="metrics_port"):
            App(dsn).worker(metrics_port=port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = App(dsn).worker(metrics_port=taken.getsockname()[1])
        with pytest.raises(BadInput, match="metrics cannot be shown at 127"):
            await worker.run(handle_signals=False)


def test_each_of_several_processes_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Ended:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def poll(self) -> int:
            return 0

        wait = poll

    monkeypatch.setattr("subprocess.Popen", Ended)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["tenure", "worker", "shop:app", "--metrics-port", "9101", "--processes", "2"])
    assert run_processes(2, None, until_idle=True, metrics_port=9101) == 0
    assert [command[-2:] for command in started] == [["--metrics-port", "9101"], ["--metrics-port", "9102"]]


def test_processes_beyond_the_last_port_are_refused(dsn: str, tmp_path: Path) -> None:
    options = ("--processes", "2", "--metrics-port", "65535")
    done = tenure("worker", "tests.worker.program:app", *options, cwd=ROOT, DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the last port is 65535" in done.stderr
    assert tenure("worker", "x:y", "--metrics-port", "65536", cwd=tmp_path).returncode == 2


def test_every_metric_of_a_worker_is_documented() -> None:
    page = PAGE.read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
