"""The account that runs the server: PostgreSQL refuses root, and initdb refuses a uid without a name."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.embedded.directory import ClusterDirectory, StartFailed


@dataclass(frozen=True)
class Account:
    """A command prefix that changes the account, and the owner that the data directory needs, if another."""

    prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None

    def take_over(self, directory: Path) -> None:
        """Change the owner of the directory and its content to the account, unless it is already."""
        if self.owner is None or directory.stat().st_uid == self.owner[0]:
            return
        for parent, directories, files in os.walk(directory):
            for name in (*directories, *files):
                os.chown(os.path.join(parent, name), *self.owner, follow_symlinks=False)
        # The top last: the check above looks at it when an attempt was interrupted.
        os.chown(directory, *self.owner)


def choose_account(directory: ClusterDirectory, binaries: Path) -> Account:
    """Choose the account of the server; refuses with StartFailed when root cannot change to another account."""
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return Account()
    # Inside the namespace the server is this user, outside it keeps our uid: no file changes its owner, and the
    # server can pass a 0700 parent directory.
    nobody = _nobody()
    namespace = ("unshare", "--user", f"--map-user={nobody[0]}", f"--map-group={nobody[1]}", "--")
    found = directory.data.stat() if directory.data.exists() else None
    if (found is None or found.st_uid == os.geteuid()) and _can_access(namespace, directory, binaries):
        return Account(namespace)
    if os.geteuid() != 0:
        raise StartFailed(f"initdb needs a name for uid {os.geteuid()}, and namespaces are blocked", directory)
    # Data of another user is served under that user's uid, so that the user can continue without root.
    owner = (found.st_uid, found.st_gid) if found and found.st_uid else nobody
    # Keep one capability, to pass 0700 parents and to read binaries in a private home (the namespace gives as
    # much: there the server stays root for the file system). The secure bit is for access(2), which initdb calls
    # on its own programs, and which ignores a capability without it.
    dropped = (
        *("setpriv", f"--reuid={owner[0]}", f"--regid={owner[1]}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup", "--"),
    )
    if _can_access(dropped, directory, binaries):
        return Account(dropped, owner)
    raise StartFailed(
        "PostgreSQL refuses to run as root, and neither `unshare --user` nor `setpriv` works here: "
        "run as an ordinary user or set DATABASE_URL",
        directory,
    )


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return 65534, 65534
    return entry.pw_uid, entry.pw_gid


def _can_access(prefix: Sequence[str], directory: ClusterDirectory, binaries: Path) -> bool:
    """Whether the prefix works here and can access the programs and the directory."""
    if shutil.which(prefix[0]) is None:
        return False
    check = 'test -x "$1" && test -w "$2"'
    command = [*prefix, "/bin/sh", "-c", check, "sh", str(binaries / "postgres"), str(directory.path)]
    return subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
