"""What a wake-up says: there may be jobs of this contract and queue, where an empty name stands for any."""

from __future__ import annotations

from typing import Final

#: In the place of a contract's name: something was done to the job whose id stands in the place of the queue.
ABOUT_A_JOB: Final = "#"
