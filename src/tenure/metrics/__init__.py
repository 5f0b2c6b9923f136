"""Metrics in Prometheus' text format, by prometheus-client.

    statistics of the database ─▶ database.py ─┐
                                               └─▶ text.py: the text format

The dispatcher imports this package at the first request of `/metrics`; no other part of it needs the library.
"""

from tenure.errors import require_extra

require_extra("metrics", "/metrics", "prometheus_client")
