"""Commands on the embedded PostgreSQL, where there was none: it is made, has its schema, and is never silent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenure.embedded import Cluster
from tests.cli.forked import tenure

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_finds_the_schema_and_says_which_database_it_made_or_started(tmp_path: Path) -> None:
    made = f"made a PostgreSQL in {tmp_path / '.tenure'}; set DATABASE_URL to use another"
    started = f"started the PostgreSQL in {tmp_path / '.tenure'}; set DATABASE_URL to use another"
    key = tenure("keys", "create", "shop", "--scope", "work", cwd=tmp_path)
    assert key.returncode == 0, key.stderr
    assert re.fullmatch(r"tenure_\S+\n", key.stdout)
    assert key.stderr.splitlines()[0] == made
    job = tenure("enqueue", "greet", cwd=tmp_path)
    assert job.returncode == 0
    was_started, said = job.stderr.splitlines()
    assert was_started == started
    assert said.startswith("notice: no live worker knows type greet (no worker is seen at all)")
    assert job.stdout.startswith("job 1 is queued")
    for command in (("jobs", "list"), ("jobs", "show", "1"), ("queues", "list"), ("verify",), ("upkeep", "--once")):
        done = tenure(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[0].endswith(started)
    with Cluster(tmp_path / ".tenure"):  # it runs: whoever joins starts nothing
        migrated = tenure("migrate", cwd=tmp_path)
    assert (migrated.returncode, migrated.stderr) == (0, "")
    assert migrated.stdout == "nothing to do: the database is at this release\n"
    assert not (tmp_path / ".tenure" / "data" / "postmaster.pid").exists(), "PostgreSQL was left running"


def test_a_worker_without_an_address_says_where_it_made_a_database(tmp_path: Path) -> None:
    done = tenure("worker", "tenure.samples:app", "--until-idle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stderr.splitlines()
    assert first[8:] == f" WARNING made a PostgreSQL in {tmp_path / '.tenure'}; set DATABASE_URL to use another"
    assert "works on default" in rest[0]
    assert rest[-1].endswith("stopped: no jobs")
    assert not (tmp_path / ".tenure" / "data" / "postmaster.pid").exists(), "PostgreSQL was left running"


@pytest.mark.parametrize(
    "command",
    [
        ("migrate",),
        ("jobs", "list"),
        ("worker", "tenure.samples:app"),
        ("serve",),
        ("upkeep", "--once"),
        ("dev",),
    ],
    ids=" ".join,
)
def test_where_a_database_is_required_nothing_is_started(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = tenure(*command, cwd=tmp_path, TENURE_REQUIRE_DATABASE="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("E-DATABASE-REQUIRED: no database is named")
    assert "Next: set DATABASE_URL" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_with_an_address_is_never_migrated_behind_ones_back(empty_dsn: str, tmp_path: Path) -> None:
    done = tenure("jobs", "list", cwd=tmp_path, DATABASE_URL=empty_dsn)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "E-SCHEMA-MISSING")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [{"DATABASE_URL": "host=/nowhere dbname=none"}, {}])
def test_a_worker_that_cannot_set_out_says_why_and_nothing_of_its_jobs(given: dict[str, str]) -> None:
    more = [] if given else ["--dispatcher", "http://127.0.0.1:9"]
    done = tenure("worker", "tests.worker.program:app", "--until-idle", *more, cwd=ROOT, **given)
    assert done.returncode == 1
    assert done.stderr.startswith("E-CANNOT-CONNECT: "), done.stderr
    assert "stopped" not in done.stderr


def test_what_is_wrong_is_named_as_it_was_given(tmp_path: Path) -> None:
    for wrong, said in {
        ("--dispatcher", "127.0.0.1:8420"): "--dispatcher must be an address like https://tenure.example.com",
        ("--dispatcher", "http://here", "--key", "two words"): "--key must be a key as `tenure keys create` shows it",
    }.items():
        done = tenure("worker", "tenure.samples:app", *wrong, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"E-BAD-INPUT: {said}"), done.stderr
    done = tenure("worker", "tenure.samples:app", cwd=tmp_path, TENURE_DISPATCHER_URL="127.0.0.1:8420")
    assert done.stderr.startswith("E-BAD-INPUT: TENURE_DISPATCHER_URL must be an address")
    assert list(tmp_path.iterdir()) == [], "a database was made for it"


def test_a_host_that_this_machine_does_not_have_is_not_blamed_on_the_port(dsn: str, tmp_path: Path) -> None:
    done = tenure("serve", "--host", "192.0.2.1", cwd=tmp_path, DATABASE_URL=dsn)
    assert done.returncode == 1
    assert done.stderr == (
        "E-BAD-INPUT: cannot listen on 192.0.2.1: this machine does not have that address. "
        "Next: give one of its own with --host\n"
    )
