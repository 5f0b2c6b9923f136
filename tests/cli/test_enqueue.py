"""`tenure enqueue` as a person runs it: a job from an argument, a file or a pipe; what is no JSON is shown where."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.contracts import BUILT_IN
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness
from tests.postgres.listening import bare_ear

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(autouse=True)
def working(db: Harness) -> None:
    """Somebody who takes whatever is enqueued, so that nothing is said of it."""
    db.sql("insert into tenure.worker (name, queues, contracts) values ('w', %s, %s)",
           ["default", "mail", "slow mail"], list(BUILT_IN))  # fmt: skip


def test_a_job_is_made_and_the_next_command_shows_it(ask: Asking, db: Harness) -> None:
    text = ask.text("enqueue", "mail.send", "--payload", '{"to": "ada"}')
    found = re.fullmatch(r"job (\d+) is queued in queue default\nNext: tenure (jobs show \1)\n", text)
    assert found
    row = db.row(int(found[1]))
    assert (row["type"], row["payload"], row["contract"], row["created_by"]) == (
        "mail.send", {"to": "ada"}, "standard", ME,
    )  # fmt: skip
    assert ask.text(*found[2].split()).startswith(f"job {found[1]}: mail.send")


def test_every_option_reaches_the_job(ask: Asking, db: Harness) -> None:
    said = ask.said(
        "enqueue", "t", "--contract", "phase27", "--queue", "slow mail", "--tenant", "acme", "--key", "k1", "--delay",
        "5m", "--priority", "2", "--max-attempts", "7",
    )  # fmt: skip
    row = db.row(int(said["id"]))
    assert said == {
        "id": str(row["id"]), "contract": "phase27", "state": "queued", "queue": "slow mail", "type": "t",
        "tenant_id": "acme", "made": True, "due_at": said["due_at"],
    }  # fmt: skip
    assert (row["priority"], row["max_attempts"], row["idempotency_key"], row["payload"]) == (2, 7, "k1", {})
    assert (row["due_at"] - row["created_at"]).total_seconds() == 300
    assert re.fullmatch(r"\d{4}-.*Z", said["due_at"])


def test_the_same_key_again_makes_nothing_and_another_body_is_refused(ask: Asking, db: Harness) -> None:
    first = ask.said("enqueue", "t", "--key", "k")
    assert ask.said("enqueue", "t", "--key", "k") == {**first, "made": False}
    assert ask.text("enqueue", "t", "--key", "k").startswith(
        f"job {first['id']} was made before with this key; it is queued"
    )
    assert ask.refused("enqueue", "t", "--key", "k", "--payload", "[1]")[0] == "IDEMPOTENCY_CONFLICT"
    assert db.value("select count(*) from tenure.job") == 1


def test_the_payload_can_come_from_a_file_or_a_pipe(ask: Asking, db: Harness, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('\ufeff{"from": "file"}', encoding="utf-8")
    made = ask.said("enqueue", "t", "--payload", "@in.json")
    assert db.row(int(made["id"]))["payload"] == {"from": "file"}
    piped = subprocess.run(
        [sys.executable, "-m", "tenure", "enqueue", "t", "--payload", "-", "--json"],
        input='{"from": "pipe"}', text=True, capture_output=True, cwd=tmp_path,
        env={**os.environ, "DATABASE_URL": ask.dsn}, timeout=60,
    )  # fmt: skip
    assert piped.returncode == 0, piped.stderr
    assert db.row(int(json.loads(piped.stdout)["id"]))["payload"] == {"from": "pipe"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--payload", '{"to": ada}'), r"--payload is not JSON: .* at line 1, column 8, near .*ada"),
        (("--payload", '{\n "a": 1,\n}'), r"--payload is not JSON: .* at line [23], column \d"),
        (("--payload", ""), r"--payload is not JSON: .* at line 1, column 1"),
        (("--payload", '{"n": NaN}'), r"payload is not JSON"),
        (("--payload", "@nowhere.json"), r"the file 'nowhere.json' cannot be read: No such file"),
        (("--payload", "@."), r"cannot be read"),
        (("--payload", "[" * 100_000), r"--payload is not JSON"),
        (("--delay", "soon"), r"--delay is a number of seconds, or like 500ms, 30s, 5m, 2h, 7d, not 'soon'"),
        (("--delay", "-5"), r"--delay is a number of seconds"),
        (("--delay", "999999d"), r"delay_ms is \d+; it must be within"),
        (("--max-attempts", "0"), r"max_attempts of contract standard is 0"),
        (("--queue", ""), r"queue must be a non-empty string"),
    ],
)
def test_what_cannot_be_enqueued_is_refused_with_where_and_nothing_is_made(
    ask: Asking, db: Harness, options: tuple[str, ...], message: str
) -> None:
    code, said = ask.refused("enqueue", "t", *options)
    assert code == "E-BAD-INPUT"
    assert re.search(message, said), said
    assert db.value("select count(*) from tenure.job") == 0


def test_bad_json_is_refused_before_anything_is_started(at_once: Callable[..., tuple[int, str, str]]) -> None:
    code, out, error = at_once("enqueue", "t", "--payload", "{'to': 1}")
    assert (code, out) == (1, "")
    assert error.startswith("E-BAD-INPUT: --payload is not JSON")


def test_an_unknown_contract_and_a_wrong_call_have_their_own_exit_codes(ask: Asking) -> None:
    assert ask.refused("enqueue", "t", "--contract", "standart")[0] == "E-UNKNOWN-CONTRACT"
    assert ask.run("enqueue").returncode == 2
    assert ask.run("enqueue", "t", "--priority", "10").returncode == 2


async def test_workers_are_woken_unless_that_is_switched_off(
    store: Store, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bare_ear(ask.dsn) as ear:
        ask.text("enqueue", "t", "--queue", "mail")
        assert await ear.come() == ["standard:mail"]
        monkeypatch.setenv("TENURE_WAKEUPS", "off")
        ask.text("enqueue", "t", "--queue", "mail")
        assert await ear.come() == []
