"""`tenure stats`: what each type did, with sparklines."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys

import pytest

from tenure.cli.stats import sparkline
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness


async def test_the_table_shows_types_live_jobs_and_a_sparkline(store: Store, ask: Asking, db: Harness) -> None:
    assert ask.run("stats").stderr == "nothing happened in the last 1h, and no job lives\n"
    await store.enqueue_many([NewJob("mail.send", queue="mail")] * 3)
    (job,) = await store.claim("standard", ["mail"], worker="w")
    await store.succeed(job.held)
    text = ask.text("stats", "--since", "15m")
    (row,) = [line.split() for line in text.splitlines() if "mail.send" in line]
    assert row[:7] == ["standard", "mail.send", "3", "1", "0", "0", "0"]
    assert row[-1] == "█"
    assert "standard  mail   queued  2" in text
    (said,) = ask.said("stats")["types"]
    assert (said["enqueued"], said["claims"], said["wait"]["count"], said["run"]["count"]) == (3, 1, 1, 1)
    assert ask.run("stats", "--since", "soon").returncode == 2


@pytest.mark.parametrize(("numbers", "bars"), [([], ""), ([0, 0], "▁▁"), ([0, 1, 50, 100], "▁▂▅█"), ([7], "█")])
def test_a_sparkline_is_as_high_as_its_numbers(numbers: list[int], bars: str) -> None:
    assert sparkline(numbers) == bars


def test_top_draws_in_a_terminal_until_ctrl_c(dsn: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tenure", "top", "--every", "0.2", "--database-url", dsn]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"Ctrl-C ends it") < 2:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(ours, 4096):
                shown += more
        assert process.stderr is not None
        assert (process.wait(30), process.stderr.read()) == (0, b"")
    assert b"0 workers, 0 of 0 slots busy" in shown
    assert shown.endswith(b"\x1b[?1049l"), "the screen is as before"
    os.close(ours)


def test_top_without_a_terminal_names_stats(ask: Asking) -> None:
    code, message = ask.refused("top")
    assert code == "E-BAD-INPUT"
    assert "Next: tenure stats" in message
