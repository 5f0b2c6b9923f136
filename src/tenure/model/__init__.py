"""The pure model of a job's lifecycle: one step function with three users.

    step ─▶ explore   every reachable history of a contract, for `tenure contracts verify`
         ─▶ fold      replays a job's log, for `tenure verify`
         ─▶ tests     the oracle that PostgreSQL is compared with

It uses no database and no clock: a step depends only on its arguments.
"""
