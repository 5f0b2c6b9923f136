"""The text format of Prometheus, written by prometheus-client."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tenure.jobs.stats import BOUNDS, Durations

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
#: The upper bounds of a histogram's buckets, as labels.
_BOUNDS: Final = tuple(f"{bound:g}" for bound in BOUNDS)


def text_of(collector: Collector) -> bytes:
    """The text of the metrics that this collector has now; none of the library's own metrics of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def histogram(
    name: str, text: str, labels: tuple[str, ...], found: Mapping[tuple[str, ...], Durations]
) -> HistogramMetricFamily:
    """A histogram of durations, by the values of its labels."""
    metric = HistogramMetricFamily(name, text, labels=labels)
    for values, durations in found.items():
        sums = accumulate(durations.numbers[n] for n in range(len(BOUNDS)))
        buckets = [*zip(_BOUNDS, sums, strict=True), ("+Inf", durations.number)]
        metric.add_metric(values, buckets, durations.seconds)
    return metric
