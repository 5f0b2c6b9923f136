"""Upkeep: what time does to jobs.

    reap      leases that ran out are closed: the claim is spent, the job goes its contract's way
    promote   waiting jobs whose time has come are made ready, with their wake-ups
    settle    jobs that a crash left at a commit point are ended
    extend    id ranges are made ahead
    forget    verbose payloads, idempotency keys and claim keys go when their time is up
    retire    ranges of finished jobs are dropped whole
    vacuum    the hot tables stay small

No leader: any number of processes may run every round, skip what others are at, and go on where a crash left off.
`Upkeep` runs it all as loops; `once` runs one round.
"""

from tenure.upkeep.clock import Jump
from tenure.upkeep.loops import Pace, Upkeep
from tenure.upkeep.rounds import Keep, Report, once

__all__ = ["Jump", "Keep", "Pace", "Report", "Upkeep", "once"]
