"""Programs of users as processes: manage.py, uvicorn, and requests to them over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def as_url(dsn: str) -> str:
    """The address of a database as a URL, as most libraries want it."""
    parts: dict[str, Any] = dict(conninfo_to_dict(dsn))
    name, user = parts.pop("dbname"), parts.pop("user", "")
    return f"postgresql://{user}@/{name}?{urlencode(parts)}"


def environment(dsn: str, more: Mapping[str, str] = {}) -> dict[str, str]:
    """Of a process on this database, without settings of the machine."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "DJANGO_", "TZ"))}
    return {**own, "DATABASE_URL": as_url(dsn), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def python(dsn: str, directory: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python there to its end; it must end well."""
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environment(dsn, more), text=True, capture_output=True, timeout=100
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done


@contextmanager
def running(dsn: str, directory: Path, log: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Python there for as long as a block lasts, with its output in a file; killed if it has not ended then."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=directory, env=environment(dsn, more), text=True, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()  # a parent of worker processes passes it on
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def wait_for(found: Callable[[], Any], what: str, log: Path | None = None) -> Any:
    """What this finds when it finds something; the limit only keeps a test from hanging."""
    limit = time.monotonic() + 90
    while not (value := found()):
        text = log.read_text(encoding="utf-8") if log is not None else ""
        assert time.monotonic() < limit, f"{what} never came. {text}"
        time.sleep(0.02)
    return value


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def web(dsn: str, directory: Path, log: Path, *words: str, port: int, **more: str) -> Iterator[Any]:
    """A server and a client of it; the server has answered once."""
    with (
        running(dsn, directory, log, *words, **more) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):

        def answers() -> bool:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            try:
                client.get("/orders/0")
            except httpx2.TransportError:
                return False
            return True

        wait_for(answers, "an answer", log)
        client.process = process  # type: ignore[attr-defined]
        yield client
