"""Metrics in Prometheus' text format, made of statistics. No I/O.

Every process shows the same figures of the database; those of the process itself begin with `tenure_process_`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from tenure.jobs.stats import BOUNDS, COUNTERS, DLQ_COUNT, Count, Durations, Figures, LetterHops, Level, by_type

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Combinations of contract, type and tenant with labels of their own; those that came later count as `(other)`.
MOST_LABELLED: Final = 500
#: Combinations of contract and type with histograms of their own.
MOST_HISTOGRAMS: Final = 200
OTHER: Final = "(other)"
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


class Snapshot(NamedTuple):
    """What one answer shows."""

    #: Since ever, and of the last hour.
    counts: Sequence[Count]
    recent: Sequence[Count]
    letters: LetterHops
    levels: Sequence[Level]
    #: Queue → seconds; None where the caller may not see queues.
    oldest: Mapping[str, float]
    figures: Figures | None
    #: (contract, type, tenant) with labels of their own.
    labelled: Collection[tuple[str, str, str]]
    process_refusals: Mapping[tuple[str, str], int]
    loop_lag_s: float | None


class _Lines:
    def __init__(self) -> None:
        self.values: dict[str, dict[str, float]] = {}

    def add(self, metric: str, number: float, suffix: str = "", /, **labels: str) -> None:
        text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        lines = self.values.setdefault(metric, {})
        name = f"{metric}{suffix}{{{text}}}" if text else metric + suffix
        lines[name] = lines.get(name, 0) + number

    def text(self) -> Iterator[str]:
        for metric, (kind, text) in METRICS.items():
            if metric in self.values:
                yield f"# HELP {metric} {text}"
                yield f"# TYPE {metric} {kind}"
                yield from (f"{name} {number:.15g}" for name, number in self.values[metric].items())


def expose(shown: Snapshot) -> str:
    """The text of all metrics."""
    lines = _Lines()
    counts = [_bounded(count, shown.labelled) for count in shown.counts]
    for stats in by_type(counts, shown.letters, tenants=True):
        labels = {"contract": stats.contract, "type": stats.type, "tenant": stats.tenant_id or ""}
        for name in (*COUNTERS, DLQ_COUNT):
            lines.add(f"tenure_{name}_total", stats.counters[name], **labels)
    for count in counts:
        labels = {"contract": count.contract, "type": count.type, "tenant": count.tenant_id}
        if count.is_move:
            hop = {"trigger": count.trigger, "from": count.from_state, "to": count.to_state}
            lines.add("tenure_transitions_total", count.number, **labels, **hop)
        elif count.trigger.startswith("refused_"):
            kind = count.trigger.removeprefix("refused_")
            lines.add("tenure_refusals_total", count.number, **labels, kind=kind, code=count.to_state)
    _histograms(lines, shown)
    for level in shown.levels:
        lines.add("tenure_jobs", level.jobs, contract=level.contract, queue=level.queue, state=level.state)
    for queue, seconds in shown.oldest.items():
        lines.add("tenure_oldest_ready_seconds", seconds, queue=queue)
    if (figures := shown.figures) is not None:
        lines.add("tenure_workers", figures.workers)
        lines.add("tenure_worker_slots", figures.slots)
        lines.add("tenure_worker_slots_busy", figures.busy)
        lines.add("tenure_outbox_age_seconds", figures.outbox_age_s or 0.0)
        lines.add("tenure_fold_lag_seconds", figures.fold_lag_s or 0.0)
    for (verb, kind), number in shown.process_refusals.items():
        lines.add("tenure_process_refusals_total", number, verb=verb, kind=kind)
    if shown.loop_lag_s is not None:
        lines.add("tenure_process_loop_lag_seconds", shown.loop_lag_s)
    return "\n".join([*lines.text(), ""])


def _histograms(lines: _Lines, shown: Snapshot) -> None:
    own: dict[tuple[str, str], None] = dict.fromkeys((contract, task) for contract, task, _ in shown.labelled)
    known = set(list(own)[:MOST_HISTOGRAMS])

    def merged(counts: Iterable[Count]) -> Iterator[tuple[dict[str, str], Durations, Durations]]:
        bounded = (one if (one.contract, one.type) in known else one._replace(type=OTHER) for one in counts)
        for stats in by_type(bounded, ()):
            yield {"contract": stats.contract, "type": stats.type}, stats.wait, stats.run

    for labels, wait, run in merged(shown.counts):
        for metric, durations in (("tenure_wait_seconds", wait), ("tenure_run_seconds", run)):
            if durations.number:
                sums = accumulate(durations.numbers[n] for n in range(len(BOUNDS)))
                for bound, number in zip(BOUNDS, sums, strict=True):
                    lines.add(metric, number, "_bucket", **labels, le=f"{bound:g}")
                lines.add(metric, durations.number, "_bucket", **labels, le="+Inf")
                lines.add(metric, durations.seconds, "_sum", **labels)
                lines.add(metric, durations.number, "_count", **labels)
    for labels, wait, run in merged(shown.recent):
        for phase, durations in (("queue", wait), ("run", run)):
            for share in (0.5, 0.95):
                if (seconds := durations.quantile(share)) is not None:
                    lines.add("tenure_duration_quantile_seconds", seconds, **labels, phase=phase, share=f"{share:g}")


def _bounded(count: Count, labelled: Collection[tuple[str, str, str]]) -> Count:
    if (count.contract, count.type, count.tenant_id) in labelled:
        return count
    return count._replace(type=OTHER, tenant_id=OTHER)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
