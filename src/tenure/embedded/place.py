"""The directory of one cluster, and what goes wrong in it."""

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tenure.errors import EmbeddedError

PORT = 5432
# sun_path holds 107 bytes on Linux and 103 on macOS.
LONGEST_SOCKET = 103
LARGEST_LOG = 10_000_000


@dataclass(frozen=True)
class Place:
    """Names every file of a cluster; the directory is absolute."""

    directory: Path

    @property
    def gate(self) -> Path:
        """The lock that one process holds while it creates, starts or stops."""
        return self.directory / "gate"

    @property
    def lock(self) -> Path:
        """The lock that every holder shares."""
        return self.directory / "lock"

    @property
    def data(self) -> Path:
        """What initdb made."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.directory / "log"

    @property
    def socket_directory(self) -> Path:
        """Where the socket is: in the data directory, or short under /tmp when that path is too long."""
        if len(os.fsencode(self.data / f".s.PGSQL.{PORT}")) <= LONGEST_SOCKET:
            return self.data
        # /tmp and not $TMPDIR: every holder must arrive at the same name.
        return Path("/tmp") / f"tenure-{hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]}"

    def make(self) -> None:
        """Make the directory, and keep it out of every repository."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            ignore = self.directory / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            self.gate.touch(mode=0o600)
        except OSError as error:
            raise EmbeddedError(
                f"the embedded PostgreSQL cannot live in {self.directory}: {error.strerror}. "
                "Next: go to a directory that is yours, or set DATABASE_URL"
            ) from error

    def make_socket_directory(self) -> None:
        """Make the short socket directory, private to the data's owner; refuses one made by a stranger."""
        if self.socket_directory == self.data:
            return
        owner = self.data.stat()
        try:
            os.mkdir(self.socket_directory, 0o700)
            os.chown(self.socket_directory, owner.st_uid, owner.st_gid)
        except FileExistsError:
            # /tmp belongs to everyone: whoever owns the socket's directory could answer in our server's name.
            found = os.lstat(self.socket_directory)
            private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
            if not private or found.st_uid not in (owner.st_uid, os.geteuid()):
                raise StartFailed(f"{self.socket_directory} is not private to us: remove it", self) from None
            if found.st_uid != owner.st_uid:
                os.chown(self.socket_directory, owner.st_uid, owner.st_gid)

    def remove_socket_directory(self) -> None:
        """Leave nothing in /tmp once the server is down."""
        if self.socket_directory != self.data:
            # Gone already, or a stranger's: not ours to remove.
            with contextlib.suppress(OSError):
                self.socket_directory.rmdir()

    def trim_log(self) -> None:
        """Put a large log aside, so that at most two of them exist."""
        if self.log.exists() and self.log.stat().st_size > LARGEST_LOG:
            self.log.replace(self.log.with_name("log.1"))

    def log_tail(self, lines: int = 15) -> str:
        """Give the last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


class StartFailed(EmbeddedError):
    """The embedded PostgreSQL did not start."""

    code = "E-START-FAILED"

    def __init__(self, reason: str, place: Place) -> None:
        """Say why, with the tail of the log."""
        super().__init__(f"{reason}\n--- the end of {place.log}:\n{place.log_tail()}")
