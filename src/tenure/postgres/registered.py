"""What is registered: every version of every contract, and since when. For people; jobs are moved by `registry`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from tenure.postgres.connect import connecting, our_errors, plain_dsn


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a contract as it stands in the database; it may be a newer release's, so it is only data here."""

    name: str
    version: str
    declaration: Mapping[str, Any]
    registered_at: datetime


def registered(dsn: str) -> list[Registered]:
    """Read what is registered, oldest first; refuses when there is no schema to read."""
    with connecting():
        connection = psycopg.connect(plain_dsn(dsn), autocommit=True)
    with connection, our_errors():
        rows = connection.execute(
            "select name, version, declaration, registered_at from tenure.contract "
            "order by registered_at, name, version"
        )
        return [Registered(*row) for row in rows.fetchall()]
