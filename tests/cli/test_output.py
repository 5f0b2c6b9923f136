"""Tables fit the terminal that they are printed on; what is piped is never folded."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from fcntl import ioctl
from struct import pack
from termios import TIOCSWINSZ

import pytest

from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking

MESSAGE = "no VAT id for the customer of this invoice, and none in the register of the country that it names"


def on_a_terminal(width: int, dsn: str, *arguments: str) -> list[str]:
    """The lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 24, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "tenure", *arguments, "--database-url", dsn]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # the end of a terminal
                break
            if not more:
                break
            shown += more
        assert process.wait(30) == 0
    os.close(ours)
    return shown.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("width", [80, 120])
async def test_a_list_of_jobs_fits_the_terminal_and_loses_nothing(
    store: Store, ask: Asking, dsn: str, width: int
) -> None:
    made = await store.enqueue(NewJob("invoices.create_and_send", queue="invoices", tenant_id="customer-4711"))
    (job,) = await store.claim(queues=["invoices"], worker="images-2.example.internal:4711")
    await store.fail(job.held, Failure(MESSAGE, type="ValidationError", retryable=False))
    lines = on_a_terminal(width, dsn, "jobs", "list")
    assert max(map(len, lines)) <= width
    assert lines[1].split()[0] == str(made.job_id)
    folded = " ".join(line.strip() for line in lines[2:])
    assert all(line.startswith("    ") for line in lines[2:])
    assert f"last error: ValidationError: {MESSAGE}" in folded
    assert "images-2.example.internal:4711" in folded
    _, row = ask.text("jobs", "list").splitlines()
    assert row.endswith(MESSAGE), "a pipe gets one line for each job"
