"""What a person gave on the command line: ids that must be numbers, and who is asking."""

from __future__ import annotations

import os
import pwd
import re

from tenure import intake
from tenure.errors import BadInput


def number(kind: str, text: str) -> int:
    """An id as it was typed; refuses what is none before anything is asked."""
    # Not int(): it would take 4_2, and digits of other scripts, for an id.
    if not re.fullmatch(r"[0-9]{1,30}", text):
        raise BadInput(f"{kind} must be a whole number, not {text!r}")
    return intake.whole(kind, int(text), 1, intake.MAX_ID)


def user() -> str:
    """The operating system's name for who runs this command: the account, not what its environment claims."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a number that has no account
        return f"uid {os.getuid()}"
