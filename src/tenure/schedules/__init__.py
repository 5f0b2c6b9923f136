"""Schedules: jobs that are made at fixed times. This package is pure: it computes times and decides, and does no I/O.

    @app.every, app.schedule ─▶ Schedule (declaration.py)     what is stored
                                   │
    Timing (timing.py)  ◀──────────┘  the fire times: from cron.py in a time zone, or every N seconds
                │
    decide (decision.py)              which of the due times get a job, and when the next one is

Guarantee: the same declaration has the same fire times in every process. Jitter is a hash of the schedule's name and
the fire time. The database's clock is an argument; nothing here reads a clock.

Failures: a declaration that has no fire time, names an unknown zone or an impossible combination is refused with
`BadInput` when it is made.
"""
