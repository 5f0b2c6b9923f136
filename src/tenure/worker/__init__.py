"""The worker: claims jobs, runs their handlers and reports what happened.

    main event loop       ClaimLoop ─▶ JobRuns ─▶ Executor ─▶ Reports
                          claims for   holds and  calls the    reports the outcome until the database answers;
                          free slots   starts     handler      successes go in batches

    service thread        HeartbeatLoop   renews the leases of all held jobs
    (own event loop and   Watchdog        hands back jobs that a blocked main loop does not start
    connection)           Presence        keeps the worker's row in `tenure.worker`
                          and the services of the app: upkeep, wake-ups

    threads, processes    plain functions in threads; isolated handlers and jobs that must run alone in child processes

Guarantee: a blocked event loop costs no lease, and keeps no unstarted job from other workers. A lost lease stops its
handler, and a late result is refused. When the process dies, leases end and the database decides about its jobs. The
worker reports what happened; it never decides whether or when a job runs again.

Failure policy: while the database or the dispatcher is away, calls about jobs are retried until they are answered, and
claims and heartbeats are retried with growing waits. A handler's exception is a failure of its job alone. A middleware
hook that raises is logged. A service that fails is started again. At shutdown, handlers get the grace period to end;
the rest is handed back.

    worker.py          connect, run, stop                  running_job.py   one held job
    claim_loop.py      claims                              shared_parts.py  what the parts share; free slots
    receive_loop.py    claims of tasks that messages name  (in place of claims, with a message queue)
    job_runs.py        the held jobs, and their tasks      executor.py      where a handler runs
    handler.py         the call of a handler               context_port.py  calls of a handler's context
    reports.py         outcomes and lost answers           failure_log.py   log records of failed attempts
    job_history.py     what a job's log tells its holder
    child_process.py, child_log.py    isolated handlers
    service_thread.py, heartbeat.py, watchdog.py, presence.py
    signals.py, standalone.py         the process that runs the worker
"""

from tenure.worker.worker import Worker

__all__ = ["Worker"]
