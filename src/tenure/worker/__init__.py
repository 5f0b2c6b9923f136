"""The worker: fetch → run → settle, with heartbeats that nothing in it can stop.

    main loop       fetch    claims for its free slots, only what it starts at once, and asks again as slots free up
                    run      async handlers here, plain functions in threads, isolated ones in killable processes
                    settle   says what became of each job; what is said at the same time goes together
    service thread  beats for every job that is held, on a connection of its own; upkeep and wake-ups beside it

The promise: a blocked loop is not a dead worker, a lost lease ends its handler, nobody's late result is stored, and
whatever ends this process, the database knows what to do with its jobs. The worker says what happened; it never decides
whether or when a job runs again.
"""

from tenure.worker.worker import Worker

__all__ = ["Worker"]
