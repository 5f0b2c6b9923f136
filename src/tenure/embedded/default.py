"""The embedded PostgreSQL in `.tenure/` of the current directory, for processes without a database address."""

from __future__ import annotations

import logging
from pathlib import Path

from tenure.embedded.cluster import Cluster
from tenure.errors import DatabaseRequired

_log = logging.getLogger("tenure.embedded")
_DIRECTORY = Path(".tenure")


def acquire_default(*, refused: bool) -> Cluster:
    """Hold the cluster in `.tenure/`, with a WARNING when this starts it; `refused`: raises DatabaseRequired.

    In production an embedded database is a mistake: a forgotten address must not look like an empty queue.
    """
    if refused:
        raise DatabaseRequired
    cluster = Cluster(_DIRECTORY)
    is_new = not (cluster.directory / "data").exists()
    if cluster.acquire():
        what = "made a PostgreSQL" if is_new else "started the PostgreSQL"
        _log.warning("%s in %s; set DATABASE_URL to use another", what, cluster.directory)
    return cluster
