"""A cluster that several processes hold at the same time."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tenure.embedded import server
from tenure.embedded.binaries import check_binaries, find_binaries
from tenure.embedded.directory import PORT, ClusterDirectory


class Cluster:
    """One PostgreSQL in one directory, running while a process holds it; the first acquire starts it."""

    def __init__(
        self, directory: Path, *, binaries: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """The directory, and optionally the programs and server settings."""
        self._directory = ClusterDirectory(Path(directory).resolve())
        self._binaries = binaries
        self._settings = dict(settings or {})
        # One entry per acquire: the pid that took the lock, and the descriptor of the lock.
        self._holds: list[tuple[int, int]] = []

    @property
    def directory(self) -> Path:
        """The cluster's directory, absolute."""
        return self._directory.path

    @property
    def dsn(self) -> str:
        """The address to connect to while the cluster is held."""
        host = quote(str(self._directory.socket_directory), safe="")
        return f"postgresql://{server.USER}@/postgres?host={host}&port={PORT}"

    def acquire(self) -> bool:
        """Hold the cluster, and start it if it is down; whether it was. Refuses with NoBinaries or StartFailed."""
        binaries = check_binaries(self._binaries) if self._binaries else find_binaries()
        self._directory.make()
        with self._gate():
            hold = _open(self._directory.lock)
            try:
                fcntl.flock(hold, fcntl.LOCK_SH)
                started = server.start(self._directory, binaries, self._settings)
            except BaseException:
                self._release(hold)
                raise
            self._holds.append((os.getpid(), hold))
        return started

    def release(self) -> None:
        """Undo one acquire; the last holder stops the server."""
        if not self._holds:
            raise RuntimeError(f"{self.directory} was released more often than acquired")
        pid, hold = self._holds.pop()
        if pid != os.getpid():
            # A forked child has a copy of its parent's lock: closing the copy does not release the lock.
            os.close(hold)
            return
        with self._gate():
            self._release(hold)

    def __enter__(self) -> Self:
        """Acquire."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Release."""
        self.release()

    @contextmanager
    def _gate(self) -> Iterator[None]:
        gate = _open(self._directory.gate)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(gate)

    def _release(self, hold: int) -> None:
        """Release a hold, under the gate; a holder that can get the lock exclusively is the last one."""
        try:
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            server.stop(self._directory)
            self._directory.remove_socket_directory()
        except BlockingIOError:
            pass
        finally:
            _unlock(hold)


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _unlock(lock: int) -> None:
    # Not only close: a forked child may have a copy of the descriptor, which would keep the lock.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
