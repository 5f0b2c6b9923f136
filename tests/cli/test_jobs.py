"""`tenure jobs` as a person runs it: look at a job, read its log, ask why, cancel it, run it again."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.options import parse_id
from tenure.contracts import BUILT_IN
from tenure.errors import BadInput
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.architecture.test_documented import commands
from tests.cli.conftest import Asking
from tests.harness import Harness

SLOW = Failure("too slow", type="TimeoutError", code="SLOW", retryable=True)
BROKEN = Failure("broken for good", type="ValidationError", retryable=False)
ME = pwd.getpwuid(os.getuid()).pw_name


async def enqueued(store: Store, contract: str = "standard", **fields: Any) -> int:
    """The id of a job that waits."""
    return (await store.enqueue(NewJob("mail.send", {"to": "ada"}, contract, queue="mail", **fields))).job_id


async def claimed(store: Store, contract: str = "standard") -> Job:
    """A job in the hands of w1."""
    (job,) = await store.claim_by_id([await enqueued(store, contract)], worker="w1", contract=contract)
    assert isinstance(job, Job)
    await store.start(job.held)
    return job


async def ended(store: Store, contract: str = "standard") -> Job:
    """A job that failed for good."""
    job = await claimed(store, contract)
    await store.fail(job.held, BROKEN)
    return job


def shown(value: Any) -> Any:
    """A column's value as JSON shows it."""
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}" if isinstance(value, datetime) else value


@pytest.mark.parametrize("name", BUILT_IN)
async def test_show_gives_programs_the_row_of_the_contracts_own_view(
    store: Store, db: Harness, ask: Asking, name: str
) -> None:
    job = await claimed(store, name)
    await store.heartbeat(job.held)
    said = ask.said("jobs", "show", str(job.id))
    row = db.row(job.id)
    assert {key: value for key, value in said.items() if key != "record"} == {
        "id": str(job.id), "contract": name, "state": row["state"], "queue": "mail", "type": "mail.send",
        "tenant_id": "default",
    }  # fmt: skip
    view = BUILT_IN[name].views[0]
    key = next(column for column, field in view.columns.items() if field == "id")
    wanted = db.one(f"select * from tenure_{name}.{view.name} where {key} = %s", job.id)
    ids = {column for column, field in view.columns.items() if field in ("id", "token")}
    assert said["record"] == {column: str(value) if column in ids else shown(value) for column, value in wanted.items()}


async def test_the_card_of_a_held_job_says_who_has_it_and_until_when(store: Store, ask: Asking) -> None:
    job = await claimed(store)
    await store.progress(job.held, {"sent": 3})
    await store.cancel(job.id, actor="ada")
    card = ask.text("jobs", "show", str(job.id))
    assert card.startswith(f"job {job.id}: mail.send (contract standard 1)\n")
    for line in (
        r"state +running since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(",
        rf"held by +w1, lease until {job.lease_expires_at:%Y-%m-%d %H:%M:%S} UTC \(in \d",
        r"heartbeat +none yet",
        r"asked to stop +\d{4}",
        r"attempts +attempt 1, max_attempts 5; claimed 1 of at most 5 times",
        r'payload +\{"to": "ada"\}',
        r'progress +\{"sent": 3\}',
        r"queue +mail, priority 5, tenant default",
    ):
        assert re.search(rf"^  {line}", card, re.MULTILINE), f"{line} in:\n{card}"
    assert f"tenure jobs cancel {job.id} --mode hard" in card


async def test_the_cards_of_a_dead_job_and_its_successor_point_to_each_other(store: Store, ask: Asking) -> None:
    job = await ended(store)
    letter = await store.letters.of_job(job.id)
    card = ask.text("jobs", "show", str(job.id))
    assert re.search(rf"^  dead letter +{letter.id}, open: validation_failed$", card, re.MULTILINE)
    assert re.search(r"^  last error +ValidationError: broken for good$", card, re.MULTILINE)
    assert f"tenure dlq requeue {letter.id}\n" in card
    again = await store.letters.requeue(letter.id, actor="ada")
    assert re.search(rf"^  run again as +job {again}$", ask.text("jobs", "show", str(job.id)), re.MULTILINE)
    card = ask.text("jobs", "show", str(again))
    assert re.search(rf"^  runs again +job {job.id}, from its dead letter {letter.id}$", card, re.MULTILINE)
    assert re.search(r"^  enqueued .* by ada$", card, re.MULTILINE)
    named = {" ".join(step) for step in re.findall(r"tenure (\w+) (\w+)", card)}
    assert named
    assert named - {"worker APP"} <= set(commands())


