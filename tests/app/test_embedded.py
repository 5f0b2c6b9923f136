"""An application that was given no address: it says which database it starts, or refuses to."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tenure.embedded import Cluster
from tenure.errors import DatabaseRequired
from tenure.settings import Settings


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty directory, and no address in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)


async def test_app_that_starts_an_embedded_database_warns_with_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / ".tenure"
    for what in ("made a PostgreSQL", "started the PostgreSQL"):
        async with tenure.App() as app:
            app.database_url()
        (record,) = [one for one in caplog.records if one.name == "tenure.embedded"]
        assert (record.levelno, record.getMessage()) == (
            logging.WARNING, f"{what} in {directory}; set DATABASE_URL to use another",
        )  # fmt: skip
        caplog.clear()
    with Cluster(directory):
        async with tenure.App() as app:
            app.database_url()
    assert [one for one in caplog.records if one.name == "tenure.embedded"] == []


def test_program_that_ends_without_close_closes_its_connections_before_the_server_stops(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import tenure\n"
        "app = tenure.App()\n"
        "@app.task\n"
        "def send(): ...\n"
        "print(send.enqueue_sync().id)\n"
    )  # fmt: skip
    ended = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
    assert ended.stderr == f"made a PostgreSQL in {tmp_path / '.tenure'}; set DATABASE_URL to use another\n"
    log = (tmp_path / ".tenure" / "log").read_text()
    assert "database system is shut down" in log
    # The server may end before it has noticed a connection's end; then it cannot tell it to the client.
    ended_by_server, closed_before = (
        set(re.findall(rf"\[(\d+)\] .*{words}", log)) for words in ("terminating connection", "Broken pipe")
    )
    assert ended_by_server <= closed_before


async def test_app_refuses_an_embedded_database_where_one_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_REQUIRE_DATABASE", "1")
    required = tenure.App()
    monkeypatch.delenv("TENURE_REQUIRE_DATABASE")
    for app in (required, tenure.App(embedded=False), tenure.App(settings=Settings(require_database=True))):

        @app.task
        async def send() -> None: ...

        with pytest.raises(DatabaseRequired, match=r"Next: set DATABASE_URL"):
            await send.enqueue()
        with pytest.raises(DatabaseRequired):
            await app.worker().run()  # at once: it does not wait for a database that nobody named
        await app.close()
    assert os.listdir(tmp_path) == []


async def test_app_that_requires_a_database_uses_the_one_that_is_named(dsn: str) -> None:
    async with tenure.App(dsn, embedded=False, settings=Settings(require_database=True)) as app:

        @app.task
        async def send() -> None: ...

        assert (await send.enqueue()).made
