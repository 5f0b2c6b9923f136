"""Django's connection to a database, for statements that join its transaction; and its address, for workers."""

from __future__ import annotations

from typing import Any

import psycopg
from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, reset_queries
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from tenure.errors import BadInput


def check_database(alias: str) -> None:
    """Refuse a database that is not PostgreSQL through psycopg 3."""
    wrapper = connections[alias]
    if wrapper.vendor != "postgresql":
        raise BadInput(
            f"Tenure keeps jobs in PostgreSQL, and DATABASES[{alias!r}] is {wrapper.vendor}. "
            "Next: name a PostgreSQL database in TASKS as OPTIONS['database']"
        )
    if wrapper.Database.__name__ != "psycopg":
        raise BadInput(
            f"Django uses psycopg2 for DATABASES[{alias!r}], and Tenure needs psycopg 3. "
            "Next: pip uninstall psycopg2 psycopg2-binary"
        )


def open_connection(alias: str) -> psycopg.Connection[Any]:
    """Return this thread's connection of Django, opened; refuses one whose transaction must be rolled back."""
    check_database(alias)
    wrapper = connections[alias]
    wrapper.validate_no_broken_transaction()
    wrapper.ensure_connection()
    found: psycopg.Connection[Any] = wrapper.connection
    return found


def database_url(alias: str = "default") -> str:
    """Return the address of a database of the settings, for `tenure` commands and tests."""
    check_database(alias)
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    given = connections[alias].get_connection_params()
    return make_conninfo(**{name: value for name, value in given.items() if name in known and value is not None})


def close_connections() -> None:
    """Close this thread's connections of Django that are broken or older than CONN_MAX_AGE, as after a request."""
    reset_queries()
    close_old_connections()


#: The same in the thread in which the asynchronous calls of Django's ORM run.
close_connections_async = sync_to_async(close_connections)
