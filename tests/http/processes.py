"""Commands of ours as processes of their own; above all `tenure serve`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.worker.processes import ROOT, end


def begun(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A command of ours as a process, in an environment that names no database but one that is given."""
    known = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    command = [sys.executable, "-m", "tenure", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**known, **environment}, stderr=subprocess.PIPE, text=True)


def dispatcher(dsn: str, *arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """A dispatcher on this database, and its address; comes back when it can be reached."""
    process = begun("serve", "--port", "0", *arguments, DATABASE_URL=dsn, **environment)
    assert process.stderr is not None
    said = ""
    while (found := re.search(r"the dispatcher is at (\S+)", said)) is None:
        line = process.stderr.readline()
        assert line, f"it ended: {said}"
        said += line
    threading.Thread(target=process.stderr.read, daemon=True).start()  # nobody else empties the pipe
    return process, found[1]


@contextmanager
def dispatching(dsn: str, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Such a dispatcher for as long as a block lasts; it is killed if it did not end."""
    process, url = dispatcher(dsn, *arguments, **environment)
    try:
        yield process, url
    finally:
        end(process)
