"""Every statement behind a page, a list or a figure: it finds its rows by index, and locks a few id ranges of many.

The statements are those that a dispatcher sends while every page, every GET of the API and every word of a search is
asked for. PostgreSQL then explains each, for its values and for any. The engine's planner settings choose a scan of a
whole table only where no index serves, so a small database shows what a large one does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from tenure.jobs.search import JOB_SUGGESTIONS, LETTER_SUGGESTIONS
from tenure.jobs.validation import ID_UNIT, MAX_UNITS
from tenure.postgres import statement as statements
from tenure.postgres.connect import engine_dsn
from tenure.postgres.statement import Statement
from tests.harness import Harness
from tests.http.conftest import Caller
from tests.http.inventory import ROUTES, World
from tests.postgres.test_many_ranges import MOST

_RANGES = 3 * MAX_UNITS
#: Tables that grow with the jobs that were ever made, or that live.
_GROWING = re.compile(
    r"(job|job_done|event|dead_letter|dead_letter_cause|key|claim|rollup|refusal|flow|flow_node|operation|operation_item"
    r"|operation_batch|schedule_fire|dataset_row|dataset_switch|dataset_generation|emitted|outbox|alarm)(_\d+)?"
)
#: Their entries are few, however many jobs there are: held jobs are as many as workers have slots.
_SMALL_INDEXES = {
    "job_held", "job_quarantined", "operation_running", "flow_open", "outbox_pending", "emitted_pending",
    "alarm_open", "alarm_cleared",
}  # fmt: skip
_LOCKED = r"""
select count(distinct relation) from pg_locks
where pid = pg_backend_pid() and locktype = 'relation'
  and relation::regclass::text ~ '^(tenure\.)?(event|job_done)_[0-9]'
"""
#: Values of search words that have no example among the suggestions.
_WORDS = {
    "state:": "state:queued", "type:": "type:t", "queue:": "queue:q", "tenant:": "tenant:t",
    "contract:": "contract:standard",
    "error:": "error:no", "payload.": "payload.a:1", "reason:": "reason:r", "group:": "group:9f2c41d07ab1e635",
    "worker:": "worker:w1", "took:>5s": "took:>5s",
    "status:": "status:open", "release:": "release:7", "age:>1h": "age:>1h", "age:<1h": "age:<1h",
}  # fmt: skip


class Sent(NamedTuple):
    """A statement as it was sent, and for which request."""

    statement: Statement
    request: str


@pytest.fixture
def many_ranges(db: Harness) -> None:
    """Ids were given in many ranges."""
    made = 0
    while made < _RANGES:
        db.sql("select setval('tenure.job_id_seq', greatest(1, max(high) - 1)) from tenure.range")
        db.sql("select tenure.extend_ranges(8)")
        made = db.value("select count(*) from tenure.range")
    db.sql("select setval('tenure.job_id_seq', %s)", 2 * MAX_UNITS * ID_UNIT)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    """The statements that this process sends."""
    seen: list[Statement] = []
    execute = statements._execute

    async def noted(connection: psycopg.AsyncConnection[Any], step: Any) -> Any:
        seen.append(step)
        return await execute(connection, step)

    monkeypatch.setattr(statements, "_execute", noted)
    return seen


def requests(http: Caller, pages: Sequence[str]) -> Iterator[str]:
    """Every page, every GET of the API, and searches with each word alone and some together."""
    yield from pages
    world = World(http)
    yield from (world.request(route).path for route in ROUTES if route.method == "GET")
    for path, words in (("/api/v1/jobs", JOB_SUGGESTIONS), ("/api/v1/dlq/items", LETTER_SUGGESTIONS)):
        yield from (f"{path}?q={_WORDS[word]}" for word in words)
    for state in ("running", "dead", "succeeded", "retrying", "dlq_pending"):
        yield f"/api/v1/jobs?q=state:{state}"
    yield "/api/v1/jobs?q=state:dead type:t queue:q tenant:t contract:standard age:>1s"
    yield f"/api/v1/jobs?cursor=finished-{MAX_UNITS * ID_UNIT}"
    for text in ("status:open contract:standard tenant:t", "status:requeued", "status:open group:9f2c41d07ab1e635"):
        yield f"/api/v1/dlq/items?q={text}"
    for query in ("state=failed", "name=nightly", "state=running&name=nightly", "cursor=7"):
        yield f"/api/v1/flows?{query}"
    yield "/api/v1/dlq/groups?type=t&contract=standard"
    yield "/api/v1/stats?since_seconds=86400"


def nodes(plan: dict[str, Any], limited: bool = False) -> Iterator[tuple[dict[str, Any], bool]]:
    """The nodes of a plan, each with whether something above ends it early."""
    yield plan, limited
    # A node that needs all its rows before it returns one is not ended by a limit above it.
    reads_all = plan["Node Type"] in ("Aggregate", "Sort", "Hash", "WindowAgg", "Materialize", "Unique", "SetOp")
    for below in plan.get("Plans", ()):
        yield from nodes(below, plan["Node Type"] == "Limit" or (limited and not reads_all))


def scans(plan: dict[str, Any]) -> set[str]:
    """Growing tables that a plan reads from end to end."""
    found = set()
    for node, limited in nodes(plan):
        relation = node.get("Relation Name", "")
        if not _GROWING.fullmatch(relation) or node["Node Type"] == "ModifyTable":
            continue
        if node["Node Type"] == "Seq Scan":
            found.add(f"scan of {relation}")
        elif not limited and "Index Cond" not in node and node.get("Index Name", "job_held") not in _SMALL_INDEXES:
            found.add(f"all of {node['Index Name']}")
    return found


@pytest.mark.usefixtures("many_ranges")
def test_reads_of_pages_and_lists_scan_no_growing_table_and_lock_few_ranges(
    dsn: str, url: str, http: Caller, pages: dict[str, str], sent: list[Statement]
) -> None:
    asked: dict[str, Sent] = {}
    for path in requests(http, list(pages.values())):
        sent.clear()
        http.client.get(path).raise_for_status()
        for one in sent:
            # What is written into the text decides over the plan as values do.
            signature = (
                f"{one.query.name} {re.sub(r'[0-9]+', '0', one.query.text)} {[value is None for value in one.values]}"
            )
            asked.setdefault(signature, Sent(one, path))
    scanning: dict[str, set[str]] = {}
    locking: dict[str, int] = {}
    with psycopg.connect(engine_dsn(dsn), autocommit=True, prepare_threshold=None) as engine:
        for statement, path in asked.values():
            if not re.match(r"(/\*[^*]*\*/\s*)?(select|with)\b", statement.query.text):
                continue
            values = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, statement.values)))
            for mode in "custom", "generic":
                with engine.transaction(force_rollback=True):
                    engine.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
                    engine.execute(b"prepare asked as " + statement.query.text.encode())
                    given = values if statement.values else sql.SQL("")
                    ((plan,),) = engine.execute(
                        sql.SQL("explain (format json, costs off) execute asked {}").format(given)
                    ).fetchall()
                    ((locked,),) = engine.execute(_LOCKED.encode()).fetchall()
                    engine.execute("deallocate asked")
                if found := scans(plan[0]["Plan"]):
                    scanning.setdefault(f"{statement.query.name} ({path})", set()).update(found)
                if locked > MOST:
                    locking[f"{statement.query.name} ({path})"] = locked
    assert len({one.statement.query.name for one in asked.values()}) > 50
    assert scanning == {}
    assert locking == {}
