"""Doctor: reads a database in short read-only transactions and names what is wrong, each with the next command.

    examine ─▶ connect ─▶ parts, each in a read-only transaction of its own ─▶ findings, the worst first
                          settings, server, sessions, schema, work

    examination.py  `examine`, and `store.doctor`: connects, runs the parts, and goes on when one of them fails
    limits.py       the numbers from which on something is wrong
    server.py       settings, connections, clocks, sessions, replication
    schema.py       migrations, contracts, rights, indexes, ranges, vacuum
    work.py         workers, queues, upkeep, outbox, schedules, flows, datasets

Guarantee: nothing is written, and no lock is taken that another session could wait for. Each statement waits for locks
for half a second at most and runs for some seconds at most. The cost does not grow with the number of jobs.

Failures: a part that fails is a finding (`check-failed`); the others go on.
"""
