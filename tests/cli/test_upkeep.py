"""`tenure upkeep` as a process: loops until it is told to stop, or one round."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.cli.forked import tenure
from tests.harness import Harness, lock_out
from tests.upkeep.running import expired, ready, until


def started(dsn: str, place: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command, running: its loops have begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tenure", "upkeep", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env={**os.environ, "DATABASE_URL": dsn},
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "upkeep runs; Ctrl-C or SIGTERM ends it\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_reaps_until_it_is_told_to_stop_and_then_sums_up(
    store: Store, db: Harness, dsn: str, tmp_path: Path, number: signal.Signals
) -> None:
    process = started(dsn, tmp_path, "--log-level", "debug")
    try:
        ids = await expired(store, db, 3)
        await until(lambda: ready(db, ids), 60)
        process.send_signal(number)
        out, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    lines = told.splitlines()
    assert [line for line in lines if re.fullmatch(r"\d\d:\d\d:\d\d DEBUG   reap standard: 3", line)], told
    assert re.fullmatch(r"upkeep ends: .*reap 3.*", lines[-1])


async def test_as_json_the_summary_is_data(store: Store, db: Harness, dsn: str, tmp_path: Path) -> None:
    process = started(dsn, tmp_path, "--json")
    try:
        ids = await expired(store, db)
        await until(lambda: ready(db, ids), 60)
        process.terminate()
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    said = json.loads(out)
    assert said["counts"]["reap"] == 1
    assert (said["jumps"], said["troubles"]) == (0, {})


async def test_one_round_says_what_each_part_did(store: Store, db: Harness, ask: Asking) -> None:
    (job_id,) = await expired(store, db)
    done = ask.run("upkeep", "--once")
    assert f"WARNING job {job_id} of t, attempt 1 failed, retry in " in done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["part", "contract", "did", "trouble"]
    assert ["reap", "standard", "1"] in [row.split() for row in rows]
    assert db.row(job_id)["role"] == "ready"
    reports = ask.said("upkeep", "--once")
    assert {"part": "reap", "contract": "standard", "did": 0, "trouble": None} in reports
    assert [report["part"] for report in reports if report["did"]] == ["vacuum"]


def test_a_round_that_met_trouble_exits_with_one(db: Harness, dsn: str, ask: Asking) -> None:
    assert ask.run("migrate", "--grants").returncode == 0
    done = ask.run("upkeep", "--once", "--json", "--database-url", f"{dsn} options='-c role=tenure_app'")
    assert (done.returncode, done.stderr) == (1, "")
    (trouble,) = [report["trouble"] for report in json.loads(done.stdout) if report["trouble"]]
    assert trouble.startswith("E-UNAVAILABLE: only the owner of the tables can drop ranges")


def test_what_is_kept_is_set_by_the_environment(db: Harness, dsn: str, tmp_path: Path) -> None:
    db.sql("insert into tenure.claim (key, at) values (gen_random_uuid(), now() - interval '20 minutes')")

    def forgotten(span: str) -> int:
        done = tenure("upkeep", "--once", "--json", cwd=tmp_path, DATABASE_URL=dsn, TENURE_KEEP_CLAIMS=span)
        (report,) = [report for report in json.loads(done.stdout) if report["part"] == "forget claims"]
        return int(report["did"])

    assert (forgotten("30m"), forgotten("10m")) == (0, 1)


def test_it_waits_for_a_database_that_is_away(db: Harness, dsn: str, tmp_path: Path) -> None:
    lock_out(dsn, out=True)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "upkeep"],
            stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "DATABASE_URL": dsn},
        )  # fmt: skip
        try:
            assert process.stderr is not None
            assert "upkeep cannot connect, retrying: " in process.stderr.readline()
            lock_out(dsn, out=False)
            assert process.stderr.readline() == "upkeep runs; Ctrl-C or SIGTERM ends it\n"
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    finally:
        lock_out(dsn, out=False)


def test_a_database_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    done = tenure("upkeep", "--once", "--database-url", f"host={tmp_path} dbname=nowhere", cwd=tmp_path)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "E-CANNOT-CONNECT")


def test_a_server_that_does_not_let_it_in_is_not_waited_for(dsn: str, tmp_path: Path) -> None:
    for part in ("dbname=nonesuch", "user=nobody_of_this_name"):
        done = tenure("upkeep", "--database-url", f"{dsn} {part}", cwd=tmp_path)
        assert (done.returncode, done.stderr.split(":")[0]) == (1, "E-NOT-PERMITTED"), done.stderr
        assert "check the name of the database" in done.stderr
