"""The only package that contains SQL.

    surface         store.py       verbs and their plans (generators)        statement
    app, worker ──▶ Store       ──▶ claim.py    ClaimVerbs, claim_plan    ──▶ queries/claim.sql
    HTTP, CLI       inherits        hold.py     HolderVerbs, move, notes      queries/succeed.sql, finish.sql, note.sql
                    these verbs     operate.py  OperatorVerbs                 queries/operate.sql, change_queue.sql
                                    enqueue.py  EnqueueVerbs, enqueue_plan    queries/enqueue.sql
                                    upkeep_verbs.py  UpkeepVerbs, reap_plan  queries/find_expired.sql, expire.sql
                                        │
                    engine.py: pools, retries     statement.py: binds values and executes each step

A plan yields statements and receives their rows; it never waits. `engine.py` runs plans on its own connections,
`callers_transaction.py` runs them on a connection of the caller (psycopg, asyncpg, SQLAlchemy, Django: see
`callers_connection.py`). `bound_contract.py` and `registry.py` turn contracts into parameter values. `migrate.py` and
`views.py` create the schema.

The guarantee: every state change, under every contract, is one statement that checks the state and the lease, changes
the row and writes exactly one log row. A move is sent by `move.py`, through `queries/finish.sql`, `expire.sql`,
`operate.sql` or `claim_by_id.sql`. There are two exceptions: a claim of due jobs (`queries/claim_plain.sql`,
`claim.sql`), which does not wait for locked rows, and a plain success (`queries/succeed_in_one_pass.sql`,
`succeed.sql`).

The failure policy: a refusal is a typed value, and it changed nothing. The engine runs a plan again after a deadlock. A
lost connection is raised as ConnectionLost, because only the caller knows whether to repeat the call.
"""
