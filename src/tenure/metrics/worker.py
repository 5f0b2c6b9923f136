"""The metrics of one worker, and the small server that shows them. They are the process's own: `tenure_process_`.

The server has a thread of its own, so it answers while a handler blocks the event loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.stats import BOUNDS, Durations
from tenure.metrics.text import histogram

#: The nap of the event loop whose overrun is its lag, in seconds.
_NAP_S = 0.1
#: Every metric: its kind, its label, and what it says.
METRICS: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "tenure_process_slots": ("gauge", (), "Slots of this worker."),
    "tenure_process_slots_busy": ("gauge", (), "Its slots in which jobs run."),
    "tenure_process_jobs_total": ("counter", ("event",), "What happened to its jobs: claimed, succeeded, failed…"),
    "tenure_process_wakeups_total": ("counter", (), "Wake-ups that it received."),
    "tenure_process_loop_delay_seconds": ("histogram", (), "How late its event loop was, every 0.1 s."),
    "tenure_process_upkeep_runs_total": ("counter", ("part",), "Rounds of the parts of its upkeep that went well."),
    "tenure_process_upkeep_lag_seconds": ("gauge", (), "Seconds since its upkeep last looked for work."),
}


class WorkerSlots(Protocol):
    """The slots of a worker."""

    concurrency: int
    busy: int

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened to its jobs."""


class RunningUpkeep(Protocol):
    """Upkeep beside a worker."""

    @property
    def runs(self) -> Mapping[str, int]:
        """The rounds of each part that went well."""

    @property
    def lag_s(self) -> float:
        """Seconds since it last looked for work."""


class WorkerMetrics:
    """A collector of the figures of one worker, and its server."""

    def __init__(self, host: str, port: int) -> None:
        """Refuses a port that is none; `start` refuses one that cannot be used. 0 takes a free one."""
        self._host = host
        self.port = validation.check_integer("metrics_port", port, 0, 65_535)
        self.wakeups = 0
        #: Set where upkeep runs beside the worker.
        self.upkeep: RunningUpkeep | None = None
        self._slots: WorkerSlots | None = None
        self._delays = Durations()

    def start(self, slots: WorkerSlots) -> str:
        """Serve the figures of a worker with these slots; returns the address."""
        self._slots = slots
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, _ = start_http_server(self.port, self._host, registry)
        except OSError as error:
            raise BadInput(f"metrics cannot be shown at {self._host} port {self.port}: {error}") from error
        self.port = self._server.server_port
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/metrics"

    def stop(self) -> None:
        """End the server; takes up to half a second."""
        self._server.shutdown()
        self._server.server_close()

    async def measure_loop(self) -> None:
        """Measure how late this event loop is, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_NAP_S)
            delay = max(0.0, loop.time() - began - _NAP_S)
            self._delays.numbers[bisect_left(BOUNDS, delay)] += 1
            self._delays.seconds += delay

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now; called in the thread of the server."""
        if (slots := self._slots) is None:
            return
        numbers: dict[str, dict[tuple[str, ...], float]] = {
            "tenure_process_slots": {(): slots.concurrency},
            "tenure_process_slots_busy": {(): slots.busy},
            "tenure_process_jobs_total": {(event,): number for event, number in dict(slots.counts).items()},
            "tenure_process_wakeups_total": {(): self.wakeups},
        }
        if (upkeep := self.upkeep) is not None:
            numbers["tenure_process_upkeep_runs_total"] = {(part,): runs for part, runs in dict(upkeep.runs).items()}
            numbers["tenure_process_upkeep_lag_seconds"] = {(): upkeep.lag_s}
        for name, (kind, labels, text) in METRICS.items():
            if kind == "histogram":
                yield histogram(name, text, labels, {(): self._delays})
            elif name in numbers:
                metric = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
                for values, number in numbers[name].items():
                    metric.add_metric(values, number)
                yield metric
