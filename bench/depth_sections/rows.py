"""The cost of verbs and lists on full tables, beside the same on an empty table, in turn."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

from bench.depth_sections.fill import grow
from bench.depth_sections.section import (
    PAYLOAD,
    RESULT,
    Clock,
    Lines,
    Make,
    Section,
    Table,
    one_value,
    ratio,
    server_of,
    shown,
)
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.holder_calls import calls

#: Until statements are prepared and their plans kept.
_WARM = 12
_TYPE = "mail.send"
_VERBS = ("enqueue", "claim", "heartbeat", "succeed")
_WRITES = [f"{verb} {batch}" for verb in _VERBS for batch in (1, 100)]
_READS = ["queues", "list, first page", "list, of a type and state", "list, without a match", "look at one job"]
#: Depth → finished jobs, and jobs that are due, in all.
_DEPTHS = {"0": (0, 0), "100 k": (100_000, 100_000), "1 M": (1_000_000, 1_000_000), "10 M": (10_000_000, 1_000_000)}


class Side:
    """A database, and how long everything took there."""

    def __init__(self, dsn: str, store: Store) -> None:
        self.dsn, self.store = dsn, store
        self.clock = Clock(server_of(dsn))

    async def lives(self) -> None:
        """One job, then a hundred: made, claimed, kept and finished."""
        clock, store = self.clock, self.store
        for batch in (1, 100):
            await clock(f"enqueue {batch}", store.enqueue_many([NewJob(_TYPE, PAYLOAD) for _ in range(batch)]))
            jobs = await clock(f"claim {batch}", store.claim(worker="bench", limit=batch))
            assert len(jobs) == batch, f"claimed {len(jobs)} of {batch}"
            held = [job.held for job in jobs]
            await clock(f"heartbeat {batch}", store.report("heartbeat", calls(held)))
            await clock(f"succeed {batch}", store.report("succeed", calls(held, results=[RESULT] * batch)))

    async def reads(self) -> None:
        """What people and pages ask."""
        clock, store = self.clock, self.store
        await clock("queues", store.queues.list())
        await clock("list, first page", store.find(limit=50))
        await clock("list, of a type and state", store.find(type=_TYPE, state="succeeded"))
        await clock("list, without a match", store.find(type="nobody.knows"))
        oldest = one_value(self.dsn, "select id from tenure.job_done order by id limit 1")
        await clock("look at one job", self.store.details(oldest))

    async def tidy(self) -> None:
        """As upkeep does all the time."""
        await self.store.history.vacuum()


async def compared(empty_dsn: str, full_dsn: str, rounds: int, *, reads: bool = True) -> tuple[Side, Side]:
    """Every call on both databases, in turn."""
    async with AsyncExitStack() as stack:
        sides = []
        for dsn in (empty_dsn, full_dsn):
            store = await stack.enter_async_context(Store.open(dsn, connections=1, wake=False))
            await store.jobs([1])  # it is connected
            sides.append(Side(dsn, store))
        for turn in range(rounds + _WARM):
            for side in sides:
                await side.lives()
                if reads and (turn >= _WARM or turn == 0):
                    await side.reads()
                if turn % 4 == 3:
                    await side.tidy()
    return sides[0], sides[1]


def _judged(call: str, bare: Side, deep: Side) -> tuple[list[str], float]:
    """A call on both sides: milliseconds, their ratio, that of processor time; and the ratio that is less blurred."""
    skip = 1 if call in _READS else _WARM
    was, now = (side.clock.median(call, skip) * 1_000 for side in (bare, deep))
    used, uses = (side.clock.processor(call, skip) for side in (bare, deep))
    # A look has a connection of its own, whose time is not read.
    processor = uses / used if used and call != "look at one job" else None
    cells = [f"{shown(was)} → {shown(now)}", ratio(now, was), "" if processor is None else f"{processor:.2f}×"]
    return cells, processor or now / was


async def rows(make: Make, quick: bool) -> Section:
    """Every call at several depths; ratios to an empty table."""
    empty, full = make("rows_empty"), make("rows_full")
    depths = {name: depth for name, depth in _DEPTHS.items() if not (quick and name == "10 M")}
    cells: dict[str, list[str]] = {call: [] for call in _WRITES + _READS}
    ratios: dict[str, list[float]] = {call: [] for call in _WRITES + _READS}
    so_far = (0, 0)
    for name, (done, ready) in depths.items():
        print(f"measuring at {name} …", file=sys.stderr)
        grow(full, done=done - so_far[0], ready=ready - so_far[1])
        so_far = (done, ready)
        bare, deep = await compared(empty, full, 12 if quick else 30)
        for call in cells:
            found, better = _judged(call, bare, deep)
            cells[call] += found
            ratios[call].append(better)
    header = ["call", *(text for name in depths for text in (f"{name}: ms, empty → full", "ratio", "processor"))]
    title = "Finished jobs with their log, and as many that are due (1 M at the most); medians, empty and full in turn"
    drawn: dict[str, list[float]] = {verb: ratios[f"{verb} 100"] for verb in _VERBS}
    drawn |= {"queues": ratios["queues"], "list": ratios["list, first page"]}
    return Section(
        [Table(title, header, [[call, *found] for call, found in cells.items()])],
        [Lines("Processor time by finished jobs", "times an empty table", list(depths), dict(drawn))],
    )


async def urgent(make: Make, quick: bool) -> Section:
    """Delayed urgent jobs stand before the ones that are due."""
    count = 200_000 if quick else 1_000_000
    empty, full = make("nobody_ahead"), make("urgent_ahead")
    grow(full, urgent=count)
    bare, deep = await compared(empty, full, 12 if quick else 30, reads=False)
    title = (
        f"{count:,} urgent jobs that are due tomorrow stand before the due ones; medians, without and with them in turn"
    )
    header = ["call", "ms, without → with", "ratio", "processor"]
    return Section([Table(title, header, [[call, *_judged(call, bare, deep)[0]] for call in _WRITES])])
