"""Mapped nodes with many members: what starting them, and running them again, reads and keeps in memory at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest

from tenure.jobs import validation
from tenure.jobs.flow import FlowMade, NewFlow
from tenure.postgres import flow_starts
from tenure.postgres import statement as statements
from tenure.postgres.enqueue import insert_with_ids
from tenure.postgres.statement import Statement, statement
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.flow_nodes import claim_all, node
from tests.harness import Harness


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was executed."""
    seen: Counter[str] = Counter()
    execute = statements._execute

    async def counted(connection: Any, step: Any) -> Any:
        if isinstance(step, Statement):
            seen[step.query.name] += 1
        return await execute(connection, step)

    monkeypatch.setattr(statements, "_execute", counted)
    return seen


def items(count: int) -> list[str]:
    """Items that do not compress well."""
    return [hashlib.sha256(str(n).encode()).hexdigest()[:32] for n in range(count)]


async def mapped(store: Store, count: int, rest: str = "r") -> FlowMade:
    """A flow whose mapped node has this many members, which have another argument, too."""
    nodes = [node("list"), node("rest"), node("work", inputs={"n": "list", "rest": "rest"}, each="n")]
    made = await store.flows.create(NewFlow("wide", nodes))
    for job in await claim_all(store):
        await store.succeed(job.held, items(count) if job.type == "list" else rest)
    return made


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=[pytest.mark.prove, pytest.mark.timeout(600)])])
async def test_members_that_run_again_read_their_list_a_few_times(
    store: Store, db: Harness, executed: Counter[str], count: int
) -> None:
    made = await mapped(store, count)
    assert (await store.flows.cancel(made.id, mode="hard")).jobs == count
    executed.clear()
    resumed = await store.flows.resume(made.id)
    assert len(resumed.jobs) == count
    parts = -(-count // 1_000)
    once = ("read_flow_graph", "measure_nodes", "reset_flow_nodes", "reserve_job_ids", "update_flows")
    assert {name: executed[name] for name in once} == dict.fromkeys(once, 1)
    assert executed["read_starting_members"] == executed["enqueue"] == parts
    assert sum(executed.values()) <= 2 * parts + 12

    payloads = db.sql(
        "select job.payload from tenure.job join tenure.flow_node as n on n.id = flow_node order by n.place"
    )
    assert [one["payload"] for one in payloads] == [{"n": item, "rest": "r"} for item in items(count)]
    ids = [row["id"] for row in db.sql("select id from tenure.flow_node where place < 1000")]
    assert pages(db, ids) <= 3 * len(ids)
    assert (await audit(store)).violations == []


def pages(db: Harness, ids: list[int]) -> int:
    """How many pages a read of these members touches."""
    asked = statement("read_starting_members", {"ids": ids})
    plan = db.value("explain (analyze, buffers, format json) " + asked.query.text.replace("$1", "%s"), ids)
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


async def test_members_are_made_a_part_at_a_time(store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    made, at_once = Counter[str](), list[int]()
    to_json = validation.to_json

    def counted(field: str, value: Any, most: int) -> str:
        made["payloads"] += field == "payload"
        return to_json(field, value, most)

    def inserted(group: Any, part: Any, *more: Any, **options: Any) -> Statement:
        at_once.append(made["payloads"] - sum(at_once))
        return insert_with_ids(group, part, *more, **options)

    flow = NewFlow("wide", [node("list"), node("work", inputs={"n": "list"}, each="n")])
    await store.flows.create(flow)
    (listing,) = await claim_all(store)
    monkeypatch.setattr(flow_starts, "_PART_BYTES", 400)  # ten jobs and one that no longer fits
    monkeypatch.setattr(validation, "to_json", counted)
    monkeypatch.setattr("tenure.postgres.flow_starts.insert_with_ids", inserted)
    await store.succeed(listing.held, items(100))
    assert len(at_once) == 10
    assert max(at_once) <= 11
    assert db.value("select count(*) from tenure.job where type = 'work'") == 100
