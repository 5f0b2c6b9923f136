"""The files of one cluster, and the error when it does not start."""

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from tenure.errors import EmbeddedError

PORT = 5432
# sun_path holds 107 bytes on Linux and 103 on macOS.
MAX_SOCKET_PATH = 103
MAX_LOG_BYTES = 10_000_000


class ClusterDirectory:
    """The paths of a cluster's files; `path` is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The exclusive lock of a process that creates, starts or stops the server.
        self.gate = path / "gate"
        #: The shared lock of every holder.
        self.lock = path / "lock"
        #: The data directory, made by initdb.
        self.data = path / "data"
        #: Written by a running server.
        self.pid_file = self.data / "postmaster.pid"
        self.log = path / "log"
        #: The directory of the socket: the data directory, or a short path under /tmp when that is too long.
        self.socket_directory = self.data
        if len(os.fsencode(self.data / f".s.PGSQL.{PORT}")) > MAX_SOCKET_PATH:
            # /tmp and not $TMPDIR: every holder must compute the same path.
            self.socket_directory = Path("/tmp") / f"tenure-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"

    def make(self) -> None:
        """Make the directory, with a .gitignore."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            self.gate.touch(mode=0o600)
        except OSError as error:
            raise EmbeddedError(
                f"the embedded PostgreSQL cannot be in {self.path}: {error.strerror}. "
                "Next: change to a directory that you can write to, or set DATABASE_URL"
            ) from error

    def make_socket_directory(self) -> None:
        """Make the short socket directory, private to the data's owner; refuses one of another user."""
        if self.socket_directory == self.data:
            return
        owner = self.data.stat()
        try:
            os.mkdir(self.socket_directory, 0o700)
            os.chown(self.socket_directory, owner.st_uid, owner.st_gid)
        except FileExistsError:
            # All users can write to /tmp: the owner of the socket's directory could answer instead of our server.
            found = os.lstat(self.socket_directory)
            private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
            if not private or found.st_uid not in (owner.st_uid, os.geteuid()):
                raise StartFailed(f"{self.socket_directory} is not private. Next: remove it", self) from None
            if found.st_uid != owner.st_uid:
                os.chown(self.socket_directory, owner.st_uid, owner.st_gid)

    def remove_socket_directory(self) -> None:
        """Remove the directory in /tmp after the server has stopped."""
        if self.socket_directory != self.data:
            # It is gone already, or belongs to another user.
            with contextlib.suppress(OSError):
                self.socket_directory.rmdir()

    def trim_log(self) -> None:
        """Rename a large log to log.1, so that at most two logs exist."""
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.replace(self.log.with_name("log.1"))

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


class StartFailed(EmbeddedError):
    """The embedded PostgreSQL did not start."""

    code = "E-START-FAILED"

    def __init__(self, reason: str, directory: ClusterDirectory) -> None:
        """The reason, with the end of the log."""
        super().__init__(f"{reason}\n--- the end of {directory.log}:\n{directory.log_tail()}")
