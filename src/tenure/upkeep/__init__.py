"""Upkeep: the changes that the passing of time makes to jobs.

    look ─┬─▶ settle    end jobs that a crash left at a commit point of their contract
          ├─▶ reap      close expired leases: the claim is spent, the contract decides the next state
          ├─▶ promote   make waiting jobs ready when they are due, and send their wake-ups
          ├─▶ fire      make the jobs of schedules that are due
          ├─▶ advance   start the nodes of flows whose parents have ended
          ├─▶ route     make the jobs of events of datasets
          └─▶ finish    cancel the jobs that a rollback left, where a process died within it
    extend              create id ranges ahead of need
    forget              delete old payloads, idempotency keys, claim keys, fires of schedules, data of datasets
    retire              drop whole ranges of old finished jobs
    workers             delete the rows of dead workers; warn about job types that no live worker takes
    release             let claims try quarantined jobs again
    publish             send wake-ups to message queues, where some are set (`publisher.py`)
    end unknown         end due jobs whose type no live worker knows (off by default)
    alarms              look for conditions that people shall know of, and send notices (`alarm_watch.py`)
    vacuum              keep the hot tables small

Guarantee: every part rechecks each job under its row lock and skips locked rows, so any number of processes may run
every part at the same time. There is no leader. A crash loses nothing: the next round of any process continues.

Failures: a part that fails does not stop the others; it logs the reason once and tries again. When the database's clock
jumps ahead, reaping waits until holders had the time to send a heartbeat (`clock_jump.py`).

`Upkeep` (`loops.py`) runs all parts as loops; `once` (`rounds.py`) runs each part one time.
"""

from tenure.upkeep.alarm_watch import AlarmWatch
from tenure.upkeep.clock_jump import Jump
from tenure.upkeep.loops import Periods, Upkeep
from tenure.upkeep.rounds import KeepTimes, Report, once

__all__ = ["AlarmWatch", "Jump", "KeepTimes", "Periods", "Report", "Upkeep", "once"]
