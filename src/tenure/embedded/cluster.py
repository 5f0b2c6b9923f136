"""A cluster that processes hold together."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tenure.embedded import server
from tenure.embedded.binaries import check_binaries, find_binaries
from tenure.embedded.place import PORT, Place


class Cluster:
    """One PostgreSQL in one directory, up while anyone holds it; nothing happens before the first acquire."""

    def __init__(
        self, directory: Path, *, binaries: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """Name the directory, and optionally the programs and server settings."""
        self._place = Place(Path(directory).resolve())
        self._binaries = binaries
        self._settings = dict(settings or {})
        # One entry per acquire: who took the lock, and the descriptor that carries it.
        self._holds: list[tuple[int, int]] = []

    @property
    def directory(self) -> Path:
        """The cluster's directory, absolute."""
        return self._place.directory

    @property
    def dsn(self) -> str:
        """The address to connect to while the cluster is held."""
        host = quote(str(self._place.socket_directory), safe="")
        return f"postgresql://{server.USER}@/postgres?host={host}&port={PORT}"

    def acquire(self) -> None:
        """Hold the cluster, starting it if it is down; refuses with NoBinaries or StartFailed."""
        binaries = check_binaries(self._binaries) if self._binaries else find_binaries()
        self._place.make()
        with self._gate():
            hold = _open(self._place.lock)
            try:
                fcntl.flock(hold, fcntl.LOCK_SH)
                server.start(self._place, binaries, self._settings)
            except BaseException:
                self._let_go(hold)
                raise
            self._holds.append((os.getpid(), hold))

    def release(self) -> None:
        """Let go of one acquire; the last holder of all stops the server."""
        if not self._holds:
            raise RuntimeError(f"{self.directory} was released more often than acquired")
        holder, hold = self._holds.pop()
        if holder != os.getpid():
            # A forked child has a copy of its parent's lock: closing the copy leaves the lock alone.
            os.close(hold)
            return
        with self._gate():
            self._let_go(hold)

    def __enter__(self) -> Self:
        """Acquire."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release."""
        self.release()

    @contextmanager
    def _gate(self) -> Iterator[None]:
        gate = _open(self._place.gate)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(gate)

    def _let_go(self, hold: int) -> None:
        """Give up a hold, behind the gate: whoever can have the lock alone is the last."""
        try:
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            server.stop(self._place)
            self._place.remove_socket_directory()
        except BlockingIOError:
            pass
        finally:
            _unlock(hold)


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _unlock(lock: int) -> None:
    # Not only close: a forked child may have a copy of the descriptor, and would keep the lock with it.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
