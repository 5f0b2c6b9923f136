"""How long nodes took, and the critical path of a flow: the chain of nodes that took longest, or is expected to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from tenure.flows.graph import Graph
from tenure.jobs.flow import FlowNode
from tenure.jobs.formats import format_duration, to_one_line


class CriticalPath(NamedTuple):
    """The chain of nodes that took longest."""

    nodes: Sequence[FlowNode]
    ms: float
    #: Whether a part of the time is an estimate, because a node on the path has not ended.
    is_expected: bool

    def describe(self) -> str:
        """Return `1.2 s: extract → load`; a long path without its middle."""
        names = [to_one_line(node.name, 60) for node in self.nodes]
        if len(names) > 8:
            names = [*names[:4], f"({len(names) - 7:,} more)", *names[-3:]]
        return f"{format_duration(self.ms)}{' expected' * self.is_expected}: {' → '.join(names)}"


def span_ms(nodes: Sequence[FlowNode], now: datetime) -> float | None:
    """The time from the first start of these nodes to their last end, or until now; None: none has started."""
    starts = [node.started_at for node in nodes if node.started_at is not None]
    if not starts:
        return None
    live = any(node.state == "started" for node in nodes)
    last = now if live else max((node.finished_at for node in nodes if node.finished_at is not None), default=now)
    return max(0.0, (last - min(starts)) / timedelta(milliseconds=1))


def critical_path(graph: Graph, now: datetime) -> CriticalPath | None:
    """Return the chain of nodes that took longest; None while no node has ended.

    A node that has not ended counts with the mean time of the ended nodes of its type, or of all; a started one with
    its time until now, if that is longer. Nodes that never ran, and clean-up nodes, are on no path.
    """
    took = {step.id: span_ms(graph.members.get(step.id) or [step], now) for step in graph.steps.values()}
    by_type: dict[str, list[float]] = defaultdict(list)
    for number, step in graph.steps.items():
        if (ms := took[number]) is not None and step.state not in ("started", "waiting"):
            by_type[step.type].append(ms)
    ended = [ms for times in by_type.values() for ms in times]
    if not ended:
        return None
    best: dict[int, tuple[float, int]] = {}  # the time and the length of the longest chain that ends with this node
    before: dict[int, int] = {}
    for number, step in graph.steps.items():
        ms = took[number]
        if step.state in ("started", "waiting"):
            times = by_type[step.type] or ended
            ms = max(ms or 0.0, sum(times) / len(times))
        if ms is None or step.is_cleanup:
            continue
        parents = [parent for parent in step.parents if parent in best]
        time, length = 0.0, 0
        if parents:
            before[number] = max(parents, key=best.__getitem__)
            time, length = best[before[number]]
        best[number] = time + ms, length + 1
    if not best:
        return None
    last = max(best, key=best.__getitem__)
    chain = [last]
    while (previous := before.get(chain[-1])) is not None:
        chain.append(previous)
    nodes = [graph.steps[number] for number in reversed(chain)]
    return CriticalPath(nodes, best[last][0], any(node.state in ("started", "waiting") for node in nodes))
