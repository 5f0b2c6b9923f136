"""One way to the jobs for the application and its workers: direct (PostgreSQL) or remote (HTTP).

    app, worker ─▶ Connections ─▶ DirectClient ─▶ tenure.postgres ─▶ PostgreSQL
                              └─▶ RemoteClient ─▶ dispatcher (HTTP) ─▶ PostgreSQL

Both clients have the verbs of `JobSource`. Concurrent calls go in batches (`batching`); a call whose answer was lost is
repeated where a repeat is safe (`retry`).
"""
