"""The commands as a person runs them: real processes, their output and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg


def tenure(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        capture_output=True, text=True, cwd=cwd, env={**clean, **environ}, timeout=100,
    )  # fmt: skip


def test_migrate_says_what_it_did_and_a_second_run_has_nothing_to_do(empty_dsn: str, tmp_path: Path) -> None:
    first = tenure("migrate", "--database-url", empty_dsn, "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["applied"][0] == "0001_schema"
    second = tenure("migrate", cwd=tmp_path, DATABASE_URL=empty_dsn)
    assert (second.returncode, second.stdout) == (0, "nothing to do: the database is at this release\n")


def test_printed_sql_makes_the_database_that_migrate_would_have_made(empty_dsn: str, tmp_path: Path) -> None:
    printed = tenure("migrate", "--print", cwd=tmp_path)
    assert printed.returncode == 0
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
    after = tenure("migrate", "--database-url", empty_dsn, cwd=tmp_path)
    assert after.stdout == "nothing to do: the database is at this release\n"


def test_without_an_address_the_embedded_postgresql_is_used_and_stopped_again(tmp_path: Path) -> None:
    done = tenure("migrate", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"made a PostgreSQL in {tmp_path / '.tenure'}; set DATABASE_URL to use another\n"
    assert "registered contract standard 1" in done.stdout
    assert (tmp_path / ".tenure" / "data" / "PG_VERSION").exists()
    assert not (tmp_path / ".tenure" / "data" / "postmaster.pid").exists()


def test_a_refusal_names_its_code_on_stderr_and_exits_with_one(empty_dsn: str, tmp_path: Path) -> None:
    assert tenure("migrate", "--database-url", empty_dsn, cwd=tmp_path).returncode == 0
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("insert into tenure.migration (number, name, checksum) values (9999, 'later', 'x')")
    done = tenure("migrate", "--database-url", empty_dsn, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("E-SCHEMA-TOO-NEW: ")
    assert "upgrade tenure" in done.stderr


def test_a_database_that_is_not_there_cannot_be_connected_to(tmp_path: Path) -> None:
    done = tenure("migrate", "--database-url", f"host={tmp_path} dbname=nowhere", cwd=tmp_path)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "E-CANNOT-CONNECT")
    assert "check the address" in done.stderr


def test_an_address_of_another_kind_is_refused_without_repeating_its_password(tmp_path: Path) -> None:
    done = tenure("migrate", cwd=tmp_path, DATABASE_URL="postgresql+asyncpg://me:secret@host/db")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("E-BAD-INPUT: the address of the database begins with postgresql+asyncpg://")
    assert "secret" not in done.stderr


def test_a_place_where_the_embedded_postgresql_cannot_live_is_named(tmp_path: Path) -> None:
    (tmp_path / ".tenure").write_text("in the way")
    done = tenure("migrate", cwd=tmp_path)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "E-EMBEDDED")
    assert str(tmp_path) in done.stderr


def test_a_demo_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "tenure", "demo"],
        stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert demo.stdout is not None
    while "jobs under six contracts" not in demo.stdout.readline():
        assert demo.poll() is None, "the demo ended before it could be terminated"
    demo.terminate()
    assert demo.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_bad_setting_is_refused_by_name(tmp_path: Path) -> None:
    done = tenure("migrate", cwd=tmp_path, TASK_LOCK_MS="soon")
    assert (done.returncode, done.stderr) == (1, "E-BAD-INPUT: TASK_LOCK_MS must be a whole number, not 'soon'\n")


def test_a_wrong_call_exits_with_two(tmp_path: Path) -> None:
    assert tenure("migrate", "--no-such-option", cwd=tmp_path).returncode == 2


def test_the_demo_ends_by_itself_verified_and_leaves_nothing(tmp_path: Path) -> None:
    done = tenure("demo", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "LEASE_CONFLICT" in done.stdout
    assert "killed with kill -9" in done.stderr
    assert "Traceback" not in done.stderr  # jobs that are made to fail do not hide what the demo shows
    assert "reliability " in done.stdout
    assert done.stdout.count("9 of 9 promises held") == 6
    assert "log rows read, 0 violations" in done.stdout
    assert list(tmp_path.iterdir()) == []
