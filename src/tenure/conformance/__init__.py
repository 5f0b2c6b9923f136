"""The conformance kit: does a server, or a worker in any language, keep the protocol of `docs/reference/protocol.md`?

    tenure conformance URL           server_probe ──HTTP──▶ the server          server_checks, task_checks
    tenure conformance --worker CMD  the worker ──HTTP──▶ fault_proxy ──▶ a dispatcher on a test database
                                     worker_scenarios, trouble_scenarios        what happens to the worker
                                     worker_rules                               what it must never send

A worker's scenario has a database, a dispatcher, a proxy and a worker process of its own. Upkeep runs only when the
scenario says so: a slow machine takes no lease away. Faults are written for the author of the worker or the server.
"""
