"""Commands on this test's own database, as real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenure.cli import main
from tests.cli.forked import tenure


@dataclass(frozen=True)
class Asking:
    """Somebody at a terminal."""

    dsn: str
    place: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return tenure(*arguments, cwd=self.place, DATABASE_URL=self.dsn)

    def text(self, *arguments: str) -> str:
        """What a command has printed that went well."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def said(self, *arguments: str) -> Any:
        """The JSON that a command has printed, and nothing else."""
        return json.loads(self.text(*arguments, "--json"))

    def refused(self, *arguments: str) -> tuple[str, str]:
        """The code and the message of a command that was refused, also as JSON, and printed no data."""
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        code, _, message = done.stderr.strip().partition(": ")
        return code, message


@pytest.fixture
def at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The whole command line in this process and an empty directory, for calls that must not start anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        code, captured = main(), capsys.readouterr()
        assert list(tmp_path.iterdir()) == [], "an embedded PostgreSQL was made"
        return code, captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def ask(dsn: str, tmp_path: Path) -> Asking:
    """Somebody at a terminal, with DATABASE_URL set."""
    return Asking(dsn, tmp_path)
