"""The cost of a life with larger payloads, and under a contract with three hops, beside the plain one."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.depth_sections.section import PAYLOAD, RESULT, Clock, Make, Section, Table, lsn, ratio, shown
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.holder_calls import calls

_SIZES = {"100 B": 100, "1 KiB": 1_024, "4 KiB": 4_096, "64 KiB": 65_536}
_BATCH = 100
#: Until statements are prepared and their plans kept.
_WARM = 12


async def payload(make: Make, quick: bool) -> Section:
    """Jobs with payloads of several sizes."""
    kinds = {name: NewJob("mail.send", _text(size)) for name, size in _SIZES.items()}
    found = await _in_turn(make, kinds, ("enqueue", "claim", "succeed"), 6 if quick else 40)
    return Section(
        [Table(f"Payloads, in batches of {_BATCH}: microseconds a job, medians", ["payload", *found[0]], found[1:])]
    )


async def contracts(make: Make, quick: bool) -> Section:
    """`reliability`, which is assigned before it runs and has a log with indexes of its own, beside `standard`."""
    kinds = {name: NewJob("mail.send", PAYLOAD, name) for name in ("standard", "reliability")}
    found = await _in_turn(make, kinds, ("enqueue", "claim", "start", "succeed"), 20 if quick else 60)
    title = f"A life under two contracts, in batches of {_BATCH}: microseconds a job, medians"
    return Section([Table(title, ["contract", *found[0]], found[1:])])


async def _in_turn(make: Make, kinds: Mapping[str, NewJob], verbs: Sequence[str], rounds: int) -> list[list[str]]:
    """Lives of each kind in turn, each in a database of its own: the header after the kind, then a row for each."""
    stores, dsns = {}, {}
    clocks = {kind: Clock() for kind in kinds}
    wal = dict.fromkeys(kinds, 0)
    for n, kind in enumerate(kinds):
        print(f"making a database for {kind} …", file=sys.stderr)
        dsns[kind] = make(f"life_of_{n}_{len(verbs)}")
        stores[kind] = await Store.connect(dsns[kind], connections=1, wake=False)
    try:
        for turn in range(_WARM + rounds):
            for kind, store in stores.items():
                before = lsn(dsns[kind])
                await _life(store, clocks[kind], kinds[kind])
                wal[kind] += lsn(dsns[kind]) - before if turn >= _WARM else 0
                if turn % 4 == 3:
                    await store.history.vacuum()
    finally:
        for store in stores.values():
            await store.close()
    rows = [[*verbs, "life", "ratio", "WAL bytes a life"]]
    first = 0.0
    for kind, clock in clocks.items():
        spent = [clock.median(verb, _WARM) * 1e6 / _BATCH for verb in verbs]
        first = first or sum(spent)
        bytes_each = wal[kind] / (rounds * _BATCH)
        rows.append([kind, *map(shown, spent), shown(sum(spent)), ratio(sum(spent), first), f"{bytes_each:,.0f}"])
    return rows


async def _life(store: Store, clock: Clock, kind: NewJob) -> None:
    await clock("enqueue", store.enqueue_many([kind] * _BATCH))
    jobs = await clock("claim", store.claim(kind.contract, worker="bench", limit=_BATCH))
    assert len(jobs) == _BATCH, f"claimed {len(jobs)} of {_BATCH}"
    held = [job.held for job in jobs]
    await clock("start", store.report("start", calls(held)))
    await clock("succeed", store.report("succeed", calls(held, results=[RESULT] * _BATCH)))


def _text(size: int) -> dict[str, Any]:
    """JSON of so many bytes, of words that do not compress as well as one word would."""
    words, length = random.Random(size), size - len('{"text": ""}')
    return {"text": "".join(f"{words.getrandbits(32):08x} " for _ in range(length // 9 + 1))[:length]}
