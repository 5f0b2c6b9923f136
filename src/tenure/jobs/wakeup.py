"""The content of a wake-up: a contract and a queue that may have jobs; an empty name stands for any."""

from __future__ import annotations

from typing import Final

#: Used instead of a contract's name: a job was changed, and its id is in the place of the queue.
JOB_CHANGED: Final = "#"
