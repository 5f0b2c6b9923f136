"""Which database does a command work on: the one it was told, DATABASE_URL, or the embedded one in .tenure/."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure.settings import Settings


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """The address of the database, which is held while the command runs."""
    given = url or Settings.load().database_url
    if given is not None:
        yield given
        return
    from tenure.embedded import Cluster

    with Cluster(Path(".tenure")) as cluster:
        yield cluster.dsn
