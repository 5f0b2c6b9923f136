"""Who the server runs as: PostgreSQL refuses root, and initdb refuses a uid without a name."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.embedded.place import Place, StartFailed


@dataclass(frozen=True)
class Account:
    """What to write before a command, and who must own the data directory when that is not us."""

    prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None

    def own(self, directory: Path) -> None:
        """Give the directory and everything in it to the account, when it is not theirs already."""
        if self.owner is None or directory.stat().st_uid == self.owner[0]:
            return
        for parent, directories, files in os.walk(directory):
            for name in (*directories, *files):
                os.chown(os.path.join(parent, name), *self.owner, follow_symlinks=False)
        # The top last: it is what the next attempt looks at.
        os.chown(directory, *self.owner)


def choose_account(place: Place, binaries: Path) -> Account:
    """Choose who runs the server; refuses with StartFailed when root can become nobody else."""
    if os.geteuid() != 0 and _named(os.geteuid()):
        return Account()
    # Inside the namespace we are this user, outside we stay who we are: nothing changes owner, and a 0700
    # parent lets us pass.
    nobody = _nobody()
    namespace = ("unshare", "--user", f"--map-user={nobody[0]}", f"--map-group={nobody[1]}", "--")
    found = place.data.stat() if place.data.exists() else None
    if (found is None or found.st_uid == os.geteuid()) and _reaches(namespace, place, binaries):
        return Account(namespace)
    if os.geteuid() != 0:
        raise StartFailed(f"initdb needs a name for uid {os.geteuid()}, and namespaces are blocked", place)
    # Somebody else's data is served under their name, so that they can go on without us.
    owner = (found.st_uid, found.st_gid) if found and found.st_uid else nobody
    # One capability comes along, to pass 0700 parents and to read binaries in a private home (the namespace
    # gives as much: there the server stays root for the file system). The secure bit is for access(2), which
    # initdb asks about its own programs, and which ignores a capability without it.
    dropped = (
        *("setpriv", f"--reuid={owner[0]}", f"--regid={owner[1]}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup", "--"),
    )
    if _reaches(dropped, place, binaries):
        return Account(dropped, owner)
    raise StartFailed(
        "PostgreSQL refuses to run as root, and neither `unshare --user` nor `setpriv` works here: "
        "run as an ordinary user or set DATABASE_URL",
        place,
    )


def _named(uid: int) -> bool:
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


def _reaches(prefix: Sequence[str], place: Place, binaries: Path) -> bool:
    """Say whether the prefix works here, and reaches both the programs and the directory."""
    if shutil.which(prefix[0]) is None:
        return False
    check = 'test -x "$1" && test -w "$2"'
    command = [*prefix, "/bin/sh", "-c", check, "sh", str(binaries / "postgres"), str(place.directory)]
    return subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
