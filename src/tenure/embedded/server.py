"""The server of one cluster: create, start, stop. The caller holds the gate lock."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tenure.embedded.account import Account, choose_account
from tenure.embedded.directory import PORT, ClusterDirectory, StartFailed

USER = "postgres"
START_TIMEOUT_S = 60.0  # crash recovery included
ORPHANS_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 30.0
IMMEDIATE_STOP_TIMEOUT_S = 15.0  # PostgreSQL kills its own children 5 seconds into an immediate stop
POLL_S = 0.01

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "logging_collector": "off",
    "log_destination": "stderr",
}


def start(directory: ClusterDirectory, binaries: Path, settings: Mapping[str, str]) -> bool:
    """Start the server unless it answers; creates the cluster if needed. Returns whether it was down."""
    if _answers(directory, binaries):
        return False
    account = choose_account(directory, binaries)
    if not directory.data.exists():
        _create(directory, binaries, account)
    give_up = time.monotonic() + START_TIMEOUT_S
    orphans_until = time.monotonic() + ORPHANS_TIMEOUT_S
    launched: int | None = None
    has_stale_pid_file = False
    while not _answers(directory, binaries):
        if time.monotonic() > give_up:
            raise StartFailed(f"PostgreSQL did not answer within {START_TIMEOUT_S:.0f} seconds", directory)
        if launched is not None and not _serves(launched, directory) and not _serves_soon(launched, directory):
            # The children of a killed server detach from its shared memory later; a new server cannot start before.
            if not has_stale_pid_file or time.monotonic() > orphans_until:
                raise StartFailed("PostgreSQL gave up while starting", directory)
            launched = None
        # A server whose launcher was killed may still be starting or stopping: wait for it.
        if launched is None and _postmaster(directory) is None:
            has_stale_pid_file = directory.pid_file.exists()
            _remove_stale_locks(directory)
            launched = _launch(directory, binaries, account, settings)
        time.sleep(POLL_S)
    return True


def stop(directory: ClusterDirectory) -> None:
    """Stop the server and wait for its end: a fast stop, then an immediate one after a timeout."""
    for stop_signal, timeout in ((signal.SIGINT, STOP_TIMEOUT_S), (signal.SIGQUIT, IMMEDIATE_STOP_TIMEOUT_S)):
        give_up = time.monotonic() + timeout
        if (pid := _postmaster(directory)) is None:
            return
        try:
            os.kill(pid, stop_signal)
        except ProcessLookupError:
            return
        while time.monotonic() < give_up:
            if not _serves(pid, directory):
                return
            time.sleep(POLL_S)
    raise RuntimeError(f"PostgreSQL in {directory.path} (pid {pid}) did not stop")


def _create(directory: ClusterDirectory, binaries: Path, account: Account) -> None:
    """Run initdb beside the data directory and rename the result, so that a cluster is complete or absent."""
    for abandoned in directory.path.glob("initdb-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=directory.path))
    account.take_over(fresh)
    options = ["--encoding=UTF8", "--no-locale", "--auth=trust", f"--username={USER}", "--no-instructions"]
    initdb = _run([*account.prefix, str(binaries / "initdb"), "-D", str(fresh), *options])
    if initdb.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise StartFailed(f"initdb failed: {initdb.stdout.decode(errors='replace').strip()}", directory)
    fresh.rename(directory.data)
    # initdb has synced the files inside; the new name must be synced here.
    descriptor = os.open(directory.path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _launch(directory: ClusterDirectory, binaries: Path, account: Account, settings: Mapping[str, str]) -> int:
    """Start postgres in its own session, as a child of init; returns its pid."""
    account.take_over(directory.data)
    directory.make_socket_directory()
    directory.trim_log()
    fixed = {"unix_socket_directories": str(directory.socket_directory), "port": str(PORT)}
    command = [*account.prefix, str(binaries / "postgres"), "-D", str(directory.data)]
    for name, value in {**SETTINGS, **settings, **fixed}.items():
        command += ["-c", f"{name}={value}"]
    with directory.log.open("ab") as log:
        # The shell ends at once and init adopts the server. A killed server that is our child would stay a zombie
        # while this process lives; its pid would look alive, and no process could start the next server.
        shell = _run(["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command], stderr=log)
    return int(shell.stdout)


def _answers(directory: ClusterDirectory, binaries: Path) -> bool:
    if not directory.pid_file.exists():
        return False
    target = ["-h", str(directory.socket_directory), "-p", str(PORT), "-U", USER, "-d", "postgres", "-t", "3"]
    return _run([str(binaries / "pg_isready"), *target]).returncode == 0


def _postmaster(directory: ClusterDirectory) -> int | None:
    """The pid of the server that runs on this data directory, if there is one."""
    pid, _ = _read_pid_file(directory)
    return pid if pid is not None and _serves(pid, directory) else None


def _read_pid_file(directory: ClusterDirectory) -> tuple[int | None, str | None]:
    """The pid, and the id of the shared memory, as far as the file has them."""
    try:
        lines = directory.pid_file.read_text().splitlines()
        return int(lines[0]), lines[6].split()[-1] if len(lines) > 6 and lines[6].strip() else None
    except (FileNotFoundError, IndexError, ValueError):
        return None, None


def _serves(pid: int, directory: ClusterDirectory) -> bool:
    """Whether the pid is a living server on this data directory: pids are reused, and a zombie has a pid too."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists() and _exists(pid)
    return b"-D" in arguments and os.fsencode(directory.data) in arguments


def _serves_soon(pid: int, directory: ClusterDirectory) -> bool:
    """Check again after a moment: during exec a process has no command line."""
    time.sleep(POLL_S)
    return _serves(pid, directory)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _remove_stale_locks(directory: ClusterDirectory) -> None:
    """Remove lock files with the pid of another program or a zombie, which PostgreSQL takes for a server."""
    pid, shared_memory = _read_pid_file(directory)
    # PostgreSQL's own interlock: a process that is attached to this shared memory may still write.
    if pid is not None and _exists(pid) and not _attached(shared_memory):
        directory.pid_file.unlink(missing_ok=True)
        (directory.socket_directory / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)


def _attached(shared_memory: str | None) -> bool:
    if shared_memory is None:
        return False
    try:
        rows = [row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    except FileNotFoundError:
        return True
    return any(row[1] == shared_memory and row[6] != "0" for row in rows)


def _run(command: list[str], stderr: int | IO[bytes] = subprocess.STDOUT) -> subprocess.CompletedProcess[bytes]:
    """Run a program without our terminal, directory and PG* variables, with English messages."""
    # Descriptors close on exec (the default): a server that inherited the lock would hold itself for ever.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        command, cwd="/", env={**environment, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=stderr, start_new_session=True,
    )  # fmt: skip