async def test_events_are_told_in_order_and_facts_are_no_hops(store: Store, db: Harness, ask: Asking) -> None:
    job = await claimed(store, "reliability")
    await store.heartbeat(job.held)
    await store.fail(job.held, SLOW)
    lines = ask.text("jobs", "events", str(job.id)).splitlines()
    assert re.split(r"  +", lines[0]) == [
        "time (UTC)", "from → to", "trigger", "actor", "attempts", "reason", "what",
    ]  # fmt: skip
    told = [re.split(r"  +", line)[1:] for line in lines[1:]]
    assert told[:3] == [
        ["queued → assigned", "claim", "w1", "1/3"],
        ["assigned → running", "start", "w1", "1/3"],
        ["(fact in running)", "heartbeat", "w1", "1/3"],
    ]
    assert told[3][:4] == ["running → queued", "retry", "w1", "1/3"]
    assert re.fullmatch(r"TimeoutError \[SLOW\]: too slow; next after \d+ ms", told[3][-1])
    said = ask.said("jobs", "events", str(job.id))
    log = db.log(job.id)
    assert [event["seq"] for event in said] == [1, 2, 3, 4]
    for event, row in zip(said, log, strict=True):
        assert event == {
            key: str(row[key]) if key == "job_id" else shown(row[key])
            for key in (
                "job_id", "seq", "ts", "hop", "trigger", "from_state", "to_state", "claims", "counter", "max_attempts",
                "actor", "reason", "facts",
            )
        }  # fmt: skip


async def test_a_job_without_a_log_says_that_nothing_has_happened(store: Store, ask: Asking) -> None:
    job_id = str(await enqueued(store))
    done = ask.run("jobs", "events", job_id)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing has happened to it yet" in done.stderr
    assert ask.said("jobs", "events", job_id) == []


async def test_why_counts_the_due_jobs_that_go_first(store: Store, db: Harness, ask: Asking) -> None:
    first = [await enqueued(store, priority=priority) for priority in (5, 0, 9)]
    await enqueued(store, priority=0, delay_ms=3_600_000)
    await enqueued(store, "phase27")
    mine = await enqueued(store)
    db.sql("update tenure.job set due_at = due_at - interval '1 minute' where id = %s", first[2])
    text = ask.text("jobs", "why", str(mine))
    assert text.startswith(f"Job {mine} is queued and due since ")
    assert "\n2 due jobs go before it in queue mail" in text, "not the less urgent, the delayed, another contract's"
    assert "No job of that queue is held now" in text
    await store.claim(queues=["mail"], worker="w1", limit=2)
    said = ask.said("jobs", "why", str(mine))
    assert (said["id"], said["state"], said["role"]) == (str(mine), "queued", "ready")
    assert said["why"][1].startswith("No due job goes before it")
    assert said["why"][2].startswith("2 jobs of that queue are held now")
    assert f"tenure jobs cancel {mine}" in said["next"]
    db.expire(first[0])
    assert "1 job of that queue is held now" in ask.text("jobs", "why", str(mine)), "a lost worker holds nothing"


async def test_why_tells_a_lost_worker_from_a_busy_one(store: Store, db: Harness, ask: Asking) -> None:
    job = await claimed(store)
    assert f"Job {job.id} is running: w1 holds it since " in ask.text("jobs", "why", str(job.id))
    db.expire(job.id)
    assert "but the lease of w1 ran out at " in ask.text("jobs", "why", str(job.id))


async def test_why_tells_the_end_from_the_log(store: Store, ask: Asking) -> None:
    job = await ended(store, "gate_b2")
    text = ask.text("jobs", "why", str(job.id))
    assert f"Job {job.id} ended as failed at " in text
    assert "with an error that is not tried again: ValidationError: broken for good." in text
    assert "or discarded, which needs two people." in text
    assert re.search(r"\nNext: tenure dlq requeue \d+\n\Z", text)


async def test_cancel_says_what_became_of_each_and_fails_when_one_was_refused(
    store: Store, db: Harness, ask: Asking
) -> None:
    waiting, held, finished = await enqueued(store), (await claimed(store)).id, (await ended(store)).id
    soft_only = (await claimed(store, "simple")).id
    before = db.fingerprint(finished, soft_only)
    ids = [str(job_id) for job_id in (soft_only, waiting, finished, 999, held, waiting)]
    done = ask.run("jobs", "cancel", *ids, "--mode", "hard", "--reason", "wrong list", "--json")
    assert done.returncode == 1
    told = {answer["id"]: answer for answer in json.loads(done.stdout)}
    assert [*told] == ids[:5]
    assert told[ids[1]] == {"id": ids[1], "cancelled": True, "state": "cancelled", "from_state": "queued"}
    assert told[ids[4]] == {"id": ids[4], "cancelled": True, "state": "cancelled", "from_state": "running"}
    codes = [told[job_id]["refused"]["code"] for job_id in (ids[0], ids[2], ids[3])]
    assert codes == ["CANCEL_MODE", "INVALID_TRANSITION", "JOB_NOT_FOUND"]
    assert db.fingerprint(finished, soft_only) == before
    assert [(event["actor"], event["reason"]) for event in db.log(waiting)] == [(ME, "wrong list")]


