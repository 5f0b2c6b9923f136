"""`tenure_database` as a project uses it that has Tenure installed: its own pytest run, in a directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.installed import with_plugin

ROOT = Path(__file__).parents[2]

SHOP = """
import tenure

# An address that nobody answers: whoever uses it in a test would have touched what is not the test's.
app = tenure.App("postgresql://nobody@127.0.0.1:9/production", dispatcher_url=None)


@app.task(max_attempts=2)
async def send(to: str) -> str:
    return f"sent to {to}"
"""
INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
TESTS = """
import asyncio
import os
import subprocess
import sys

import psycopg
import pytest
import tenure
from tenure import testing

from shop import app, send


def jobs(address):
    with psycopg.connect(address) as connection:
        return connection.execute("select count(*) from tenure.job").fetchone()[0]


@pytest.mark.parametrize("n", range(3))
def test_synchronous_code_finds_an_empty_database_each_time(tenure_database, n):
    assert jobs(tenure_database) == 0
    ticket = send.enqueue_sync("ada")
    assert (ticket.id, jobs(tenure_database)) == (1, 1)
    asyncio.run(testing.drain(app))
    assert app.result_sync(ticket, timeout=60) == "sent to ada"


@pytest.mark.parametrize("n", range(3))
async def test_asynchronous_code_does_too(tenure_database, n):
    ticket = await send.enqueue("bob")
    assert ticket.id == 1
    await testing.assert_enqueued(app, send, "bob")
    assert (await testing.drain(app))["succeeded"] == 1
    assert await app.result(ticket) == "sent to bob"


async def test_jobs_of_the_test_s_own_transaction(tenure_database):
    with psycopg.connect(tenure_database) as connection:
        connection.execute("create table customer (name text)")
        ticket = send.enqueue_in(connection, "eve")
    async with app:
        await testing.drain(app)
        assert (await app.job(ticket)).state == "succeeded"


def test_processes_that_a_test_starts_use_its_database(tenure_database):
    send.enqueue_sync("ada")
    listed = subprocess.run([sys.executable, "-m", "tenure", "queues", "list"], capture_output=True, text=True)
    assert "default" in listed.stdout, listed.stderr
    assert os.environ["DATABASE_URL"] == tenure_database


def test_without_the_fixture_nothing_stands_in():
    assert app.database_url() == "postgresql://nobody@127.0.0.1:9/production"
"""


def run(directory: Path, *options: str) -> str:
    """What pytest says of the tests above."""
    (directory / "shop.py").write_text(SHOP, encoding="utf-8")
    (directory / "test_shop.py").write_text(TESTS, encoding="utf-8")
    (directory / "pytest.ini").write_text(INI, encoding="utf-8")
    base = ["--basetemp", str(directory / "base"), "-p", "no:cacheprovider", "-q", "--durations=0", "--durations-min=0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *base, *options],
        cwd=directory, env=with_plugin(directory / "site"), capture_output=True, text=True, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_names_the_plugin_to_pytest() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ((name, module),) = declared["project"]["entry-points"]["pytest11"].items()
    assert import_module(module).tenure_database
    assert f"[pytest11]\\n{name} = {module}\\n" in (ROOT / "dev").read_text(encoding="utf-8")


@pytest.mark.timeout(400)  # a run of its own, with a server of its own
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "with xdist"])
def test_every_test_has_an_empty_database_of_its_own(tmp_path: Path, options: tuple[str, ...]) -> None:
    said = run(tmp_path, *options)
    assert re.search(r"^9 passed", said, re.MULTILINE), said
    setups = [float(seconds) for seconds in re.findall(r"^([\d.]+)s setup .*(?:\[[12]\])", said, re.MULTILINE)]
    print(f"set up in {sorted(setups)} s")
    servers = list((tmp_path / "base").rglob("postmaster.pid"))
    assert servers == [], "a server was left running"
