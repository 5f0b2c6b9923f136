"""The PostgreSQL and the Redis of a run, started for the run and stopped after it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.comparison.installation import redis_server
from bench.comparison.process import Stuck, processor_of
from tenure.embedded import Cluster

#: The same for all; a checkpoint in the middle would put whole pages into one peer's log. The rest is its default.
SETTINGS = {
    "shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "fsync": "on",
    "synchronous_commit": "on",
}  # fmt: skip


class Server(Protocol):
    """What holds a peer's jobs."""

    def fresh(self, name: str) -> str:
        """An empty database for this peer; its address."""

    def unfinished(self, name: str, query: str) -> int:
        """How many jobs are not committed as finished."""

    def wal(self) -> int | None:
        """Bytes of write-ahead log so far, where there is one."""

    def processor(self) -> float | None:
        """Seconds of processor time of the server so far."""

    @property
    def called(self) -> str:
        """Name and version, as the server says it."""


class Postgres:
    """The cluster, with a database for each peer."""

    def __init__(self, dsn: str, data: Path) -> None:
        self._server = psycopg.connect(dsn, autocommit=True)
        self._dsn = dsn
        self._postmaster = int((data / "postmaster.pid").read_text().split()[0])
        self._connections: dict[str, psycopg.Connection] = {}

    @property
    def called(self) -> str:
        """Name and version, as the server says it."""
        row = self._server.execute("show server_version").fetchone()
        assert row is not None
        return f"PostgreSQL {row[0]}"

    def address(self, name: str) -> str:
        """Of a database; by its socket, in the form that every driver understands."""
        parts = conninfo_to_dict(self._dsn)
        return f"postgresql://{parts['user']}@/{name}?host={parts['host']}&port={parts['port']}"

    def fresh(self, name: str) -> str:
        """Drop the peer's database and make it anew."""
        database = name.replace("-", "_")
        if (old := self._connections.pop(name, None)) is not None:
            old.close()
        self._server.execute(f"drop database if exists {database} with (force)".encode())
        self._server.execute(f"create database {database}".encode())
        address = self.address(database)
        # A count that takes this long says that the peer cannot be measured so.
        self._connections[name] = psycopg.connect(address, autocommit=True, options="-c statement_timeout=60s")
        return address

    def run(self, name: str, sql: str) -> None:
        """Execute statements in a database that was made fresh."""
        self._connections[name].execute(sql.encode())

    def unfinished(self, name: str, query: str) -> int:
        """Count with the peer's own query."""
        row = self._connections[name].execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def wal(self) -> int | None:
        """Where the log is now."""
        row = self._server.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def processor(self) -> float | None:
        """The postmaster, those of its children that live, and through it those that ended."""
        total = processor_of(self._postmaster)
        if total is None:
            return None
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _parent(entry) == self._postmaster:
                total += processor_of(int(entry.name)) or 0.0
        return total

    def close(self) -> None:
        """Close the connections."""
        for connection in (*self._connections.values(), self._server):
            connection.close()


class Redis:
    """A server on a socket of its own, with its defaults: snapshots, no append-only file."""

    def __init__(self, socket: Path, pid: int) -> None:
        self._socket, self._pid = socket, pid

    def call(self, *words: str) -> str:
        """One command through redis-cli."""
        command = ["redis-cli", "-s", str(self._socket), "--raw", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode != 0:
            raise Stuck(f"redis-cli: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def fresh(self, name: str) -> str:
        """Forget everything; one peer at a time has it."""
        self.call("flushall")
        return str(self._socket)

    def unfinished(self, name: str, query: str) -> int:
        """Count with the peer's own expression."""
        return int(self.call("eval", f"return {query}", "0"))

    def wal(self) -> int | None:
        """There is none."""
        return None

    def processor(self) -> float | None:
        """Of the one process."""
        return processor_of(self._pid)

    @property
    def called(self) -> str:
        """Name and version, as the server says it."""
        info = dict(line.split(":", 1) for line in self.call("info", "server").splitlines() if ":" in line)
        return f"Redis {info['redis_version']}"


@contextmanager
def postgres(binaries: Path | None) -> Iterator[Postgres]:
    """Start the cluster in a temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory,
        Cluster(Path(directory), binaries=binaries, settings=SETTINGS) as cluster,
    ):
        server = Postgres(cluster.dsn, Path(directory) / "data")
        try:
            yield server
        finally:
            server.close()


@contextmanager
def redis() -> Iterator[Redis]:
    """Start Redis in a temporary directory; refuses with Missing."""
    program = redis_server()
    with tempfile.TemporaryDirectory(prefix="tenure-redis-", ignore_cleanup_errors=True) as directory:
        socket = Path(directory) / "redis.sock"
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", str(socket), "--dir", directory],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            give_up = time.monotonic() + 10
            while not socket.exists() and time.monotonic() < give_up:
                time.sleep(0.02)
            yield Redis(socket, process.pid)
        finally:
            process.kill()  # nothing in it is wanted any more
            process.wait()


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def machine() -> str:
    """How many processors this run may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores"
