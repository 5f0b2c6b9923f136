"""The dispatcher: Tenure's protocol over HTTP, for workers and callers that never see the database.

    client ─▶ guard (who asks? may they? how much?) ─▶ route ─▶ desk ─▶ store ─▶ PostgreSQL
                                                               ▲ claims, finishes and enqueues that come at the same
                                                               │ time go together, as one statement
    NOTIFY ─▶ bell ─▶ those who wait for a job (long polls), and remote workers that wait for a word

The promise: a dispatcher keeps nothing that matters. Kill it, run two, restart all from the database alone: what was
answered is stored, what was not answered can be asked again. Who asks is known before a byte of the body is read.
Nothing that a client sends causes a 5xx; while the database is away the answer is 503, and when to come back.

`client.py` is the other end: the same worker, through HTTP.
"""
