"""No verb does more work than what is recorded: rows, index entries, pages, WAL bytes, statements, and its plans.

`bench/guard.py` counts; nothing here depends on how fast the machine is. When it fails, its words say what to do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import LiteralString

import pytest

from bench import guard
from bench.guard_steps import Course, Seen, server

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """A server of its own: its log has every statement, and nothing happens there by itself."""
    with server(tmp_path_factory.mktemp("guard")) as made:
        yield made


async def test_no_verb_does_more_work_than_is_recorded(course: Course) -> None:
    family, was = guard.recorded(course.version)
    if faults := guard.worse(was, await course.run()):
        pytest.fail(guard.explained(faults, course.version, family), pytrace=False)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("drop index tenure.job_ready", "claim_plain is planned otherwise"),
        ("create index on tenure.job (updated_at)", "claim 100: wal_bytes"),
        (
            "create function tenure.slow() returns trigger language plpgsql as $$ begin "
            "perform count(*) from tenure.job; return null; end $$; create trigger slow after insert on tenure.claim "
            "for each row execute function tenure.slow()",
            "claim 100: rows",
        ),
    ],
    ids=["a lost index", "an index more", "a table read in passing"],
)
async def test_more_work_is_noticed(course: Course, harm: LiteralString, told: str) -> None:
    _, was = guard.recorded(course.version)
    seen = await course.run(harm, briefly=True)
    same = Seen({step: was.work[step] for step in seen.work}, {query: was.plans[query] for query in seen.plans})
    faults = guard.worse(same, seen)
    assert any(fault.startswith(told) for fault in faults), faults


def test_what_a_failing_guard_says() -> None:
    was = Seen({"claim 100": {"jobs": 100, "statements": 1, "rows": 2.0, "pages": 10.0}}, {"claim": ["Index Scan"]})
    less, more = copy.deepcopy(was), copy.deepcopy(was)
    less.work["claim 100"] |= {"rows": 1.0, "pages": 10.4}
    more.work["claim 100"] |= {"pages": 10.6}
    more.plans["claim"] = ["Seq Scan on job", "Sort"]
    assert guard.worse(was, less) == []
    assert guard.worse(was, more) == [
        "claim 100: pages 10.6, recorded is 10",
        "claim is planned otherwise: new is Seq Scan on job, Sort; gone is Index Scan",
        "claim does a Seq Scan on job",
    ]
    assert guard.worse(was, Seen(plans=was.plans)) == ["claim 100: recorded, but not counted"]
    assert guard.worse(Seen(plans=was.plans), was) == ["claim 100: counted, but not recorded"]
    told = guard.explained(["claim 100: pages 10.6, recorded is 10"], 17, 16)
    assert "PostgreSQL 17" in told
    assert "recorded for 16" in told
    assert "./dev bench guard --record, and say in the commit why" in told
