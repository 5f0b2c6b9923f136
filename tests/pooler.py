"""A PgBouncer in transaction mode between tests and their PostgreSQL: each transaction gets whatever session is free.

With TENURE_TEST_POOLER set to the program, every engine that a test opens connects through it, as if its DATABASE_URL
were PgBouncer's. `migrate`, listeners and the tests' own eyes and hands go directly, as with TENURE_DIRECT_URL; and so
does an engine whose address brings settings of its own, which PgBouncer refuses.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.embedded.account import choose_account
from tenure.embedded.binaries import find_binaries
from tenure.embedded.directory import ClusterDirectory
from tenure.postgres import engine
from tenure.postgres.connect import probe_dsn

#: More than any test has waiting for a lock.
SESSIONS = 80
PORT = 6432

_SETTINGS = """
[databases]
* = host={host} port={port} auth_user=postgres
[pgbouncer]
pool_mode = transaction
unix_socket_dir = {place}
listen_port = {own_port}
auth_type = trust
auth_file = {place}/users
admin_users = postgres
default_pool_size = {sessions}
max_client_conn = 1000
server_round_robin = 1
server_login_retry = 0.1
log_connections = 0
log_disconnections = 0
logfile = {place}/log
"""


class Pooler:
    """A PgBouncer that runs: makes addresses that lead through it."""

    def __init__(self, place: Path, server: str) -> None:
        self._place = place
        self._host = conninfo_to_dict(server)["host"]

    def through(self, dsn: str) -> str:
        """The same database through the pooler, if it is this run's and the address brings no settings."""
        given = conninfo_to_dict(dsn)
        if given.get("host") != self._host or given.get("options"):
            return dsn
        return make_conninfo(dsn, host=str(self._place), port=PORT)

    def admin(self, command: str) -> None:
        """Tell PgBouncer something."""
        address = make_conninfo(host=str(self._place), port=PORT, dbname="pgbouncer", user="postgres")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(command.encode())

    def let_go(self, dsn: str) -> None:
        """Close what is open to a database, which is about to be renamed or dropped."""
        self.admin(f"kill {conninfo_to_dict(dsn)['dbname']}")


@contextmanager
def pooling(server: str, program: str, *more: str, everybody: bool = True) -> Iterator[Pooler]:
    """A PgBouncer for as long as a block lasts, run by somebody who is not root; every engine goes through it."""
    given = conninfo_to_dict(server)
    # Short, because a socket's name has to be; and its own, because every test process starts one.
    place = Path(tempfile.mkdtemp(prefix="tenure-pooler-"))
    settings = place / "settings.ini"
    settings.write_text(
        _SETTINGS.format(host=given["host"], port=given["port"], place=place, own_port=PORT, sessions=SESSIONS)
        + "\n".join(more)
    )
    (place / "users").write_text('"postgres" ""\n')
    (place / "data").mkdir()
    account = choose_account(ClusterDirectory(place), find_binaries())
    account.take_over(place)
    process = subprocess.Popen([*account.prefix, program, "-q", str(settings)], stderr=subprocess.PIPE, text=True)
    try:
        pooler = Pooler(place, server)
        _wait(pooler, process, place)
        with pytest.MonkeyPatch.context() as patch:
            if everybody:
                patch.setattr(engine, "probe_dsn", lambda dsn, *more: probe_dsn(pooler.through(dsn), *more))
            yield pooler
    finally:
        process.terminate()
        process.communicate(timeout=60)
        shutil.rmtree(place, ignore_errors=True)


def _wait(pooler: Pooler, process: subprocess.Popen[str], place: Path) -> None:
    give_up = time.monotonic() + 60
    while True:
        try:
            pooler.admin("show version")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"PgBouncer did not start: {(place / 'log').read_text()[-2000:]}") from None
            time.sleep(0.02)
        else:
            return
