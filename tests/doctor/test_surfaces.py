"""Doctor as a command and over HTTP: findings, exit codes, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest
from psycopg.conninfo import make_conninfo

from tenure.cli import command_table
from tenure.jobs.finding import Finding, by_severity, finding
from tenure.postgres.doctor import examination
from tenure.postgres.store import Store
from tests.cli.conftest import Asking, ask, at_once  # noqa: F401
from tests.harness import Harness
from tests.http.conftest import client, url  # noqa: F401
from tests.worker.working import until

Run = Callable[..., tuple[int, str, str]]


def test_the_exit_code_is_that_of_the_worst_finding(
    at_once: Run,  # noqa: F811
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Finding] = []

    async def examine(dsn: str, **settings: object) -> list[Finding]:
        return by_severity(found)

    monkeypatch.setattr(examination, "examine", examine)
    codes = []
    for code in ("queue-paused", "no-worker", "fsync-off"):
        codes.append(at_once("doctor", "--database-url", dsn)[0])
        found.append(finding(code, f"{code} is staged", "a command"))
    ended, out, _ = at_once("doctor", "--database-url", dsn)
    assert [*codes, ended] == [0, 0, 3, 1]
    first, next_, *_, counts = out.splitlines()
    assert first == "  critical  fsync-off     fsync-off is staged"
    assert next_.split() == ["Next:", "a", "command"]
    assert counts == "1 critical, 1 warning, 1 note"
    ended, out, _ = at_once("doctor", "--database-url", dsn, "--json")
    said = json.loads(out)
    assert (ended, said["counts"]) == (1, {"critical": 1, "warning": 1, "note": 1})
    assert [one["code"] for one in said["findings"]] == ["fsync-off", "no-worker", "queue-paused"]


def test_a_database_that_cannot_be_reached_ends_with_1(at_once: Run, dsn: str) -> None:  # noqa: F811
    code, out, _ = at_once("doctor", "--database-url", make_conninfo(dsn, dbname="no_such_database"))
    assert code == 1
    assert "cannot-connect" in out


async def test_it_is_served_over_http(client: httpx2.Client, store: Store, db: Harness) -> None:  # noqa: F811
    db.sql("alter table tenure.claim set unlogged")
    answer = client.get("/api/v1/doctor").json()
    (found,) = [one for one in answer["findings"] if one["code"] == "unlogged-table"]
    assert (found["severity"], found["details"]) == ("critical", {"name": "claim"})
    assert answer["counts"]["critical"] >= 1
    assert "doctor" in command_table.COMMANDS
    assert {one.code for one in await store.doctor.examine()} >= {"unlogged-table"}


WRITTEN = """
select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) from pg_stat_user_tables where schemaname like 'tenure%'
"""
#: A session's counts are there once it has ended.
OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


async def test_it_writes_nothing(dsn: str, db: Harness) -> None:
    db.sql("select pg_stat_force_next_flush()")
    before = db.value(WRITTEN)
    await examination.examine(dsn)
    await until(lambda: db.value(OTHERS) == 0)
    assert db.value(WRITTEN) == before