async def test_a_soft_cancel_asks_the_holder(store: Store, db: Harness, ask: Asking) -> None:
    job = await claimed(store)
    text = ask.text("jobs", "cancel", str(job.id), "--actor", "ada")
    assert text == f"job {job.id}: its holder is asked to stop. Next: tenure jobs why {job.id}\n"
    assert db.row(job.id)["cancel_requested_at"] is not None
    assert db.log(job.id)[-1]["actor"] == "ada"
    waiting = await enqueued(store)
    done = ask.run("jobs", "cancel", "998", str(waiting))
    assert (done.returncode, done.stdout) == (1, f"job {waiting}: queued → cancelled\n")
    assert done.stderr.startswith("JOB_NOT_FOUND: no job, live or finished, has the id 998")


async def test_one_bad_id_among_good_ones_cancels_nothing(store: Store, db: Harness, ask: Asking) -> None:
    job_id = await enqueued(store)
    before = db.fingerprint(job_id)
    assert ask.refused("jobs", "cancel", str(job_id), "4x", "--json") == (
        "E-BAD-INPUT",
        "id must be a whole number, not '4x'",
    )
    assert db.fingerprint(job_id) == before


@pytest.mark.parametrize("contract", ["standard", "phase27"])
async def test_a_finished_job_is_run_again_as_a_new_one(store: Store, db: Harness, ask: Asking, contract: str) -> None:
    if contract == "standard":
        job = await ended(store)
    else:
        job = await claimed(store, contract)
        await store.succeed(job.held, {"ok": True})
    said = ask.said("jobs", "requeue", str(job.id), "--actor", "ada")
    assert said["id"] == str(job.id)
    new = db.row(int(said["requeued_as"]))
    assert (new["state"], new["payload"], new["created_by"]) == ("queued", {"to": "ada"}, "ada")
    assert f"run again as job {new['id']}" in ask.text("jobs", "why", str(job.id))
    assert re.search(rf"runs again +job {job.id}\b", ask.text("jobs", "show", str(new["id"])))


async def test_a_live_job_is_not_run_again(store: Store, db: Harness, ask: Asking) -> None:
    job = await claimed(store)
    before = db.fingerprint(job.id)
    code, message = ask.refused("jobs", "requeue", str(job.id))
    assert code not in ("E-TENURE", "JOB_NOT_FOUND")
    assert f"job {job.id}" in message
    assert db.fingerprint(job.id) == before
    assert db.value("select count(*) from tenure.job") == 1


@pytest.mark.parametrize("command", ["show", "events", "why", "cancel", "requeue"])
def test_an_unknown_job_is_refused_with_its_code(ask: Asking, command: str) -> None:
    code, message = ask.refused("jobs", command, "4711")
    assert code == "JOB_NOT_FOUND"
    assert "4711" in message


@pytest.mark.parametrize("command", ["show", "events", "why", "cancel", "requeue"])
def test_an_id_that_is_no_number_is_refused_before_anything_is_started(
    at_once: Callable[..., tuple[int, str, str]], command: str
) -> None:
    wanted = (1, "", "E-BAD-INPUT: id must be a whole number, not '4x'\n")
    assert at_once("jobs", command, "4x") == at_once("jobs", command, "4x", "--json") == wanted


@pytest.mark.parametrize("text", ["", " 7", "4_2", "+7", "7.0", "\u0667", "0", "9223372036854775808", "9" * 40])
def test_only_digits_of_a_possible_id_are_an_id(text: str) -> None:
    with pytest.raises(BadInput, match=r"^id (must be a whole number|is \d+; it must be within)"):
        parse_id("id", text)


def test_a_database_without_schema_says_what_to_do(empty_dsn: str, tmp_path: Path) -> None:
    code, message = Asking(empty_dsn, tmp_path).refused("jobs", "why", "1")
    assert code == "E-SCHEMA-MISSING"
    assert "Next: tenure migrate" in message


async def test_show_and_why_print_the_traceback_line_by_line(store: Store, ask: Asking) -> None:
    stack = """Traceback (most recent call last):
  File "/srv/shop.py", line 7, in send
\traise ValueError("odd \x1b[31m")
ValueError: odd \x1b[31m
"""
    job = await claimed(store)
    await store.fail(job.held, Failure("odd", type="ValueError", stack=stack))
    printed = [
        "  Traceback (most recent call last):", '    File "/srv/shop.py", line 7, in send',
        '      raise ValueError("odd  [31m")', "  ValueError: odd  [31m",
    ]  # fmt: skip
    for command in ("show", "why"):
        lines = ask.text("jobs", command, str(job.id)).splitlines()
        assert printed[0] in lines
        first = lines.index(printed[0])
        assert lines[first : first + 4] == printed
        assert lines[first + 4].startswith("Next: ")
