"""The dispatcher: Tenure's protocol over HTTP, for workers and callers that never see the database.

    bytes ─▶ protocol_limits      the size and time limits of a request
          ─▶ application          its ids; its row in `route_table`; the guard; its body as a model
               └─▶ authentication the caller, by its bearer key, and the caller's scopes
          ─▶ routes/              the bodies and functions of the routes (`models/`: what bodies share)
          ─▶ job_calls            calls of all clients at the same moment become one batch
               └─▶ long_poll      claims that wait for a job, woken by NOTIFY
          ─▶ postgres.store       one statement per batch
          ─▶ response             the outcome as JSON; errors by `error_response`

Guarantee: a dispatcher keeps no state that matters. Every answered call is stored in PostgreSQL. A call without an
answer can be repeated. Any number of dispatchers may run side by side, and each may be killed at any time.

Failure policy: the caller is authenticated before a byte of the body is read. Nothing that a client sends causes a 5xx.
While the database is unavailable the answer is 503 with Retry-After. An error of one call in a batch goes to that call
only. An unexpected error is a 500, and the log has its traceback under the trace id.

`tenure.client.remote` is the other end: the same worker, over HTTP.
"""

from tenure.errors import require_extra

require_extra("dispatcher", "the dispatcher", "starlette", "uvicorn", "httptools")
