"""Metrics in Prometheus' text format, by prometheus-client.

    statistics of the database ─▶ database.py ─┬─▶ text.py: the text format
    a worker and its upkeep    ─▶ worker.py ───┘

The dispatcher imports this package at the first request of `/metrics`, a worker where it has a `metrics_port`. Nothing
else needs the library.
"""

from tenure.errors import require_extra

require_extra("metrics", "metrics for Prometheus", "prometheus_client")
