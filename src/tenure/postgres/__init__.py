"""The only room that speaks SQL.

    verbs.py ── yields statements ──▶ statement.py (two runners) ──▶ PostgreSQL
       ▲                                   ▲
    store.py: the verbs on a pool       queries/*.sql: each opens with the question it answers
    machine.py, registry.py: contracts as parameter values     migrate.py, views.py: the schema

The promise: every state change is one guarded, fenced statement with exactly one log row, whatever the contract. A move
goes through one gate (`queries/move.sql`), except a claim of whatever is due (`queries/claim.sql`), which waits for
nobody. The failure policy: a refusal is a typed value and changed nothing; a deadlock is tried again; a lost connection
is said to be one, because only the caller knows whether to repeat.
"""
