"""`tenure enqueue` with --unique and --expires, and how the job is shown."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Asking
from tests.harness import Harness


@pytest.fixture(autouse=True)
def working(db: Harness) -> None:
    """Somebody who takes whatever is enqueued, so that nothing is said of it."""
    db.sql("insert into tenure.worker (name, queues, contracts) values ('w', '{default}', '{standard}')")


SYNC = ("enqueue", "sync", "--payload", '{"customer": 7}', "--unique", "waiting", "--unique-by", "customer")


def test_a_unique_job_is_made_once(ask: Asking, db: Harness) -> None:
    first = ask.said(*SYNC, "--expires", "5m")
    assert ask.said(*SYNC) == {**first, "made": False, "due_at": first["due_at"]}
    assert "was made before; it is queued" in ask.text(*SYNC)
    row = db.row(int(first["id"]))
    assert (row["expires_at"] - row["created_at"]).total_seconds() == 300
    shown = ask.text("jobs", "show", first["id"])
    assert "expires" in shown
    assert "unless it has begun" in shown
    assert "expires at" in ask.text("jobs", "why", first["id"])


def test_a_replacement_a_period_and_a_refusal(ask: Asking, db: Harness) -> None:
    first = ask.said(*SYNC)
    new = ("enqueue", "sync", "--payload", '{"customer": 7, "full": true}', "--unique-by", "customer")
    assert ask.said(*new, "--unique", "10m", "--on-conflict", "replace")["id"] == first["id"]
    assert db.row(int(first["id"]))["payload"] == {"customer": 7, "full": True}
    code, told = ask.refused(*new, "--unique", "active", "--on-conflict", "refuse")
    assert "DUPLICATE_JOB" in (code, told) or first["id"] in told
    assert "replaced" in ask.text("jobs", "events", first["id"])


@pytest.mark.parametrize("options", [["--unique", "often"], ["--expires", "soon"], ["--unique-by", "customer"]])
def test_a_wrong_option_is_named(ask: Asking, db: Harness, options: list[str]) -> None:
    told = " ".join(ask.refused("enqueue", "sync", *options))
    assert options[0].strip("-").replace("-", "_") in told.replace("-", "_")
    assert db.value("select count(*) from tenure.job") == 0
