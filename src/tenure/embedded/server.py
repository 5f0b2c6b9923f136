"""The server of one cluster: create, start, stop. Every function here is called behind the gate."""

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
from tenure.embedded.place import PORT, Place, StartFailed

USER = "postgres"
START_WITHIN = 60.0  # seconds, crash recovery included
ORPHANS_LEAVE_WITHIN = 15.0
STOP_WITHIN = 30.0
DIE_WITHIN = 15.0  # PostgreSQL kills its own children 5 seconds into an immediate stop
MOMENT = 0.01

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "logging_collector": "off",
    "log_destination": "stderr",
}


def start(place: Place, binaries: Path, settings: Mapping[str, str]) -> None:
    """Make sure that the server answers, creating the cluster if need be; refuses with StartFailed."""
    if _answers(place, binaries):
        return
    account = choose_account(place, binaries)
    if not place.data.exists():
        _create(place, binaries, account)
    give_up = time.monotonic() + START_WITHIN
    orphans_leave = time.monotonic() + ORPHANS_LEAVE_WITHIN
    launched: int | None = None
    leftover = False
    while not _answers(place, binaries):
        if time.monotonic() > give_up:
            raise StartFailed(f"PostgreSQL did not answer within {START_WITHIN:.0f} seconds", place)
        if launched is not None and not _serves(launched, place) and not _comes_up(launched, place):
            # A killed server's children leave its shared memory a moment later; until then no new one starts.
            if not leftover or time.monotonic() > orphans_leave:
                raise StartFailed("PostgreSQL gave up while starting", place)
            launched = None
        # A server whose launcher was killed may be half way up, or half way down: it needs only patience.
        if launched is None and _postmaster(place) is None:
            leftover = (place.data / "postmaster.pid").exists()
            _forget_stranger(place)
            launched = _launch(place, binaries, account, settings)
        time.sleep(MOMENT)


def stop(place: Place) -> None:
    """Stop the server and wait for its end: fast, then immediately when it takes too long."""
    for how, within in ((signal.SIGINT, STOP_WITHIN), (signal.SIGQUIT, DIE_WITHIN)):
        give_up = time.monotonic() + within
        if (pid := _postmaster(place)) is None:
            return
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return
        while time.monotonic() < give_up:
            if not _serves(pid, place):
                return
            time.sleep(MOMENT)
    raise RuntimeError(f"PostgreSQL in {place.directory} (pid {pid}) did not stop")


def _create(place: Place, binaries: Path, account: Account) -> None:
    """Run initdb beside the data directory and rename: a cluster exists whole or not at all."""
    for abandoned in place.directory.glob("initdb-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=place.directory))
    account.own(fresh)
    options = ["--encoding=UTF8", "--no-locale", "--auth=trust", f"--username={USER}", "--no-instructions"]
    initdb = _run([*account.prefix, str(binaries / "initdb"), "-D", str(fresh), *options])
    if initdb.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise StartFailed(f"initdb failed: {initdb.stdout.decode(errors='replace').strip()}", place)
    fresh.rename(place.data)
    # initdb has synced what is inside; the name is ours to sync.
    directory = os.open(place.directory, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _launch(place: Place, binaries: Path, account: Account, settings: Mapping[str, str]) -> int:
    """Start postgres as nobody's child, in a session of its own, and give its pid."""
    account.own(place.data)
    place.make_socket_directory()
    place.trim_log()
    fixed = {"unix_socket_directories": str(place.socket_directory), "port": str(PORT)}
    flags = [f"{name}={value}" for name, value in {**SETTINGS, **settings, **fixed}.items()]
    command = [*account.prefix, str(binaries / "postgres"), "-D", str(place.data)]
    for flag in flags:
        command += ["-c", flag]
    with place.log.open("ab") as log:
        # The shell leaves at once and init adopts the server. Were it our child, a killed server would stay a
        # zombie while we live, its pid would look alive, and nobody could start the next one.
        shell = _run(["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command], stderr=log)
    return int(shell.stdout)


def _answers(place: Place, binaries: Path) -> bool:
    if not (place.data / "postmaster.pid").exists():
        return False
    where = ["-h", str(place.socket_directory), "-p", str(PORT), "-U", USER, "-d", "postgres", "-t", "3"]
    return _run([str(binaries / "pg_isready"), *where]).returncode == 0


def _postmaster(place: Place) -> int | None:
    """Give the pid of the server that runs on this data directory, if one does."""
    try:
        pid = int((place.data / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None
    return pid if _serves(pid, place) else None


def _serves(pid: int, place: Place) -> bool:
    """Say whether the pid is a living server of ours: pids are reused, and a zombie has a pid too."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists() and _exists(pid)
    return b"-D" in words and os.fsencode(place.data) in words


def _comes_up(pid: int, place: Place) -> bool:
    """Look again: a process that is just becoming another program has no command line for a moment."""
    time.sleep(MOMENT)
    return _serves(pid, place)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _forget_stranger(place: Place) -> None:
    """Remove lock files naming a stranger's pid (or a zombie's), which PostgreSQL takes for a server."""
    file = place.data / "postmaster.pid"
    try:
        lines = file.read_text().splitlines()
        stranger = _exists(int(lines[0]))
    except (FileNotFoundError, IndexError, ValueError):
        return
    # The interlock that PostgreSQL itself trusts: whoever is attached to that memory may still write.
    shared_memory = lines[6].split()[-1] if len(lines) > 6 and lines[6].strip() else None
    if stranger and not _attached(shared_memory):
        file.unlink(missing_ok=True)
        (place.socket_directory / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)


def _attached(shared_memory: str | None) -> bool:
    if shared_memory is None:
        return False
    try:
        rows = [row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    except FileNotFoundError:
        return True
    return any(row[1] == shared_memory and row[6] != "0" for row in rows)


def _run(command: list[str], stderr: int | IO[bytes] = subprocess.STDOUT) -> subprocess.CompletedProcess[bytes]:
    """Run a program away from our terminal, our directory and our PG* variables, in words we can read."""
    # Descriptors close on exec (the default): a server that inherited our lock would hold itself for ever.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        command,
        cwd="/",
        env={**environment, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
