"""Two applications that know nothing of each other: `tenure worker tests.faults.two_apps:ours` and `…:theirs`.

Both have a task `send`; `theirs` has a name, so that its jobs are of another type.
"""

from __future__ import annotations

import os

import tenure

_URL = os.environ.get("DATABASE_URL", "postgresql://nowhere")
ours = tenure.App(_URL)
theirs = tenure.App(_URL, name="billing")


@ours.task
async def send(n: int) -> str:
    """A job of the first application."""
    return f"ours {n}"


@theirs.task(name="send")
async def send_bill(n: int) -> str:
    """A job of the second one, under the same name."""
    return f"theirs {n}"


@theirs.task
async def charge(n: int) -> int:
    """What only the second one knows."""
    return n
