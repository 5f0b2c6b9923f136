"""The metrics of the database, made of statistics: every process shows the same ones. No I/O.

Those of the process itself begin with `tenure_process_`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tenure.jobs.stats import COUNTERS, DLQ_COUNT, OTHER, Count, Durations, Snapshot, TypeStats, by_type
from tenure.metrics.text import histogram, text_of

#: Combinations of contract and type with histograms of their own.
MOST_HISTOGRAMS: Final = 200
#: Every metric: its kind and what it says.
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    **{
        f"tenure_{name}_total": ("counter", text)
        for name, text in {
            "enqueued": "Jobs that were made.",
            "claims": "Claims of jobs.",
            "claim_conflicts": "Claims of named jobs that another caller won.",
            "lease_renewals": "Renewals of leases by heartbeats.",
            "lease_expiries": "Leases that expired.",
            "retries": "Failures after which the job runs again.",
            "failures": "Failures that holders reported.",
            "stale_writes": "Writes that were refused because the caller had lost its lease.",
            "dlq_count": "Jobs that went to the dead letters.",
        }.items()
    },
    "tenure_transitions_total": ("counter", "Hops of jobs, by states."),
    "tenure_refusals_total": ("counter", "Refused calls, by kind and code."),
    "tenure_wait_seconds": ("histogram", "From due to claimed."),
    "tenure_run_seconds": ("histogram", "From claimed to the end that the holder reported."),
    "tenure_duration_quantile_seconds": (
        "gauge",
        "p50 and p95 (share 0.5, 0.95) of the last hour; phase is queue or run.",
    ),
    "tenure_jobs": ("gauge", "Live jobs."),
    "tenure_oldest_ready_seconds": ("gauge", "How long the oldest ready job of a queue is due."),
    "tenure_workers": ("gauge", "Workers that were seen in the last minute."),
    "tenure_worker_slots": ("gauge", "Their slots."),
    "tenure_worker_slots_busy": ("gauge", "Their slots in which jobs run."),
    "tenure_outbox_age_seconds": ("gauge", "How long the oldest due wake-up waits to be published."),
    "tenure_fold_lag_seconds": ("gauge", "Age of the oldest count that upkeep has not folded."),
    "tenure_process_refusals_total": ("counter", "Calls of this process that were refused."),
    "tenure_process_loop_lag_seconds": ("gauge", "How late the event loop of this process was just now."),
}
_TYPE = ("contract", "type", "tenant")
#: The labels of every metric that has some.
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    **{f"tenure_{name}_total": _TYPE for name in (*COUNTERS, DLQ_COUNT)},
    "tenure_transitions_total": (*_TYPE, "trigger", "from", "to"),
    "tenure_refusals_total": (*_TYPE, "kind", "code"),
    "tenure_wait_seconds": ("contract", "type"),
    "tenure_run_seconds": ("contract", "type"),
    "tenure_duration_quantile_seconds": ("contract", "type", "phase", "share"),
    "tenure_jobs": ("contract", "queue", "state"),
    "tenure_oldest_ready_seconds": ("queue",),
    "tenure_process_refusals_total": ("verb", "kind"),
}


def expose(shown: Snapshot) -> bytes:
    """The text of all metrics."""
    return text_of(Database(shown))


class Database:
    """A collector of one snapshot of the database."""

    def __init__(self, shown: Snapshot) -> None:
        self._shown = shown
        #: Metric → values of its labels → number; equal labels add up.
        self._numbers: defaultdict[str, defaultdict[tuple[str, ...], float]] = defaultdict(lambda: defaultdict(float))
        self._durations: defaultdict[str, dict[tuple[str, ...], Durations]] = defaultdict(dict)

    def collect(self) -> Iterator[Metric]:
        """Every metric that has numbers, in the order of `METRICS`."""
        self._add_counts()
        self._add_durations()
        self._add_levels()
        for name, (kind, text) in METRICS.items():
            labels = LABELS.get(name, ())
            if kind == "histogram" and name in self._durations:
                yield histogram(name, text, labels, self._durations[name])
            elif name in self._numbers:
                family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                metric = family(name, text, labels=labels)
                for values, number in self._numbers[name].items():
                    metric.add_metric(values, number)
                yield metric

    def _add(self, name: str, number: float, *labels: str) -> None:
        self._numbers[name][labels] += number

    def _add_counts(self) -> None:
        shown = self._shown
        counts = [self._bounded(count) for count in shown.counts]
        for stats in by_type(counts, shown.hops, tenants=True):
            for name in (*COUNTERS, DLQ_COUNT):
                self._add(f"tenure_{name}_total", stats.counters[name], *_labels(stats), stats.tenant_id or "")
        for one in counts:
            of = one.contract, one.type, one.tenant_id
            if one.is_move:
                self._add("tenure_transitions_total", one.number, *of, one.trigger, one.from_state, one.to_state)
            elif one.trigger.startswith("refused_"):
                kind = one.trigger.removeprefix("refused_")
                self._add("tenure_refusals_total", one.number, *of, kind, one.to_state)

    def _add_durations(self) -> None:
        own = dict.fromkeys((contract, task) for contract, task, _ in self._shown.labelled)
        known = set(list(own)[:MOST_HISTOGRAMS])

        def merged(counts: Iterable[Count]) -> list[TypeStats]:
            bounded = (one if (one.contract, one.type) in known else one._replace(type=OTHER) for one in counts)
            return by_type(bounded, self._shown.hops)

        for stats in merged(self._shown.counts):
            for name, durations in (("tenure_wait_seconds", stats.wait), ("tenure_run_seconds", stats.run)):
                if durations.number:
                    self._durations[name][_labels(stats)] = durations
        for stats in merged(self._shown.recent):
            for phase, durations in (("queue", stats.wait), ("run", stats.run)):
                for share in (0.5, 0.95):
                    if (seconds := durations.quantile(share)) is not None:
                        self._add("tenure_duration_quantile_seconds", seconds, *_labels(stats), phase, f"{share:g}")

    def _add_levels(self) -> None:
        shown = self._shown
        for level in shown.levels:
            self._add("tenure_jobs", level.jobs, level.contract, level.queue, level.state)
        for queue, seconds in shown.oldest.items():
            self._add("tenure_oldest_ready_seconds", seconds, queue)
        if (figures := shown.figures) is not None:
            self._add("tenure_workers", figures.workers)
            self._add("tenure_worker_slots", figures.slots)
            self._add("tenure_worker_slots_busy", figures.busy)
            self._add("tenure_outbox_age_seconds", figures.outbox_age_s or 0.0)
            self._add("tenure_fold_lag_seconds", figures.fold_lag_s or 0.0)
        for (verb, kind), number in shown.process_refusals.items():
            self._add("tenure_process_refusals_total", number, verb, kind)
        if shown.loop_lag_s is not None:
            self._add("tenure_process_loop_lag_seconds", shown.loop_lag_s)

    def _bounded(self, count: Count) -> Count:
        if (count.contract, count.type, count.tenant_id) in self._shown.labelled:
            return count
        return count._replace(type=OTHER, tenant_id=OTHER)


def _labels(stats: TypeStats) -> tuple[str, str]:
    return stats.contract, stats.type
